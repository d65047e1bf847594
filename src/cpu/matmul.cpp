#include "cpu/matmul.h"

#include <algorithm>

#include "cpu/decode_rows.h"
#include "cpu/dot.h"
#include "cpu/integer_products.h"
#include "cpu/math.h"
#include "quant/decode.h"

namespace sparkinfer {
namespace {

constexpr int64_t kChunkBytes = 128 << 10;
constexpr int kFewTokens = 8;
constexpr int kFewest = 2;  // up to so many, packing takes longer than multiplying

int64_t padded(int64_t k) { return (k + 15) / 16 * 16; }

}  // namespace

int chunk_rows(int64_t k) {
    return int(std::clamp<int64_t>(kChunkBytes / (4 * k) / kTileRows * kTileRows, kTileRows, kMaxChunkRows));
}

DecodeBuffers::DecodeBuffers(Carver& c, int64_t most_k, int threads)
    // The most that any width up to most_k takes; 16 more floats a row, where widths are padded. Packed tiles
    // fit in it.
    : each(std::max(kChunkBytes / 4, kTileRows * most_k) + 16 * kMaxChunkRows),
      values(c.take<float>(each * threads)) {}

RowChunk chunk_of(const Weight& w, int64_t chunk) {
    const int rows = chunk_rows(w.in), first = int(chunk) * rows;
    return {first, std::min(rows, w.out - first)};
}

RowSpace::RowSpace(Carver& c, int64_t count, int64_t row_width)
    : width(row_width),
      values(c.take<const float*>(count)),
      integers(c.take<const IntegerGroup*>(count)),
      groups_(c.take<IntegerGroup>(count * (width / kGroup))) {
    if (!integers) return;
    for (int64_t t = 0; t < count; ++t) integers[t] = groups_ + t * (width / kGroup);
}

void RowSpace::convert(int64_t begin, int64_t end, Activations kind) const {
    if (kind == Activations::f32) return;
    for (int64_t t = begin; t < end; ++t)
        make_integers(values[t], width, kind, groups_ + t * (width / kGroup));
}

void RowSpace::convert(Pool& pool, int64_t count, Activations kind) const {
    if (kind == Activations::f32) return;
    pool.parallel(count, 4, [&](int64_t begin, int64_t end, int) { convert(begin, end, kind); });
}

Activations wanted(const Context& context, std::initializer_list<const Weight*> weights) {
    for (const Weight* w : weights)
        if (w->data && has_integer_form(*w)) return context.activations;
    return Activations::f32;
}

namespace {

// With few rows of x each tile is used once, and it is reading the weights that takes time: the next tile is
// asked for while one is packed or multiplied, whichever takes longer. With many, a few rows of x at a time
// stay in the first-level cache for all tiles.
void multiply_integers(const Weight& w, int expert, RowChunk chunk, const ActivationRows& x, int tokens,
                       float* out, int64_t out_stride, PackedGroup* tiles) {
    TileProduct p{};
    p.halves = has_half_scales(w.quant);
    p.planes = x.kind == Activations::int16;
    p.out_stride = out_stride;
    const int groups = w.in / kGroup, together = tokens <= kFewTokens ? kTileRows : chunk.rows;
    for (int at = 0; at < chunk.rows; at += together)
        for (p.first_group = 0; p.first_group < groups; p.first_group += kTileGroups) {
            const int end = std::min(at + together, chunk.rows);
            TilePlace place{expert, 0, 0, p.first_group, std::min(kTileGroups, groups - p.first_group)};
            p.groups = place.groups;
            NextTile fetched;
            for (int r = at; r < end; r += kTileRows) {
                place.row = chunk.first + r;
                place.rows = std::min(kTileRows, end - r);
                if (tokens <= kFewTokens) (tokens <= kFewest ? fetched : p.next) = next_tile(w, place);
                pack_tile(w, place, tiles + (r - at) / kTileRows * kTileGroups, fetched);
            }
            for (int t = 0; t < tokens; t += kFewTokens) {
                p.tokens = std::min(kFewTokens, tokens - t);
                p.x = x.integers + t;
                for (int r = at; r < end; r += kTileRows) {
                    p.tile = tiles + (r - at) / kTileRows * kTileGroups;
                    p.rows = std::min(kTileRows, end - r);
                    p.out = out + t * out_stride + r;
                    multiply_tile(p);
                }
            }
        }
}

}  // namespace

void multiply_chunk(const Weight& w, int expert, RowChunk chunk, const ActivationRows& x, int tokens,
                    float* out, int64_t out_stride, float* buffer) {
    if (x.kind != Activations::f32 && has_integer_form(w))
        return multiply_integers(w, expert, chunk, x, tokens, out, out_stride,
                                 reinterpret_cast<PackedGroup*>(buffer));
    const int64_t stride = padded(w.in);
    if (tokens <= kFewTokens) {  // eight rows at a time stay in the first-level cache
        for (int r = 0; r < chunk.rows; r += 8) {
            const int rows = std::min(8, chunk.rows - r);
            decode_rows(w, expert, chunk.first + r, rows, buffer, stride);
            dot_rows(buffer, stride, rows, x.values, tokens, w.in, out + r, out_stride);
        }
        return;
    }
    decode_rows(w, expert, chunk.first, chunk.rows, buffer, stride);
    dot_rows(buffer, stride, chunk.rows, x.values, tokens, w.in, out, out_stride);
}

VectorParameter::VectorParameter(Carver& c, const Weight& w)
    : values(w.data ? c.take<float>(int64_t(w.out) * w.in) : nullptr) {
    if (!values) return;
    for (int r = 0; r < w.out; ++r) decode_row(w, 0, r, values + int64_t(r) * w.in);
}

NormedRows::NormedRows(Carver& c, const Weight& weight, int64_t count, int64_t width)
    : norm(c, weight), values(c.take<float>(count * width)), space(c, count, width) {
    if (!values) return;
    for (int64_t t = 0; t < count; ++t) space.values[t] = values + t * width;
}

ActivationRows NormedRows::compute(Pool& pool, const Tensor& x, float eps, Activations kind) {
    const int64_t width = x.cols();
    pool.parallel(x.rows(), 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) rms_norm(x.row(t), norm.values, width, eps, values + t * width);
        space.convert(begin, end, kind);
    });
    return space.rows(kind);
}

TensorRows::TensorRows(Carver& c, const Tensor& x) : space(c, x.rows(), x.cols()) {
    if (!space.values) return;
    for (int64_t t = 0; t < x.rows(); ++t) space.values[t] = x.row(t);
}

}  // namespace sparkinfer
