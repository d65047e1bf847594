// linear_dense.cuh — matrix products with plain floats: F32, F16 and BF16 weights, float32 activations.
// Computes   y[r,:] (+)= x[r,:] · W[e(r)]ᵀ for up to kMaxParts matrices that read the same x
//            (ops.h: NormLinear, LinearAdd, LinearGlu, MoeGlu, MoeDownAdd, Output)
// Shapes     x [R, K] F32, K a multiple of 8   W [experts, out, K], rows 16-byte aligned   y [R, out] F32
// Mapping    a tile is 4 rows of one matrix; 1…8 warps share its columns, each with every n-th run of 256,
//            eight columns a lane; up to 4 rows of x at a time (experts: one). Shares add in one order.
// Memory     weights once per 4 rows of x, straight to registers, the first two runs before the dependency
//            wait; x from the first-level cache. Floor = weight bytes / bandwidth.
// Limits     sums are float32 FMAs in an order that depends on the shape alone: a row's bits are the same in
//            any company. T = 4: 128 registers at most. sm_80+.
// Numbers    not measured yet
// Tested     tests/ops against float64.
#pragma once
#include <cuda_fp16.h>

#include "cuda/linear_generic.cuh"

namespace sparkinfer::cuda {

constexpr int kDenseTile = 4, kDenseWarps = 8, kDenseRun = 256;

struct DenseMatrix {
    const std::byte* data;
    const float* scale;  // Weight::scale
    float* y;
    int64_t y_stride;
    int64_t expert_rows;
    int32_t out, tiles, scale_count;
};
struct LinearDense {
    GenericLinear of;  // x and how its rows are found; w and y are in `part`
    DenseMatrix part[kMaxParts];
    int32_t parts, tiles, columns;
    int32_t split;  // warps that share a tile: 1, 2, 4 or 8
};

// Eight weights of a lane as the file has them, and as floats.
template <Quant kQuant>
struct DenseEight {
    static constexpr int kBytes = kQuant == Quant::f32 ? 4 : 2;
    uint4 raw[kBytes / 2];
    __device__ __forceinline__ void fetch(const std::byte* p) {
#pragma unroll
        for (int i = 0; i < kBytes / 2; ++i) raw[i] = __ldg(reinterpret_cast<const uint4*>(p) + i);
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kBytes / 2; ++i) raw[i] = make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void floats(float (&v)[8]) const {
        if constexpr (kQuant == Quant::f32) {
            const uint32_t w[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w,
                                   raw[1].x, raw[1].y, raw[1].z, raw[1].w};
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = __uint_as_float(w[i]);
        } else {
            const uint32_t w[4] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 f =
                    kQuant == Quant::f16
                        ? __half22float2(*reinterpret_cast<const __half2*>(&w[i]))
                        : make_float2(__uint_as_float(w[i] << 16), __uint_as_float(w[i] & 0xffff0000u));
                v[2 * i] = f.x;
                v[2 * i + 1] = f.y;
            }
        }
    }
};

// Kernel     linear_dense: 128 registers, 512 bytes
template <Quant kQuant, int kTokens>
__global__ void __launch_bounds__(kDenseWarps * 32) linear_dense(const __grid_constant__ LinearDense p) {
    using Eight = DenseEight<kQuant>;
    constexpr int kStages = kQuant == Quant::f32 ? 1 : 2, kSums = kDenseTile * kTokens;
    __shared__ float share[kDenseWarps][kSums];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = warp % p.split;
    int tile = (blockIdx.x * kDenseWarps + warp) / p.split, i = 0;
    const bool there = tile < p.tiles;
    if (!there) tile = p.tiles - 1;
    while (tile >= p.part[i].tiles) tile -= p.part[i++].tiles;
    const DenseMatrix& m = p.part[i];
    const int row = tile * kDenseTile, rows = min(kDenseTile, m.out - row), first = blockIdx.y * kTokens;
    const int64_t row_bytes = int64_t(p.columns) * Eight::kBytes;
    const std::byte* weights = m.data + row * row_bytes + lane * 8 * Eight::kBytes;
    const int runs = (p.columns + kDenseRun - 1) / kDenseRun;
    Eight w[kStages][kDenseTile];
    const auto fetch = [&](int run, Eight(&to)[kDenseTile]) {
        const bool inside = run * kDenseRun + lane * 8 < p.columns;
#pragma unroll
        for (int j = 0; j < kDenseTile; ++j) {
            if (inside)
                to[j].fetch(weights + min(j, rows - 1) * row_bytes +
                            int64_t(run) * kDenseRun * Eight::kBytes);
            else
                to[j].clear();
        }
    };
    int expert = 0;
    if (p.of.experts) {
        wait_for_predecessor();
        expert = p.of.experts[first];
        if (expert < 0) return;  // the whole block's
        weights += expert * m.expert_rows * row_bytes;
    }
#pragma unroll
    for (int s = 0; s < kStages; ++s) fetch(own + s * p.split, w[s]);
    if (!p.of.experts) wait_for_predecessor();
    const float* x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) x[t] = p.of.x_row(min(first + t, p.of.rows - 1)) + lane * 8;
    float sum[kDenseTile][kTokens] = {};
    for (int run = own; run < runs; run += kStages * p.split) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            const int now = run + s * p.split, k = now * kDenseRun;
            if (k + lane * 8 < p.columns) {
                float v[kDenseTile][8];
#pragma unroll
                for (int j = 0; j < kDenseTile; ++j) w[s][j].floats(v[j]);
#pragma unroll
                for (int t = 0; t < kTokens; ++t) {
                    const float4 a = *reinterpret_cast<const float4*>(x[t] + k),
                                 b = *reinterpret_cast<const float4*>(x[t] + k + 4);
                    const float f[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                    for (int j = 0; j < kDenseTile; ++j)
#pragma unroll
                        for (int c = 0; c < 8; ++c) sum[j][t] = fmaf(v[j][c], f[c], sum[j][t]);
                }
            }
            fetch(now + kStages * p.split, w[s]);
        }
    }
#pragma unroll
    for (int j = 0; j < kDenseTile; ++j)
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            const float v = warp_sum(sum[j][t]);
            if (lane == 0) share[warp][j * kTokens + t] = v;
        }
    __syncthreads();
    const int j = lane / kTokens, t = lane % kTokens;
    if (!there || own || j >= rows || first + t >= p.of.rows) return;
    float v = share[warp][lane];
    for (int n = 1; n < p.split; ++n) v += share[warp + n][lane];
    if (m.scale_count) v = __fmul_rn(v, m.scale[m.scale_count == 1 ? 0 : expert]);
    float* y = m.y + (first + t) * m.y_stride + row + j;
    *y = p.of.add ? __fadd_rn(*y, v) : v;
}

}  // namespace sparkinfer::cuda
