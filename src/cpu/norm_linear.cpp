// norm_linear.cpp — up to four projections of the same normalised rows.   (ops.h: NormLinear)
#include <algorithm>

#include "cpu/matmul.h"

namespace sparkinfer {
namespace {

struct Scratch {
    NormedRows n;
    DecodeBuffers buffers;
    Scratch(Carver& c, const NormLinear& op, int threads)
        : n(c, op.norm, op.x.rows(), op.x.cols()), buffers(c, op.x.cols(), threads) {}
};

}  // namespace

int64_t scratch_bytes(const NormLinear& op, int threads) { return measure<Scratch>(op, threads); }

void run(const NormLinear& op, Context& context) {
    Scratch s(context.scratch, op, context.pool.threads());
    const ActivationRows x =
        s.n.compute(context.pool, op.x, op.eps, wanted(context, {&op.w[0], &op.w[1], &op.w[2], &op.w[3]}));
    int64_t first[kMaxParts + 1] = {};  // chunk at which each part begins
    for (int i = 0; i < op.parts; ++i) first[i + 1] = first[i] + chunks_of(op.w[i]);
    context.pool.parallel(first[op.parts], 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t unit = begin; unit < end; ++unit) {
            const int i = int(std::upper_bound(first, first + op.parts + 1, unit) - first) - 1;
            const RowChunk chunk = chunk_of(op.w[i], unit - first[i]);
            multiply_chunk(op.w[i], 0, chunk, x, op.x.rows(), op.y[i].row(0) + chunk.first, op.y[i].stride,
                           s.buffers.of(worker));
        }
    });
}

}  // namespace sparkinfer
