// output.cpp — what a step answers with: tokens, log-probabilities, logits or hidden rows.   (ops.h: Output)
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/math.h"
#include "cpu/matmul.h"
#include "cpu/sampler.h"

namespace sparkinfer {
namespace {

constexpr int kBlockRows = 64;

bool samples(const Output& op) { return op.kind == OutputKind::select; }

struct Scratch {
    VectorParameter norm;
    float* n;       // [64, D] normalised rows
    RowSpace rows;  // [64]
    DecodeBuffers buffers;
    LiveRow* live;      // [64]
    int32_t* chosen;    // [64]
    float* logits;      // [threads, V]
    int32_t* counts;    // [threads, V] zero
    Candidate* sorted;  // [threads, V]
    Scratch(Carver& c, const Output& op, int64_t threads)
        : norm(c, op.norm),
          n(c.take<float>(kBlockRows * op.x.cols())),
          rows(c, kBlockRows, op.x.cols()),
          buffers(c, op.x.cols(), int(threads)),
          live(c.take<LiveRow>(kBlockRows)),
          chosen(c.take<int32_t>(kBlockRows)),
          logits(samples(op) ? c.take<float>(threads * op.head.out) : nullptr),
          counts(samples(op) ? c.take<int32_t>(threads * op.head.out) : nullptr),
          sorted(samples(op) ? c.take<Candidate>(threads * op.head.out) : nullptr) {
        if (counts) std::fill_n(counts, threads * op.head.out, 0);
    }
    SampleScratch sampling(int64_t vocabulary, int worker) const {
        return {logits + worker * vocabulary, counts + worker * vocabulary, sorted + worker * vocabulary};
    }
};

// Rows first … first + count of Step's outputs.
struct Block {
    int first, count;
};

int32_t row_of(const Output& op, int output) { return op.step.outputs()[output]; }

std::span<const float> logits_of(const Output& op, int i) { return {op.scratch.row(i), size_t(op.head.out)}; }

// logits[i · stride …] = head · rms(x) of the block's rows; rows that are absent get those of a zero row.
void make_logits(const Output& op, const Scratch& s, Block block, float* logits, int64_t stride,
                 const Context& context) {
    const int64_t width = op.x.cols();
    const Activations kind = wanted(context, {&op.head});
    Pool& pool = context.pool;
    pool.parallel(block.count, 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            float* n = s.n + i * width;
            s.rows.values[i] = n;
            if (s.live[i].present)
                rms_norm(op.x.row(row_of(op, block.first + int(i))), s.norm.values, width, op.eps, n);
            else
                memset(n, 0, size_t(width) * 4);
        }
        s.rows.convert(begin, end, kind);
    });
    pool.parallel(chunks_of(op.head), 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t unit = begin; unit < end; ++unit) {
            const RowChunk chunk = chunk_of(op.head, unit);
            multiply_chunk(op.head, 0, chunk, s.rows.rows(kind), block.count, logits + chunk.first, stride,
                           s.buffers.of(worker));
        }
    });
}

float log_probability(float logit, double log_sum) {
    return std::isfinite(log_sum) && !std::isnan(logit) ? float(double(logit) - log_sum) : -INFINITY;
}

// The best `n` alternatives with their log-probabilities; returns how many.
int list_tops(std::span<const float> logits, int n, double log_sum, Bias* top) {
    Candidate best[kMaxTopLogprobs];
    const int found = top_logits(logits, std::clamp(n, 0, kMaxTopLogprobs), best);
    for (int i = 0; i < found; ++i) top[i] = {best[i].token, log_probability(best[i].logit, log_sum)};
    return found;
}

int32_t choose(const Output& op, const Scratch& s, const LiveRow& row, int i, int worker) {
    const Slot& slot = op.slots.slot(row.slot);
    const Sampling& sampling = slot.sampling;
    const uint32_t* mask =
        sampling.mask < 0 ? nullptr : op.slots.masks + int64_t(sampling.mask) * op.slots.mask_words;
    return sample({.logits = logits_of(op, i),
                   .sampling = &sampling,
                   .bias = {slot.bias, size_t(std::clamp(sampling.biases, 0, kMaxBias))},
                   .mask = mask,
                   .history = {op.slots.history(row.slot), size_t(row.index) + 1},
                   .prompt = slot.cursor.prompt,
                   .index = row.index + 1},
                  s.sampling(op.head.out, worker));
}

