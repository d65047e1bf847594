// matrix_planes_weights.cuh — a tile of weights of any format, in shared memory as BF16: two planes, or one
// where its values need no more (planes_single).
//
// A tile is [rows, 32 columns], 64 bytes a row and plane, the four 16-byte chunks of a row at
// chunk ^ (row / 2 & 3): free of bank conflicts for ldmatrix and for eight lanes that write two rows.
#pragma once
#include "cuda/matrix_planes_decode.cuh"
#include "cuda/matrix_planes_pack.cuh"

namespace sparkinfer::cuda {

constexpr int kPlanesStep = 32;  // columns of a tile

__device__ __forceinline__ int tile_chunk_at(int row, int chunk) {
    return row * 64 + ((chunk ^ (row >> 1 & 3)) * 16);
}

// What the threads of a group fill: kRows rows of `w` from first_row on, columns from `column` on. Rows
// beyond the last repeat it.
struct WeightTile {
    Weight w;
    int expert, first_row, column;
    uint32_t high, low;  // shared addresses of the planes
};

template <int kRows, Quant kQuant>
__device__ __forceinline__ void fill_decoded(const WeightTile& t, int thread) {
    const int chunk = thread % 4, column = t.column + chunk * 8;
    uint4 high[4] = {}, low[4] = {};
    if (column < t.w.in) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const int row = (u * kRows + thread) / 4;
            float v[8];
            decode_eight<kQuant>(t.w, t.expert, min(t.first_row + row, t.w.out - 1), column, v);
            split_eight(v, high[u], low[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        const int at = tile_chunk_at((u * kRows + thread) / 4, chunk);
        store_shared16(t.high + at, high[u]);
        if constexpr (!planes_single(kQuant)) store_shared16(t.low + at, low[u]);
    }
}

__device__ __forceinline__ void store_shared2(uint32_t to, __nv_bfloat16 v) {
    asm volatile("st.shared.b16 [%0],%1;" ::"r"(to), "h"(__bfloat16_as_ushort(v)) : "memory");
}

// Any format and alignment, a column a lane: slow.
template <int kRows, Quant kQuant>
__device__ __forceinline__ void fill_elements(const WeightTile& t, int thread) {
    const int lane = thread % 32, column = t.column + lane;
#pragma unroll 1
    for (int row = thread / 32; row < kRows; row += kRows / 32) {
        const int from = min(t.first_row + row, t.w.out - 1);
        const float v = column < t.w.in ? element<Format<kQuant>>(t.w, t.expert, from, column) : 0.0f;
        const __nv_bfloat16 high = __float2bfloat16_rn(v);
        const int at = tile_chunk_at(row, lane / 8) + lane % 8 * 2;
        store_shared2(t.high + at, high);
        if constexpr (!planes_single(kQuant))
            store_shared2(t.low + at, __float2bfloat16_rn(v - __bfloat162float(high)));
    }
}

// 16 bytes a thread and turn. REQUIRES: aligned rows, `in` a multiple of 8.
template <int kRows>
__device__ __forceinline__ void fill_bf16(const WeightTile& t, int thread) {
    const int chunk = thread % 4;
    const bool wanted = t.column + chunk * 8 < t.w.in;
    const std::byte* data = static_cast<const std::byte*>(t.w.data);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        const int row = (u * kRows + thread) / 4;
        const int64_t at = weight_row(t.w, t.expert, min(t.first_row + row, t.w.out - 1)) * t.w.in + t.column;
        async_copy16(t.high + tile_chunk_at(row, chunk), wanted ? data + (at + chunk * 8) * 2 : data, wanted);
    }
}

template <int kRows>
__device__ __forceinline__ void fill_f16(const WeightTile& t, int thread) {
    const int chunk = thread % 4;
    const bool wanted = t.column + chunk * 8 < t.w.in;
    const std::byte* data = static_cast<const std::byte*>(t.w.data);
    uint4 raw[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        const int row = (u * kRows + thread) / 4;
        const int64_t at = weight_row(t.w, t.expert, min(t.first_row + row, t.w.out - 1)) * t.w.in + t.column;
        raw[u] = wanted ? __ldg(reinterpret_cast<const uint4*>(data + (at + chunk * 8) * 2)) : uint4{};
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        const int row = (u * kRows + thread) / 4;
        const uint32_t word[4] = {raw[u].x, raw[u].y, raw[u].z, raw[u].w};
        float v[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&word[i]));
            v[2 * i] = f.x, v[2 * i + 1] = f.y;
        }
        uint4 high, low;
        split_eight(v, high, low);
        store_shared16(t.high + tile_chunk_at(row, chunk), high);
        store_shared16(t.low + tile_chunk_at(row, chunk), low);
    }
}

__device__ __forceinline__ void store_shared8(uint32_t to, uint32_t a, uint32_t b) {
    asm volatile("st.shared.v2.b32 [%0],{%1,%2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}

// Four columns a thread and turn. REQUIRES: aligned rows, `in` a multiple of 8.
template <int kRows>
__device__ __forceinline__ void fill_f32(const WeightTile& t, int thread) {
    const int quad = thread % 8;
    const bool wanted = t.column + quad * 4 < t.w.in;
    const float* data = static_cast<const float*>(t.w.data);
    float4 raw[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
        const int row = (u * kRows + thread) / 8;
        const int64_t at = weight_row(t.w, t.expert, min(t.first_row + row, t.w.out - 1)) * t.w.in + t.column;
        raw[u] = wanted ? __ldg(reinterpret_cast<const float4*>(data + at + quad * 4)) : float4{};
    }
#pragma unroll
    for (int u = 0; u < 8; ++u) {
        const int row = (u * kRows + thread) / 8, at = tile_chunk_at(row, quad / 2) + quad % 2 * 8;
        uint32_t high[2], low[2];
        split_bf16(raw[u].x, raw[u].y, high[0], low[0]);
        split_bf16(raw[u].z, raw[u].w, high[1], low[1]);
        store_shared8(t.high + at, high[0], high[1]);
        store_shared8(t.low + at, low[0], low[1]);
    }
}

template <int kRows, Quant kQuant>
__device__ __forceinline__ void fill_format(const WeightTile& t, int thread) {
    if constexpr (Format<kQuant>::block == 1) {
        const bool aligned = reinterpret_cast<uintptr_t>(t.w.data) % (is_fp8(kQuant) ? 8 : 16) == 0;
        if (!aligned || t.w.in % 8) return fill_elements<kRows, kQuant>(t, thread);
    }
    if constexpr (kQuant == Quant::bf16)
        fill_bf16<kRows>(t, thread);
    else if constexpr (kQuant == Quant::f16)
        fill_f16<kRows>(t, thread);
    else if constexpr (kQuant == Quant::f32)
        fill_f32<kRows>(t, thread);
    else if constexpr (decodes_words<kQuant>())
        fill_decoded<kRows, kQuant>(t, thread);
    else
        fill_elements<kRows, kQuant>(t, thread);
}

// By the kRows threads of a group. kSingle: the format is planes_single, its low plane is left as it was.
template <int kRows, bool kSingle>
__device__ __forceinline__ void fill_weights(const WeightTile& t, int thread) {
    switch (t.w.quant) {
#define X(name, text, id)                                      \
    case Quant::name:                                          \
        if constexpr (planes_single(Quant::name) == kSingle)   \
            return fill_format<kRows, Quant::name>(t, thread); \
        break;
        FOREACH_QUANT(X)
#undef X
    }
}

}  // namespace sparkinfer::cuda
