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

// kDenseRows rows of the plain-float parts, all of them by each of eight warps, which share their columns.
// The gains and the first 2048 columns of the weights come before the wait. `red`: [8
// warps][kRows][kDenseRows + 1].
template <int kRows>
__device__ __forceinline__ void dense_rows(const SlabLinear& p, int block, float* red) {
    constexpr int kFours = 2, kStep = kSlabWarps * 256, kSums = kDenseRows + 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto part_of_row = [&](int i, int& row) {  // null: there is no such row
        row = block * kDenseRows + i;
        if (row >= p.dense_rows) return static_cast<const DensePart*>(nullptr);
        int part = 0;
#pragma unroll 1
        while (row >= p.dense[part].out) row -= p.dense[part++].out;
        return &p.dense[part];
    };
    float4 w[kDenseRows][kFours];
    const auto fetch = [&](int first) {
#pragma unroll
        for (int i = 0; i < kDenseRows; ++i) {
            int row;
            const DensePart* d = part_of_row(i, row);
#pragma unroll
            for (int j = 0; j < kFours; ++j) {
                const int k = first + j * 128;
                w[i][j] = make_float4(0, 0, 0, 0);
                if (!d || k >= p.columns) continue;
                const int64_t at = int64_t(row) * p.columns + k;
                w[i][j] =
                    d->quant == Quant::f32
                        ? __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(d->data) + at))
                        : dense_four(*d, at);
            }
        }
#pragma unroll
        for (int j = 0; j < kFours; ++j) {
            if (!p.norm || first + j * 128 >= p.columns) break;
            const float4 gain = __ldg(reinterpret_cast<const float4*>(p.norm + first + j * 128));
#pragma unroll
            for (int i = 0; i < kDenseRows; ++i)
                w[i][j].x *= gain.x, w[i][j].y *= gain.y, w[i][j].z *= gain.z, w[i][j].w *= gain.w;
        }
    };
    fetch(warp * 256 + lane * 4);
    wait_for_predecessor();
    float sum[kRows][kSums] = {};  // and Σx²
#pragma unroll 1
    for (int first = warp * 256 + lane * 4; first < p.columns; first += kStep) {
        if (first >= kStep) fetch(first);
        const auto add = [](float4 a, float4 b, float sum) {
            return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
        };
        constexpr int kAtOnce = kRows < 4 ? kRows : 4;  // more do not fit the registers
#pragma unroll
        for (int some = 0; some < kRows; some += kAtOnce) {
            float4 v[kAtOnce][kFours];
#pragma unroll
            for (int r = 0; r < kAtOnce; ++r) {
                const float* from = source_row(p, some + r);
#pragma unroll
                for (int j = 0; j < kFours; ++j)
                    v[r][j] = from && first + j * 128 < p.columns ? load4_l2(from + first + j * 128)
                                                                  : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
                for (int j = 0; j < kFours; ++j) {
                    float* to = sum[some + r];
#pragma unroll
                    for (int i = 0; i < kDenseRows; ++i) to[i] = add(w[i][j], v[r][j], to[i]);
                    to[kDenseRows] = add(v[r][j], v[r][j], to[kDenseRows]);
                }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const float v = warp_sum(sum[r][i]);
            if (lane == 0) red[(warp * kRows + r) * kSums + i] = v;
        }
    named_barrier(1, kSlabWarps * 32);
    const int r = int(threadIdx.x) / kDenseRows, i = int(threadIdx.x) % kDenseRows;
    int row;
    const DensePart* d = part_of_row(i, row);
    if (r >= p.rows || !d) return;
    float total = 0, squared = 0;
#pragma unroll
    for (int of = 0; of < kSlabWarps; ++of) {
        total += red[(of * kRows + r) * kSums + i];
        squared += red[(of * kRows + r) * kSums + kDenseRows];
    }
    const float rms = !p.norm          ? 1.0f
                      : isinf(squared) ? rms_of_large(source_row(p, r), p.columns)
                                       : rsqrtf(fmaf(squared, p.inverse_columns, p.eps));
    d->y[r * d->y_stride + row] = total * rms;
}

}  // namespace sparkinfer::cuda
