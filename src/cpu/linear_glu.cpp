// linear_glu.cpp — the gated half of a feed-forward block.   (ops.h: LinearGlu)
#include "cpu/math.h"
#include "cpu/matmul.h"

namespace sparkinfer {
namespace {

struct Scratch {
    NormedRows n;
    DecodeBuffers buffers;
    float* up;  // [threads, T, kMaxChunkRows]
    Scratch(Carver& c, const LinearGlu& op, int threads)
        : n(c, op.norm, op.x.rows(), op.x.cols()),
          buffers(c, op.x.cols(), threads),
          up(c.take<float>(int64_t(threads) * op.x.rows() * kMaxChunkRows)) {}
};

}  // namespace

int64_t scratch_bytes(const LinearGlu& op, int threads) { return measure<Scratch>(op, threads); }

void run(const LinearGlu& op, Context& context) {
    Scratch s(context.scratch, op, context.pool.threads());
    const ActivationRows x = s.n.compute(context.pool, op.x, op.eps, wanted(context, {&op.gate, &op.up}));
    const int tokens = op.x.rows();
    context.pool.parallel(chunks_of(op.gate), 1, [&](int64_t begin, int64_t end, int worker) {
        float* up = s.up + int64_t(worker) * tokens * kMaxChunkRows;
        for (int64_t unit = begin; unit < end; ++unit) {
            const RowChunk chunk = chunk_of(op.gate, unit);
            float* y = op.y.row(0) + chunk.first;
            multiply_chunk(op.gate, 0, chunk, x, tokens, y, op.y.stride, s.buffers.of(worker));
            multiply_chunk(op.up, 0, chunk, x, tokens, up, kMaxChunkRows, s.buffers.of(worker));
            for (int64_t t = 0; t < tokens; ++t)
                activate(op.activation, y + t * op.y.stride, up + t * kMaxChunkRows, chunk.rows);
        }
    });
}

}  // namespace sparkinfer
