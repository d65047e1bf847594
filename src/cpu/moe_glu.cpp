// moe_glu.cpp — the gated half of the chosen experts, expert by expert.   (ops.h: MoeGlu)
#include <algorithm>
#include <cstring>

#include "cpu/math.h"
#include "cpu/routing.h"

namespace sparkinfer {
namespace {

struct Scratch {
    NormedRows n;
    Routing routing;
    DecodeBuffers buffers;
    const float** values;           // [T · K] the normalised row of each pair
    const IntegerGroup** integers;  // [T · K]
    float *gate, *up;               // [threads, T, kMaxChunkRows]
    Scratch(Carver& c, const MoeGlu& op, int threads)
        : n(c, op.norm, op.x.rows(), op.x.cols()),
          routing(c, {op.x.rows(), op.gate.experts, op.router.top_k}, op.router),
          buffers(c, op.x.cols(), threads),
          values(c.take<const float*>(int64_t(op.x.rows()) * op.router.top_k)),
          integers(c.take<const IntegerGroup*>(int64_t(op.x.rows()) * op.router.top_k)),
          gate(c.take<float>(int64_t(threads) * op.x.rows() * kMaxChunkRows)),
          up(c.take<float>(int64_t(threads) * op.x.rows() * kMaxChunkRows)) {}
};

void zero_absent(const MoeGlu& op, const Routing& routing) {
    for (int64_t t = 0; t < op.x.rows(); ++t)
        if (routing.experts[t * op.router.top_k] < 0) memset(op.y.row(t), 0, size_t(op.y.cols()) * 4);
}

// One chunk of one expert's rows, for all the pairs that chose it.
void expert_chunk(const MoeGlu& op, const Scratch& s, Activations kind, int32_t expert, RowChunk chunk,
                  int worker) {
    const int32_t k = op.router.top_k, count = s.routing.count(expert), first = s.routing.first[expert];
    const int64_t room = int64_t(worker) * op.x.rows() * kMaxChunkRows;
    float *gate = s.gate + room, *up = s.up + room;
    const ActivationRows x = ActivationRows{s.values, s.integers, kind}.from(first);
    multiply_chunk(op.gate, expert, chunk, x, count, gate, kMaxChunkRows, s.buffers.of(worker));
    multiply_chunk(op.up, expert, chunk, x, count, up, kMaxChunkRows, s.buffers.of(worker));
    for (int64_t i = 0; i < count; ++i) {
        const int32_t pair = s.routing.pairs[first + i];
        float* y = op.y.row(pair / k) + int64_t(pair % k) * op.gate.out + chunk.first;
        activate(op.activation, gate + i * kMaxChunkRows, up + i * kMaxChunkRows, chunk.rows);
        std::copy_n(gate + i * kMaxChunkRows, chunk.rows, y);
    }
}

}  // namespace

int64_t scratch_bytes(const MoeGlu& op, int threads) { return measure<Scratch>(op, threads); }

void run(const MoeGlu& op, Context& context) {
    Scratch s(context.scratch, op, context.pool.threads());
    s.routing.compute(context.pool, op.step, op.slots, op.router, op.logits);
    const Activations kind = wanted(context, {&op.gate, &op.up});
    s.n.compute(context.pool, op.x, op.eps, kind);
    zero_absent(op, s.routing);
    for (int32_t i = 0; i < s.routing.first[op.gate.experts]; ++i) {
        const int32_t row = s.routing.pairs[i] / op.router.top_k;
        s.values[i] = s.n.space.values[row];
        s.integers[i] = s.n.space.integers[row];
    }
    const int64_t chunks = chunks_of(op.gate);
    context.pool.parallel(s.routing.actives * chunks, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t unit = begin; unit < end; ++unit)
            expert_chunk(op, s, kind, s.routing.active[unit / chunks], chunk_of(op.gate, unit % chunks),
                         worker);
    });
}

}  // namespace sparkinfer
