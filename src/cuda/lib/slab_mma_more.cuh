// slab_mma_more.cuh — one item of a slab times int8 activations, for Q4_0, Q4_1, IQ4_XS and MXFP4: formats
// of nibbles alone with a scale per 32 columns. Mapping and activations: slab_mma.cuh.
//
// Q4_0 and Q4_1 multiply their codes as Q4_K does: row g's bytes carry 16 times row g+8's nibbles, and the
// difference takes them out. IQ4_XS and MXFP4 choose among 16 signed bytes; a word of eight nibbles becomes
// two words of bytes by 13 integer instructions, 208 an item and lane: by the instruction rates of sm_90
// about as long as the item's 2,176 bytes take to arrive at full bandwidth. Not measured yet.
#pragma once
#include "cuda/lib/slab_mma.cuh"

namespace sparkinfer::cuda {

__device__ __forceinline__ void mma_s8s8(int* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// __byte_perm without the masking of the selector: callers keep bit 3 of its nibbles clear.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}
// Four signed bytes of a table, as a word.
HD constexpr uint32_t four_bytes(int a, int b, int c, int d) {
    return uint32_t(a & 255) | uint32_t(b & 255) << 8 | uint32_t(c & 255) << 16 | uint32_t(d & 255) << 24;
}

// Scales and minima of rows g and g+8 for one group of 32 columns.
struct RowScales {
    float s[2], m[2];
};

// What a format says: `Raw pair(a, pair, g)`, the scale words of two neighbouring groups; `scales(raw, odd,
// …)` of one of them; `multiply`, one group of 32 columns into the accumulators; `value`, a row's sum for a
// vector whose codes add up to x. kSixteenfold: row g's accumulators also hold those of row g+8.
template <SlabKind>
struct SlabForm;

struct NibbleForm {
    static constexpr bool kSixteenfold = true;
    static __device__ __forceinline__ void multiply(int* c, uint32_t e, uint32_t f, uint32_t b0,
                                                    uint32_t b1) {
        mma_u8s8(c, e, e & 0xf0f0f0f0u, f, f & 0xf0f0f0f0u, b0, b1);
    }
    static __device__ __forceinline__ float2 once(const std::byte*, int) { return {}; }
};

template <>
struct SlabForm<SlabKind::q4_0> : NibbleForm {
    using Raw = uint2;
    static __device__ __forceinline__ Raw pair(const std::byte* scales, int pair, int g) {
        return shared2(scales + 64 * pair + 8 * g);
    }
    static __device__ __forceinline__ RowScales scales(const Raw& raw, int odd, float2, float) {
        const float2 d = half2_floats(odd ? raw.y : raw.x);
        return {{d.x, d.y}, {}};
    }
    // d · (q − 8): exact up to the product with d.
    static __device__ __forceinline__ float value(const RowScales& r, int half, float sum, float x) {
        return __fmul_rn(r.s[half], fmaf(half ? -128.0f : -8.0f, x, sum));
    }
};
template <>
struct SlabForm<SlabKind::q4_1> : NibbleForm {
    using Raw = uint4;
    static __device__ __forceinline__ Raw pair(const std::byte* scales, int pair, int g) {
        return shared4(scales + 128 * pair + 16 * g);
    }
    static __device__ __forceinline__ RowScales scales(const Raw& raw, int odd, float2, float m_factor) {
        const float2 d = half2_floats(odd ? raw.y : raw.x), m = half2_floats(odd ? raw.w : raw.z);
        return {{d.x, d.y}, {__fmul_rn(m.x, m_factor), __fmul_rn(m.y, m_factor)}};
    }
    static __device__ __forceinline__ float value(const RowScales& r, int half, float sum, float x) {
        return fmaf(r.m[half], x, __fmul_rn(r.s[half], sum));
    }
};

// Eight nibbles of a code word through a table of 16 bytes: the word of row g, the word of row g+8.
template <uint32_t kA, uint32_t kB, uint32_t kC, uint32_t kD>
struct TableForm {
    static constexpr bool kSixteenfold = false;
    static __device__ __forceinline__ uint2 looked_up(uint32_t w) {
        const uint32_t low = w & 0x77777777u, side = ((w >> 1) & 0x44444444u) | 0x32103210u;
        const uint32_t first = permute(permute(kA, kB, low), permute(kC, kD, low), side);
        const uint32_t last = permute(permute(kA, kB, low >> 16), permute(kC, kD, low >> 16), side >> 16);
        return make_uint2(permute(first, last, 0x6420u), permute(first, last, 0x7531u));
    }
    static __device__ __forceinline__ void multiply(int* c, uint32_t e, uint32_t f, uint32_t b0,
                                                    uint32_t b1) {
        const uint2 x = looked_up(e), y = looked_up(f);
        mma_s8s8(c, x.x, x.y, y.x, y.y, b0, b1);
    }
    using Raw = uint32_t;
    static __device__ __forceinline__ Raw pair(const std::byte* scales, int pair, int g) {
        return shared1(scales + 32 * pair + 4 * g);
    }
    static __device__ __forceinline__ float value(const RowScales& r, int half, float sum, float) {
        return __fmul_rn(r.s[half], sum);
    }
};

template <>
struct SlabForm<SlabKind::iq4_xs>
    : TableForm<four_bytes(-127, -104, -83, -65), four_bytes(-49, -35, -22, -10), four_bytes(1, 13, 25, 38),
                four_bytes(53, 69, 89, 113)> {
    // D of rows g and g+8, out of the spare bits of the four scale words.
    static __device__ __forceinline__ float2 once(const std::byte* scales, int g) {
        uint32_t d = 0;
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const uint32_t w = shared1(scales + 32 * u + 4 * g);
            d |= (u < 3 ? w >> (12 - 4 * u) : w) & (0x000f000fu << (4 * u));
        }
        return half2_floats(d);
    }
    // fp16 1024 + x has x in its low bits.
    static __device__ __forceinline__ RowScales scales(Raw raw, int odd, float2 d, float) {
        const uint32_t v = ((odd ? raw >> 6 : raw) & 0x003f003fu) | 0x64006400u;
        const float2 s = __half22float2(
            __hadd2(*reinterpret_cast<const __half2*>(&v), __floats2half2_rn(-1056.0f, -1056.0f)));
        return {{__fmul_rn(s.x, d.x), __fmul_rn(s.y, d.y)}, {}};
    }
};
template <>
struct SlabForm<SlabKind::mxfp4> : TableForm<four_bytes(0, 1, 2, 3), four_bytes(4, 6, 8, 12),
                                             four_bytes(0, -1, -2, -3), four_bytes(-4, -6, -8, -12)> {
    static __device__ __forceinline__ float2 once(const std::byte*, int) { return {}; }
    // 2^(e − 127); of e = 0 the subnormal.
    static __device__ __forceinline__ float power(uint32_t exponent_in_place) {
        return __int_as_float(max(int(exponent_in_place & 0x7f800000u), 0x00400000));
    }
    static __device__ __forceinline__ RowScales scales(Raw raw, int odd, float2, float) {
        return {{power(odd ? raw << 7 : raw << 23), power(odd ? raw >> 1 : raw << 15)}, {}};
    }
};

// sums += item · activations, as slab_item_32 does: same groups side by side, same order of additions.
template <SlabKind F, int kMask, int C>
__device__ __forceinline__ void slab_item_more(const std::byte* a, const Fragments<kMask, C>& x,
                                               float m_factor, SlabSums<C>& sums, int lane) {
    using Form = SlabForm<F>;
    constexpr int kGroups = 8 / C;  // groups of 32 columns in one MMA
    constexpr int kUnit = SlabOf<F>::unit, kChains = C == 2 ? 2 : 1;
    const int g = lane >> 2, t = lane & 3, gr = g % kGroups;
    const std::byte* scales = a + SlabOf<F>::scales_at;
    const float2 once = Form::once(scales, g);
    float even[4];
    uint4 w;
    typename Form::Raw raw;
#pragma unroll
    for (int ch = 0; ch < C; ++ch) {
        const int odd = ch & 1;
        const int pair = C == 8 ? ch >> 1 : (ch * kGroups + (2 * t) % kGroups) >> 1;
        if (C != 8 || !odd) raw = Form::pair(scales, pair, g);
        int c[kChains][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            c[0][i] = kMagic;
            if (kChains == 2) c[kChains - 1][i] = 0;
        }
#pragma unroll
        for (int i = ch * kGroups; i < ch * kGroups + kGroups; ++i) {
            const bool mine = kGroups == 1 || gr == i % kGroups;
            if (!(i & 1)) w = shared4(a + (i >> 1) * kUnit + lane * 16);
            Form::multiply(c[i % kChains], (i & 1) ? w.z : w.x, (i & 1) ? w.w : w.y, mine ? x.x[ch][0] : 0u,
                           mine ? x.x[ch][1] : 0u);
        }
        float sum[4];  // row g: first and second column of the accumulators; row g+8
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (kChains == 2) c[0][i] += c[kChains - 1][i];
            sum[i] = __int_as_float(c[0][i]) - kMagicFloat;
        }
        if constexpr (Form::kSixteenfold) {
            sum[0] = __int_as_float(c[0][0]) - __int_as_float(c[0][2]);
            sum[1] = __int_as_float(c[0][1]) - __int_as_float(c[0][3]);
        }
        const float d[2] = {x.d[ch][0], x.d[ch][1]}, s[2] = {float(x.whole(ch, 0)), float(x.whole(ch, 1))};
        if constexpr (C == 8) {  // the columns are two vectors of one group
            const RowScales r = Form::scales(raw, odd, once, m_factor);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float v = Form::value(r, j >> 1, sum[j], s[j & 1]);
                if (!odd)
                    even[j] = __fmul_rn(d[j & 1], v);
                else
                    sums.v[(ch >> 1) * 4 + j] += fmaf(d[j & 1], v, even[j]);
            }
        } else {  // two groups of one vector
            const RowScales first = Form::scales(raw, 0, once, m_factor),
                            second = Form::scales(raw, 1, once, m_factor);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                sums.v[ch * 2 + half] += fmaf(d[1], Form::value(second, half, sum[2 * half + 1], s[1]),
                                              __fmul_rn(d[0], Form::value(first, half, sum[2 * half], s[0])));
        }
    }
}

}  // namespace sparkinfer::cuda
