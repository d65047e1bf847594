// embed.cpp — applies Step's changes to Slots, then looks up the table.   (ops.h: Embed)
#include <cstring>

#include "cpu/run.h"
#include "quant/decode.h"

namespace sparkinfer {
namespace {

void apply_changes(const StepView& step, const SlotsView& slots) {
    for (int i = 0; i < step.header().changes; ++i) {
        const SlotChange& c = step.changes()[i];
        CHECK(c.slot >= 0 && c.slot < slots.count, "a change to slot {} of {}", c.slot, slots.count);
        CHECK(c.word >= 0 && c.count >= 0 && (int64_t(c.word) + c.count) * 4 <= slots.stride,
              "a change to words {} … {} of a slot of {} bytes", c.word, int64_t(c.word) + c.count,
              slots.stride);
        CHECK(c.payload >= 0 && int64_t(c.payload) + c.count <= step.header().payload_words,
              "a change with payload {} … {} of {}", c.payload, int64_t(c.payload) + c.count,
              step.header().payload_words);
        memcpy(slots.words(c.slot) + c.word, step.payload() + c.payload, size_t(c.count) * 4);
    }
}

}  // namespace

int64_t scratch_bytes(const Embed&, int) { return 0; }

void run(const Embed& op, Context& context) {
    apply_changes(op.step, op.slots);
    context.pool.parallel(op.y.rows(), 16, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
            const LiveRow row = live_row(op.step, op.slots, int(t));
            if (!row.present) {
                memset(op.y.row(t), 0, size_t(op.y.cols()) * 4);
                continue;
            }
            CHECK(row.index >= 0 && row.index < op.slots.max_tokens, "index {} of at most {} tokens",
                  row.index, op.slots.max_tokens);
            decode_row(op.table, 0, row.token, op.y.row(t));
            op.slots.history(row.slot)[row.index] = row.token;
        }
    });
}

}  // namespace sparkinfer
