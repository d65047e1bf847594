// matrix_planes_pack.cuh — rows of float32 as two planes of BF16, for matrix_planes.
// Computes   n = x, or x / sqrt(mean(x²) + eps) · norm;  n = high + low to 2^-18; n · dot in float32
// Shapes     x [R, K] F32   norm [K]   to: PackedRows of two planes (packed_rows.cuh)
// Mapping    kThreads a row, a warp or a block; a thread takes every kThreads-th run of eight columns and
// keeps
//            the first kKept of them in registers.
// Memory     reads 4·R·K bytes, what is not kept a second time from the caches, and writes as many a place.
// Limits     none on shapes and alignment; columns beyond K become zeros, places of no row keep what they
//            were. sm_80+.
// Tested     tests/ops/linear_many.cpp
#pragma once
#include "cuda/lib/math.cuh"
#include "cuda/lib/mma_bf16.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"
#include "cuda/matrix_planes.h"

namespace sparkinfer::cuda {

struct PackPlanes {
    PlaneRows from;
    PackedRows to;
    const int32_t* place;  // [rows · copies] null: row t goes to t
    int32_t copies;
};

constexpr int kPackThreads = 256;

// Columns first … first + 7 of a row, zeros beyond its end.
__device__ __forceinline__ void load_eight(const float* x, int first, int columns, bool vectors,
                                           float (&v)[8]) {
    if (vectors && first + 8 <= columns) {
        const float4 a = *reinterpret_cast<const float4*>(x + first),
                     b = *reinterpret_cast<const float4*>(x + first + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = first + i < columns ? x[first + i] : 0.0f;
    }
}

__device__ __forceinline__ void split_eight(const float (&v)[8], uint4& high, uint4& low) {
    split_bf16(v[0], v[1], high.x, low.x);
    split_bf16(v[2], v[3], high.y, low.y);
    split_bf16(v[4], v[5], high.z, low.z);
    split_bf16(v[6], v[7], high.w, low.w);
}

// Kernel     pack_planes: 128 registers, 256 bytes
template <int kThreads, int kKept>
__global__ void __launch_bounds__(kPackThreads) pack_planes(const PackPlanes p) {
    __shared__ double part[32];
    wait_for_predecessor();
    let_successor_start();
    const PlaneRows& f = p.from;
    const int row = kThreads == 32 ? blockIdx.x * (kPackThreads / 32) + threadIdx.x / 32 : blockIdx.x,
              own = threadIdx.x % kThreads, chunks = p.to.columns / 8;
    if (row >= f.rows) return;  // whole warps
    const float* x =
        f.x + (f.gather ? f.gather[row] : row / f.inner) * f.x_stride + row % f.inner * f.inner_stride;
    const bool vectors = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    float kept[kKept][8], scale = 1;
#pragma unroll
    for (int i = 0; i < kKept; ++i)
        if (own + i * kThreads < chunks) load_eight(x, (own + i * kThreads) * 8, f.columns, vectors, kept[i]);
    const auto each_chunk = [&](auto&& body) {
#pragma unroll
        for (int i = 0; i < kKept; ++i)
            if (own + i * kThreads < chunks) body(own + i * kThreads, kept[i]);
        for (int c = own + kKept * kThreads; c < chunks; c += kThreads) {
            float v[8];
            load_eight(x, c * 8, f.columns, vectors, v);
            body(c, v);
        }
    };
    if (f.norm) {
        // In float64, as on the CPU: the square of a float does not always fit a float.
        double sum = 0;
        each_chunk([&](int, const float(&v)[8]) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += double(v[i]) * double(v[i]);
        });
        sum = kThreads == 32 ? warp_sum(sum) : block_sum(sum, part);
        scale = inverse_root(sum / double(f.columns) + double(f.eps));
    }
    const bool norm_vectors = reinterpret_cast<uintptr_t>(f.norm) % 16 == 0,
               dot_vectors = reinterpret_cast<uintptr_t>(f.dot) % 16 == 0;
    float dot = 0;
    each_chunk([&](int c, const float(&from)[8]) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = from[i];
        if (f.norm) {
            float n[8];
            load_eight(f.norm, c * 8, f.columns, norm_vectors, n);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = v[i] * scale * n[i];
        }
        if (kThreads == 32 && f.dot) {
            float w[8];
            load_eight(f.dot, c * 8, f.columns, dot_vectors, w);
#pragma unroll
            for (int i = 0; i < 8; ++i) dot = fmaf(v[i], w[i], dot);
        }
        uint4 high, low;
        split_eight(v, high, low);
        for (int i = 0; i < p.copies; ++i) {
            const int to = p.place ? p.place[int64_t(row) * p.copies + i] : row;
            if (to < 0) continue;
            std::byte* at = p.to.data + p.to.chunk_at(to, c);
            *reinterpret_cast<uint4*>(at) = high;
            *reinterpret_cast<uint4*>(at + p.to.plane_bytes()) = low;
        }
    });
    if (kThreads == 32 && f.dot) {
        dot = warp_sum(dot);
        if (own == 0) f.dot_y[row * f.dot_stride] = dot;
    }
}

}  // namespace sparkinfer::cuda