void advance(Slot& slot, const LiveRow& row, int32_t token) {
    Cursor& c = slot.cursor;
    c.next_token = token;
    c.index = row.index + 1;
    c.generated += 1;
    c.accepted = 0;
    const int32_t* end = slot.stop_id + std::clamp(slot.sampling.stop_ids, 0, kMaxStopIds);
    if (std::find(static_cast<const int32_t*>(slot.stop_id), end, token) != end)
        c.stopped = kStopToken;
    else if (c.generated >= c.limit)
        c.stopped = kStopLimit;
}

void select_block(const Output& op, const Scratch& s, Block block, Pool& pool) {
    auto* results = static_cast<Selected*>(op.results) + block.first;
    pool.parallel(block.count, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; ++i) {
            const LiveRow& row = s.live[i];
            Selected& r = results[i];
            r = {};
            r.row = row_of(op, block.first + int(i));
            r.slot = op.step.rows()[r.row].slot;
            r.token = -1;
            if (!row.present) continue;
            const std::span<const float> logits = logits_of(op, int(i));
            r.token = choose(op, s, row, int(i), worker);
            const double log_sum = log_sum_exp(logits);
            r.logprob = log_probability(logits[size_t(r.token)], log_sum);
            r.tops = list_tops(logits, op.slots.slot(row.slot).sampling.top_logprobs, log_sum, r.top);
        }
    });
    // Cursors last and in order: rows of one slot see them as the step found them.
    for (int i = 0; i < block.count; ++i) {
        Slot& slot = op.slots.slot(results[i].slot);
        if (s.live[i].present) advance(slot, s.live[i], results[i].token);
        results[i].stopped = slot.cursor.stopped;
    }
}

void score_block(const Output& op, const Scratch& s, Block block, Pool& pool) {
    auto* results = static_cast<TokenLogprob*>(op.results) + block.first;
    pool.parallel(block.count, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
            TokenLogprob& r = results[i];
            r = {};
            r.row = row_of(op, block.first + int(i));
            r.target = s.live[i].present ? op.step.rows()[r.row].target : -1;
            if (!s.live[i].present) continue;
            CHECK(r.target < op.head.out, "target {} of {} tokens", r.target, op.head.out);
            const std::span<const float> logits = logits_of(op, int(i));
            const double log_sum = log_sum_exp(logits);
            r.log_sum_exp = float(log_sum);
            if (r.target >= 0) r.logprob = log_probability(logits[size_t(r.target)], log_sum);
            r.tops = list_tops(logits, op.top, log_sum, r.top);
        }
    });
}

void copy_hidden(const Output& op, const Scratch& s, Block block) {
    const size_t bytes = size_t(op.x.cols()) * 4;
    for (int i = 0; i < block.count; ++i) {
        float* to = op.rows.row(block.first + i);
        if (s.live[i].present)
            memcpy(to, op.x.row(row_of(op, block.first + i)), bytes);
        else
            memset(to, 0, bytes);
    }
}

}  // namespace

int64_t scratch_bytes(const Output& op, int threads) { return measure<Scratch>(op, threads); }

void run(const Output& op, Context& context) {
    if (op.kind == OutputKind::none) return;
    const Scratch s(context.scratch, op, context.pool.threads());
    Pool& pool = context.pool;
    const int outputs = op.step.header().outputs;
    const bool blocked = op.kind == OutputKind::select || op.kind == OutputKind::logprobs;
    const int block_rows = blocked ? std::min(kBlockRows, op.scratch.rows()) : kBlockRows;
    CHECK(blocked || outputs <= op.rows.rows(), "{} outputs with room for {}", outputs, op.rows.rows());
    for (int first = 0; first < outputs; first += block_rows) {
        const Block block{first, std::min(block_rows, outputs - first)};
        for (int i = 0; i < block.count; ++i) {
            const int32_t row = row_of(op, first + i);
            CHECK(row >= 0 && row < op.x.rows(), "output row {} of {}", row, op.x.rows());
            s.live[i] = live_row(op.step, op.slots, row);
        }
        switch (op.kind) {
            case OutputKind::none: break;
            case OutputKind::select:
                make_logits(op, s, block, op.scratch.row(0), op.scratch.stride, context);
                select_block(op, s, block, pool);
                break;
            case OutputKind::logprobs:
                make_logits(op, s, block, op.scratch.row(0), op.scratch.stride, context);
                score_block(op, s, block, pool);
                break;
            case OutputKind::logits:
                make_logits(op, s, block, op.rows.row(first), op.rows.stride, context);
                break;
            case OutputKind::hidden: copy_hidden(op, s, block); break;
        }
    }
}

}  // namespace sparkinfer
