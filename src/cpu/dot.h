// dot.h — the inner loop of every matrix product here: dot products of float32 rows.
//
// One result is computed the same way whatever else is computed with it: columns in blocks of 1024; within a
// block 16 partial sums, of the columns that are equal modulo 16, each in ascending order, added as a fixed
// tree; blocks added in float64. So its bits depend on its two rows (and on whether the machine has a fused
// multiply-add), on nothing else.
#pragma once
#include <cstdint>

namespace sparkinfer {

// out[c * out_stride + r] = Σ_i w[r * w_stride + i] · x[c][i]    r < rows, c < columns, i < k
void dot_rows(const float* w, int64_t w_stride, int rows, const float* const* x, int columns, int64_t k,
              float* out, int64_t out_stride);

}  // namespace sparkinfer
