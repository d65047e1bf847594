// activations.cuh — float32 rows as two planes of int8, in the order slab_mma.cuh wants.
// v = rint(x · 32512 / max|x|) per group of 32; high plane (v + 128) >> 8, low plane v − 256 · high. Relative error 1.5e-5 of the
// group's greatest value: what the project calls 16-bit activations.
#pragma once
#include "cuda/lib/slab_mma.cuh"

namespace sparkinfer::cuda {

enum SlabMask { kMask4 = 1, kMask5 = 2, kMask6 = 4, kMask8 = 8 };
HD constexpr int slab_mask(SlabKind k) { return 1 << int(k); }

// Where the vectors of a block lie: codes, then the helpers that the formats of `mask` need.
template <int kMask, int C>
struct ActivationLayout {
    int columns;
    HD int codes() const { return activation_codes(columns, C); }
    HD int pairs() const { return columns / 32 * C * 8; }   // {d, Σ} of Q4_K and Q5_K, or {d, start} of Q8_0
    HD int k_at() const { return codes(); }
    HD int q8_at() const { return k_at() + ((kMask & (kMask4 | kMask5)) ? pairs() : 0); }
    HD int k6_at() const { return q8_at() + ((kMask & kMask8) ? pairs() : 0); }
    HD int bytes() const { return k6_at() + ((kMask & kMask6) ? 2 * pairs() : 0); }
    template <SlabKind F>
    HD int helpers(int group) const {  // of a group of 32 that is a multiple of 8
        if (F == SlabKind::q8) return q8_at() + group / 2 * C * 16;
        if (F == SlabKind::k6) return k6_at() + group * C * 16;
        return k_at() + group / 2 * C * 16;
    }
};

// A warp writes one group of 32 of one token (vectors 2·token and 2·token + 1); lane = column in the group.
template <int kMask, int C>
__device__ __forceinline__ void quantise_group(float x, int group, int token, std::byte* to, const ActivationLayout<kMask, C>& at,
                                               int lane) {
    const float greatest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(fabsf(x))));
    const float inverse = greatest > 0 ? __fdividef(32512.0f, greatest) : 0.0f;
    const int v = __float2int_rn(x * inverse), high = (v + 128) >> 8, low = v - 256 * high;
    const float d_low = greatest * (1.0f / 32512.0f), d_high = greatest * (256.0f / 32512.0f);
    const int r = lane % 16, byte = r % 8 / 2 * 8 + lane / 16 * 4 + 2 * (r & 1) + (r >> 3);
    std::byte* codes = to + (group * C + 2 * token) * 32 + byte;
    codes[0] = std::byte(uint8_t(high));
    codes[32] = std::byte(uint8_t(low));
    if constexpr ((kMask & (kMask4 | kMask5 | kMask8)) != 0) {
        const int sum_high = __reduce_add_sync(0xffffffffu, high), sum_low = __reduce_add_sync(0xffffffffu, low);
        const int pair = ((group >> 1) * C + 2 * token + lane % 2) * 16 + (group & 1) * 8;
        const float d = lane ? d_low : d_high;
        const int sum = lane ? sum_low : sum_high;
        if (lane < 2) {
            if constexpr ((kMask & (kMask4 | kMask5)) != 0)
                *reinterpret_cast<float2*>(to + at.k_at() + pair) = make_float2(d, float(sum));
            if constexpr ((kMask & kMask8) != 0)
                *reinterpret_cast<float2*>(to + at.q8_at() + pair) = make_float2(d, __int_as_float(kMagic - 128 * sum));
        }
    }
    if constexpr ((kMask & kMask6) != 0) {
        const uint32_t half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
        const int sum_high = __reduce_add_sync(half, high), sum_low = __reduce_add_sync(half, low);
        const int other_high = __shfl_xor_sync(0xffffffffu, sum_high, 16), other_low = __shfl_xor_sync(0xffffffffu, sum_low, 16);
        if (lane < 2) {
            const int a = lane ? sum_low : sum_high, b = lane ? other_low : other_high;
            *reinterpret_cast<float4*>(to + at.k6_at() + (group * C + 2 * token + lane) * 16) =
                make_float4(lane ? d_low : d_high, __int_as_float(-32 * a), __int_as_float(-32 * b), 0.0f);
        }
    }
}

}  // namespace sparkinfer::cuda
