// linear_slab_dense.cuh — the plain-float parts of an op whose other parts are slabs: a router beside a
// shared expert. Blocks of the same kernel, linear_slab.cuh.
#pragma once
#include "cuda/linear_slab_call.cuh"

namespace sparkinfer::cuda {

// Four values of a 16-bit row. REQUIRES: 4 divides i and the row's length.
__device__ __forceinline__ float4 dense_four(const DensePart& d, int64_t i) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(d.data) + i));
    if (d.quant == Quant::bf16)
        return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                           __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
    const float2 a = half2_floats(v.x), b = half2_floats(v.y);
    return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ float4 load4_l2(const float* p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// kDenseRows rows of the plain-float parts: two warps share a row. The gains and its first 2048 columns come
// before the wait. `red`: [8 warps][kRows].
template <int kRows>
__device__ __forceinline__ void dense_rows(const SlabLinear& p, int block, float2* red) {
    constexpr int kFours = 8, kStep = 256;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lane64 = warp % 2 * 32 + lane;
    int row = block * kDenseRows + warp / 2, i = 0;
    const bool there = row < p.dense_rows;
#pragma unroll 1
    while (there && row >= p.dense[i].out) row -= p.dense[i++].out;
    const DensePart& d = p.dense[i];
    const int64_t at = int64_t(there ? row : 0) * p.columns;
    float4 w[kFours];
    const auto fetch = [&](int first) {
        if (d.quant == Quant::f32) {
#pragma unroll
            for (int j = 0; j < kFours; ++j)
                w[j] = first + j * kStep < p.columns
                           ? __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(d.data) + at +
                                                                   first + j * kStep))
                           : make_float4(0, 0, 0, 0);
        } else {
#pragma unroll
            for (int j = 0; j < kFours; ++j)
                w[j] = first + j * kStep < p.columns ? dense_four(d, at + first + j * kStep)
                                                     : make_float4(0, 0, 0, 0);
        }
        if (!p.norm) return;
#pragma unroll
        for (int j = 0; j < kFours; ++j) {
            if (first + j * kStep >= p.columns) break;
            const float4 gain = __ldg(reinterpret_cast<const float4*>(p.norm + first + j * kStep));
            w[j].x *= gain.x, w[j].y *= gain.y, w[j].z *= gain.z, w[j].w *= gain.w;
        }
    };
    fetch(lane64 * 4);
    wait_for_predecessor();
    float sum[kRows] = {}, squares[kRows] = {};
#pragma unroll 1
    for (int first = lane64 * 4; first < p.columns; first += kFours * kStep) {
        if (first >= kFours * kStep) fetch(first);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float* from = source_row(p, r);
            float4 v[kFours];
#pragma unroll
            for (int j = 0; j < kFours; ++j)
                v[j] = from && first + j * kStep < p.columns ? load4_l2(from + first + j * kStep)
                                                             : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < kFours; ++j) {
                sum[r] = fmaf(w[j].x, v[j].x,
                              fmaf(w[j].y, v[j].y, fmaf(w[j].z, v[j].z, fmaf(w[j].w, v[j].w, sum[r]))));
                squares[r] =
                    fmaf(v[j].x, v[j].x,
                         fmaf(v[j].y, v[j].y, fmaf(v[j].z, v[j].z, fmaf(v[j].w, v[j].w, squares[r]))));
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const float2 v = make_float2(warp_sum(sum[r]), warp_sum(squares[r]));
        if (lane == 0) red[warp * kRows + r] = v;
    }
    named_barrier(1, kSlabWarps * 32);
    if (!there || warp % 2 != 0 || lane >= p.rows) return;
    const float2 *a = red + warp * kRows + lane, *b = a + kRows;
    const float squared = a->y + b->y;
    const float rms = !p.norm          ? 1.0f
                      : isinf(squared) ? rms_of_large(source_row(p, lane), p.columns)
                                       : rsqrtf(fmaf(squared, p.inverse_columns, p.eps));
    d.y[lane * d.y_stride + row] = (a->x + b->x) * rms;
}

}  // namespace sparkinfer::cuda
