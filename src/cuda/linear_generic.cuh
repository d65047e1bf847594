// linear_generic.cuh — matrix products of any weight format, through its defining decoder.
// Computes   y[r,:] (+)= x[r,:] · W[e(r)]ᵀ
//            (ops.h: NormLinear, LinearAdd, LinearGlu, MoeGlu, MoeDownAdd, Output)
// Shapes     x [R, in] F32, rows x_stride apart   W [experts, out, in] any format   y [R, out] F32
// Mapping    a warp per weight row; dense: 8 rows of x at a time share the decoded weight; experts: one row
//            of x each.
// Memory     reads each weight ceil(R/8) times, element by element: slow, right, and there for every format.
// Limits     none on shapes; for dense products of up to kFewRows rows. sm_80+.
// Tested     tests/ops against cpu/.
#pragma once
#include <span>

#include "cuda/launch.h"
#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"
#include "cuda/matrix_planes.h"
#include "quant/formats.h"

namespace sparkinfer::cuda {

template <class F>
__device__ __forceinline__ float element(const Weight& w, int expert, int row, int col) {
    if constexpr (F::split) {
        return F::decode(w, expert, row, col);
    } else {
        const int64_t blocks = w.in / F::block;
        const std::byte* b = static_cast<const std::byte*>(w.data) +
                             (weight_row(w, expert, row) * blocks + col / F::block) * F::bytes;
        return F::decode_block(b, col % F::block);
    }
}

struct GenericLinear {
    const float* x;
    float* y;
    int64_t x_stride, y_stride;
    Weight w;
    const int32_t* experts;  // [R] expert of each row of y, -1: skip the row; null: dense
    int32_t rows;            // R
    int32_t rows_per_x;      // rows of y that read one row of x (K of an expert op's gate and up; else 1)
    bool add;
    // Rows of x that lie inner_stride apart inside each x_stride (K of an expert op's down; else 1).
    int32_t inner = 1;
    int32_t inner_stride = 0;
    __device__ const float* x_row(int row) const {
        row /= rows_per_x;
        return x + row / inner * x_stride + row % inner * inner_stride;
    }
};

constexpr int kGenericTile = 8, kGenericWarps = 8;

// Kernel     linear_generic: 48 registers
template <class F>
__global__ void __launch_bounds__(kGenericWarps * 32) linear_generic(const GenericLinear p) {
    wait_for_predecessor();
    const int lane = threadIdx.x % 32, row = blockIdx.x * kGenericWarps + threadIdx.x / 32;
    if (row >= p.w.out) return;
    const int tile = p.experts ? 1 : kGenericTile, first = blockIdx.y * tile;
    const int expert = p.experts ? p.experts[first] : 0;
    if (expert < 0) return;
    float sum[kGenericTile] = {};
    for (int k = lane; k < p.w.in; k += 32) {
        const float v = element<F>(p.w, expert, row, k);
#pragma unroll
        for (int i = 0; i < kGenericTile; ++i)
            if (i < tile && first + i < p.rows) sum[i] += v * p.x_row(first + i)[k];
    }
    const float factor = p.w.scale_count == 0 ? 1.0f : p.w.scale[p.w.scale_count == 1 ? 0 : expert];
#pragma unroll
    for (int i = 0; i < kGenericTile; ++i) {
        if (i >= tile || first + i >= p.rows) break;
        // Rounded here: a row must not depend on where the compiler fuses the product with the addition.
        const float v = __fmul_rn(warp_sum(sum[i]), factor);
        float* y = p.y + (first + i) * p.y_stride + row;
        if (lane == 0) *y = p.add ? __fadd_rn(*y, v) : v;
    }
}

// linear_dense.cuh, for matrices of plain floats that read the same rows of x. False: they do not suit it,
// and nothing was added.
bool add_linear_dense(Lowering& l, std::span<const GenericLinear> parts);

// Products that read the same rows of x: many rows in planes (matrix_planes.h), few by the dense form or one
// after the other.
void add_linears_generic(Lowering& l, std::span<const GenericLinear> parts);
inline void add_linear_generic(Lowering& l, const GenericLinear& p) { add_linears_generic(l, {&p, 1}); }

// y[t] = x[t] / sqrt(mean(x²) + eps) · norm, a block per row.
struct RmsNorm {
    const float* x;
    int64_t x_stride;
    const float* norm;
    float* y;  // [T, D] dense
    int32_t width;
    float eps;
    const int32_t* gather;  // [rows] source row of each row; null: its own
};
void add_rms_norm(Lowering& l, int32_t rows, const RmsNorm& p);

// Dense products of `rows`, normed; the parts' own x is not looked at.
void add_normed_linears(Lowering& l, const PlaneRows& rows, std::span<GenericLinear> parts);

}  // namespace sparkinfer::cuda
