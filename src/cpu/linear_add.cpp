// linear_add.cpp — a projection added to the residual stream.   (ops.h: LinearAdd)
#include "cpu/matmul.h"

namespace sparkinfer {
namespace {

struct Scratch {
    TensorRows x;
    DecodeBuffers buffers;
    float* products;  // [threads, T, kMaxChunkRows]
    Scratch(Carver& c, const LinearAdd& op, int threads)
        : x(c, op.x),
          buffers(c, op.x.cols(), threads),
          products(c.take<float>(int64_t(threads) * op.x.rows() * kMaxChunkRows)) {}
};

}  // namespace

int64_t scratch_bytes(const LinearAdd& op, int threads) { return measure<Scratch>(op, threads); }

void run(const LinearAdd& op, Context& context) {
    Scratch s(context.scratch, op, context.pool.threads());
    const int tokens = op.x.rows();
    const Activations kind = wanted(context, {&op.w});
    s.x.space.convert(context.pool, tokens, kind);
    const ActivationRows x = s.x.space.rows(kind);
    context.pool.parallel(chunks_of(op.w), 1, [&](int64_t begin, int64_t end, int worker) {
        float* products = s.products + int64_t(worker) * tokens * kMaxChunkRows;
        for (int64_t unit = begin; unit < end; ++unit) {
            const RowChunk chunk = chunk_of(op.w, unit);
            multiply_chunk(op.w, 0, chunk, x, tokens, products, kMaxChunkRows, s.buffers.of(worker));
            for (int t = 0; t < tokens; ++t) {
                float* y = op.y.row(t) + chunk.first;
                for (int r = 0; r < chunk.rows; ++r) y[r] += products[int64_t(t) * kMaxChunkRows + r];
            }
        }
    });
}

}  // namespace sparkinfer
