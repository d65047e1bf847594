// activations.cuh — float32 rows as two planes of int8, in the order slab_mma.cuh wants.
// v = rint(x · 32512 / max|x|) per group of 32; high plane (v + 128) >> 8, low plane v − 256 · high. Relative
// error 1.5e-5 of the group's greatest value: what the project calls 16-bit activations.
#pragma once
#include "cuda/lib/slab_mma.cuh"

namespace sparkinfer::cuda {

enum SlabMask {
    kMask4 = 1,
    kMask5 = 2,
    kMask6 = 4,
    kMask8 = 8,
    kMaskMore = 0xf0,  // Q4_0, Q4_1, IQ4_XS, MXFP4
    kMaskSums = kMask4 | kMask5 | kMaskMore,
    kMaskAll = 0xff
};
HD constexpr int slab_mask(SlabKind k) { return 1 << int(k); }

// Where the vectors of a block lie: codes, then the helpers that the formats of `mask` need.
template <int kMask, int C>
struct ActivationLayout {
    int columns;
    HD int codes() const { return activation_codes(columns, C); }
    HD int pairs() const { return columns / 32 * C * 8; }  // {d, Σ}, or {d, start} of Q8_0
    HD int k_at() const { return codes(); }
    HD int q8_at() const { return k_at() + ((kMask & kMaskSums) ? pairs() : 0); }
    HD int k6_at() const { return q8_at() + ((kMask & kMask8) ? pairs() : 0); }
    HD int bytes() const { return k6_at() + ((kMask & kMask6) ? 2 * pairs() : 0); }
    template <SlabKind F>
    HD int helpers(int group) const {  // of a group of 32 that is a multiple of 8
        if (F == SlabKind::q8) return q8_at() + group / 2 * C * 16;
        if (F == SlabKind::k6) return k6_at() + group * C * 16;
        return k_at() + group / 2 * C * 16;
    }
};

// A warp writes one item of 256 columns of one token (vectors 2·token and 2·token + 1): lane holds columns
// 8·lane … + 7, four lanes a group of 32.
template <int kMask, int C>
__device__ __forceinline__ void quantise_item(const float (&x)[8], int item, int token, std::byte* to,
                                              const ActivationLayout<kMask, C>& at, int lane) {
    float greatest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) greatest = fmaxf(greatest, fabsf(x[i]));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 2));
    const float inverse = greatest > 0 ? __fdividef(32512.0f, greatest) : 0.0f;
    uint32_t low[2], high[2];  // bytes of columns 0…3 and 4…7
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t v[4], w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = uint32_t(__float2int_rn(x[4 * h + i] * inverse));
            w[i] = v[i] + 128;
        }
        low[h] = __byte_perm(__byte_perm(v[0], v[1], 0x0040), __byte_perm(v[2], v[3], 0x0040), 0x5410);
        high[h] = __byte_perm(__byte_perm(w[0], w[1], 0x0051), __byte_perm(w[2], w[3], 0x0051), 0x5410);
    }
    const int ones = 0x01010101, j = lane % 4, group = item * 8 + lane / 4;
    int sum_low = __dp4a(int(low[0]), ones, __dp4a(int(low[1]), ones, 0));
    int sum_high = __dp4a(int(high[0]), ones, __dp4a(int(high[1]), ones, 0));
    // Words hold columns {0, 8, 1, 9} + 2t of 16: even lanes have the first 8 of them and make t = 0, 1; odd
    // lanes t = 2, 3.
    const bool odd = lane & 1;
    const uint32_t got_low = __shfl_xor_sync(0xffffffffu, odd ? low[0] : low[1], 1);
    const uint32_t got_high = __shfl_xor_sync(0xffffffffu, odd ? high[0] : high[1], 1);
    const uint32_t a_low = odd ? got_low : low[0], b_low = odd ? low[1] : got_low;
    const uint32_t a_high = odd ? got_high : high[0], b_high = odd ? high[1] : got_high;
    auto* codes =
        reinterpret_cast<uint32_t*>(to + (group * C + 2 * token) * 32 + (odd ? 16 : 0) + (j >> 1) * 4);
    codes[0] = __byte_perm(a_high, b_high, 0x5140);
    codes[2] = __byte_perm(a_high, b_high, 0x7362);
    codes[8] = __byte_perm(a_low, b_low, 0x5140);
    codes[10] = __byte_perm(a_low, b_low, 0x7362);
    sum_low += __shfl_xor_sync(0xffffffffu, sum_low, 1);
    sum_high += __shfl_xor_sync(0xffffffffu, sum_high, 1);
    const int other_low = __shfl_xor_sync(0xffffffffu, sum_low, 2),
              other_high = __shfl_xor_sync(0xffffffffu, sum_high, 2);
    if (j >= 2) return;  // lane 0 of the four writes the high plane's helpers, lane 1 the low plane's
    const float d = greatest * ((j ? 1.0f : 256.0f) / 32512.0f);
    const int first = j ? sum_low : sum_high, second = j ? other_low : other_high;
    const int pair = ((group >> 1) * C + 2 * token + j) * 16 + (group & 1) * 8;
    if constexpr ((kMask & kMaskSums) != 0)
        *reinterpret_cast<float2*>(to + at.k_at() + pair) = make_float2(d, float(first + second));
    if constexpr ((kMask & kMask8) != 0)
        *reinterpret_cast<float2*>(to + at.q8_at() + pair) =
            make_float2(d, __int_as_float(kMagic - 128 * (first + second)));
    if constexpr ((kMask & kMask6) != 0)
        *reinterpret_cast<float4*>(to + at.k6_at() + (group * C + 2 * token + j) * 16) =
            make_float4(d, __int_as_float(-32 * first), __int_as_float(-32 * second), 0.0f);
}

}  // namespace sparkinfer::cuda
