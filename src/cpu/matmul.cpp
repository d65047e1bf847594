#include "cpu/matmul.h"

#include <algorithm>

#include "cpu/decode_rows.h"
#include "cpu/dot.h"
#include "cpu/math.h"
#include "quant/decode.h"

namespace sparkinfer {
namespace {

constexpr int64_t kChunkBytes = 128 << 10;
constexpr int kFewTokens = 8;

int64_t padded(int64_t k) { return (k + 15) / 16 * 16; }

}  // namespace

int chunk_rows(int64_t k) {
    return int(std::clamp<int64_t>(kChunkBytes / (4 * k) / 8 * 8, 8, kMaxChunkRows));
}

DecodeBuffers::DecodeBuffers(Carver& c, int64_t most_k, int threads)
    // The most that any width up to most_k takes; 16 more floats a row, where widths are padded.
    : each(std::max(kChunkBytes / 4, 8 * most_k) + 16 * kMaxChunkRows),
      values(c.take<float>(each * threads)) {}

RowChunk chunk_of(const Weight& w, int64_t chunk) {
    const int rows = chunk_rows(w.in), first = int(chunk) * rows;
    return {first, std::min(rows, w.out - first)};
}

void multiply_chunk(const Weight& w, int expert, RowChunk chunk, const float* const* x, int tokens,
                    float* out, int64_t out_stride, float* buffer) {
    const int64_t stride = padded(w.in);
    if (tokens <= kFewTokens) {  // eight rows at a time stay in the first-level cache
        for (int r = 0; r < chunk.rows; r += 8) {
            const int rows = std::min(8, chunk.rows - r);
            decode_rows(w, expert, chunk.first + r, rows, buffer, stride);
            dot_rows(buffer, stride, rows, x, tokens, w.in, out + r, out_stride);
        }
        return;
    }
    decode_rows(w, expert, chunk.first, chunk.rows, buffer, stride);
    dot_rows(buffer, stride, chunk.rows, x, tokens, w.in, out, out_stride);
}

VectorParameter::VectorParameter(Carver& c, const Weight& w)
    : values(w.data ? c.take<float>(int64_t(w.out) * w.in) : nullptr) {
    if (!values) return;
    for (int r = 0; r < w.out; ++r) decode_row(w, 0, r, values + int64_t(r) * w.in);
}

NormedRows::NormedRows(Carver& c, const Weight& weight, int64_t count, int64_t width)
    : norm(c, weight), values(c.take<float>(count * width)), rows(c.take<const float*>(count)) {
    if (!rows) return;
    for (int64_t t = 0; t < count; ++t) rows[t] = values + t * width;
}

void NormedRows::compute(Pool& pool, const Tensor& x, float eps) {
    const int64_t width = x.cols();
    pool.parallel(x.rows(), 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) rms_norm(x.row(t), norm.values, width, eps, values + t * width);
    });
}

RowPointers::RowPointers(Carver& c, const Tensor& x) : rows(c.take<const float*>(x.rows())) {
    if (!rows) return;
    for (int64_t t = 0; t < x.rows(); ++t) rows[t] = x.row(t);
}

}  // namespace sparkinfer
