// activations.cuh — float32 rows as two planes of int8, in registers, as slab_mma.cuh wants them.
// v = rint(x · 32512 / max|x|) per group of 32; high plane (v + 128) >> 8, low plane v − 256 · high. Relative
// error 1.5e-5 of the group's greatest value: what the project calls 16-bit activations.
//
// A lane 4g + t makes column g of a chain's MMAs: eight columns of its row, 2t + {0, 1, 8, 9} + {0, 16} of
// its group. Lanes of even g make the high plane, the others the low one: C = 2, of group g / 2 of one token;
// C = 8, of token g / 2.
#pragma once
#include "cuda/lib/slab_mma.cuh"

namespace sparkinfer::cuda {

enum SlabMask {
    kMask4 = 1,
    kMask5 = 2,
    kMask6 = 4,
    kMask8 = 8,
    kMaskMore = 0xf0,  // Q4_0, Q4_1, IQ4_XS, MXFP4
    kMaskAll = 0xff
};
HD constexpr int slab_mask(SlabKind k) { return 1 << int(k); }

// The eight values of a lane: [16-column half][columns 0, 1, 8, 9 behind 2t].
struct ChainValues {
    float v[8];
};
template <int C>
__device__ __forceinline__ int chain_column(int chain, int lane) {
    return (C == 2 ? chain * 4 + (lane >> 3) : chain) * 32 + (lane & 3) * 2;
}
template <class Load>
__device__ __forceinline__ ChainValues load_chain(Load load, int column) {
    ChainValues c;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = load(column + (i >> 1) * 16 + (i & 1) * 8);
        c.v[2 * i] = two.x, c.v[2 * i + 1] = two.y;
    }
    return c;
}
__device__ __forceinline__ float2 load2_l2(const float* p) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float chain_squares(const ChainValues& c) {
    float sum = c.v[0] * c.v[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) sum = fmaf(c.v[i], c.v[i], sum);
    return sum;
}

// Column g of one chain: what its lanes (same g) have made.
struct ChainCodes {
    uint32_t x[2];
    float d;
    int sum;  // of the codes; kHalves: of the first 16 columns, plus 65,536 times that of the last
};
template <bool kHalves>
__device__ __forceinline__ ChainCodes quantise_chain(const ChainValues& c, bool low) {
    float greatest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) greatest = fmaxf(greatest, fabsf(c.v[i]));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 2));
    const float inverse = greatest > 0 ? __fdividef(32512.0f, greatest) : 0.0f;
    // Integers in a float's low bits; the high plane's bytes are the next ones, rounded.
    const float base = low ? 12582912.0f : 12582912.0f + 128.0f;
    const uint32_t bytes = low ? 0x0040 : 0x0051;
    ChainCodes q;
    int sum[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = __float_as_uint(fmaf(c.v[4 * h + i], inverse, base));
        q.x[h] = __byte_perm(__byte_perm(b[0], b[2], bytes), __byte_perm(b[1], b[3], bytes), 0x5410);
        sum[h] = __dp4a(int(q.x[h]), 0x01010101, 0);
    }
    q.sum = sum[0] + (kHalves ? 65536 : 1) * sum[1];
    q.sum += __shfl_xor_sync(0xffffffffu, q.sum, 1);
    q.sum += __shfl_xor_sync(0xffffffffu, q.sum, 2);
    q.d = greatest * (1.0f / 32512.0f);
    return q;
}
__device__ __forceinline__ bool makes_low_plane(int lane) { return lane & 4; }

// All lanes: the chain's codes where its MMAs want them.
template <int kMask, int C>
__device__ __forceinline__ void place_chain(Fragments<kMask, C>& f, int chain, const ChainCodes& q,
                                            int lane) {
    const int from = (lane & 3) * 8;  // a lane of column 2t; four further, one of 2t + 1
    f.x[chain][0] = q.x[0], f.x[chain][1] = q.x[1];
    f.d[chain] = __shfl_sync(0xffffffffu, q.d, from);
    const int high = __shfl_sync(0xffffffffu, q.sum, from), low = __shfl_sync(0xffffffffu, q.sum, from + 4);
    if constexpr (Fragments<kMask, C>::kHalves) {
        const int high0 = int16_t(high), low0 = int16_t(low);
        f.sum[chain][0] = high0 * 256 + low0;
        f.sum[chain][1] = (high - high0) / 65536 * 256 + (low - low0) / 65536;
    } else {
        f.sum[chain][0] = high * 256 + low;
    }
}

// Σx² over the item, of the lane's token, from chain_squares of its chains: one order for every C.
template <int C>
__device__ __forceinline__ float item_squares(const float (&squares)[C]) {
    float sum = 0, four[4];
    constexpr int kSums = C == 2 ? 1 : 4;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
        four[i] = squares[i] + squares[i + C / 2];
        four[i] += __shfl_xor_sync(0xffffffffu, four[i], 1);
        four[i] += __shfl_xor_sync(0xffffffffu, four[i], 2);
    }
    if (C == 2) {
        sum = four[0] + __shfl_xor_sync(0xffffffffu, four[0], 8);
        return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
    }
    return (four[0] + four[1]) + (four[2] + four[3]);
}

}  // namespace sparkinfer::cuda
