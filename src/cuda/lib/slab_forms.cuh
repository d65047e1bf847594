// slab_forms.cuh — what the slab formats say of themselves to the integer tensor cores: their codes as A
// operands of an MMA of 32 columns (16 for Q6_K), what its sums mean, their scales, and what the sums of x
// have to do with it. Used by slab_mma.cuh.
//
// Row g's bytes of nibbles carry 16 times row g+8's; the difference of both rows' sums takes them out,
// exactly (codes of Q6_K are put together first). Row g+8's scale is that much smaller. What a format
// subtracts from its codes, or adds to them, is a constant a group, times the sum of x over it: one more
// product, on the FP16 tensor cores, where a field of up to 11 bits *is* the number field · 2^-24. IQ4_XS and
// MXFP4 choose among 16 signed bytes: a word of eight nibbles becomes two words of bytes by 13 integer
// instructions.
#pragma once
#include <cuda_fp16.h>

#include "quant/formats.h"

namespace sparkinfer::cuda {

enum class SlabKind { k4, k5, k6, q8, q4_0, q4_1, iq4_xs, mxfp4 };
template <SlabKind>
struct SlabOf;
template <>
struct SlabOf<SlabKind::k4> : Format<Quant::q4_k_slab> {};
template <>
struct SlabOf<SlabKind::k5> : Format<Quant::q5_k_slab> {};
template <>
struct SlabOf<SlabKind::k6> : Format<Quant::q6_k_slab> {};
template <>
struct SlabOf<SlabKind::q8> : Format<Quant::q8_0_slab> {};
template <>
struct SlabOf<SlabKind::q4_0> : Format<Quant::q4_0_slab> {};
template <>
struct SlabOf<SlabKind::q4_1> : Format<Quant::q4_1_slab> {};
template <>
struct SlabOf<SlabKind::iq4_xs> : Format<Quant::iq4_xs_slab> {};
template <>
struct SlabOf<SlabKind::mxfp4> : Format<Quant::mxfp4_slab> {};
// REQUIRES: a slab format.
inline SlabKind slab_kind(Quant q) {
    switch (q) {
        case Quant::q4_k_slab: return SlabKind::k4;
        case Quant::q5_k_slab: return SlabKind::k5;
        case Quant::q6_k_slab: return SlabKind::k6;
        case Quant::q4_0_slab: return SlabKind::q4_0;
        case Quant::q4_1_slab: return SlabKind::q4_1;
        case Quant::iq4_xs_slab: return SlabKind::iq4_xs;
        case Quant::mxfp4_slab: return SlabKind::mxfp4;
        default: return SlabKind::q8;
    }
}

// d [16, 8] += a [16, 32] · b [32, 8], bytes; kSigned: of a.
template <bool kSigned>
__device__ __forceinline__ void mma_bytes(int (&c)[4], const uint4& a, const uint32_t (&b)[2]) {
    if constexpr (kSigned)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_bytes_k16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
__device__ __forceinline__ float2 half2_floats(uint32_t v) {
    const __half2 h = *reinterpret_cast<const __half2*>(&v);
    return __half22float2(h);
}
__device__ __forceinline__ float unbiased_byte(uint32_t w, int byte) {
    return __int_as_float(int(__byte_perm(w, 0x4B000000u, 0x7650 + byte))) - 8388736.0f;
}
__device__ __forceinline__ uint4 shared4(const std::byte* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ __forceinline__ uint2 shared2(const std::byte* p) { return *reinterpret_cast<const uint2*>(p); }
__device__ __forceinline__ uint32_t shared1(const std::byte* p) {
    return *reinterpret_cast<const uint32_t*>(p);
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
__device__ __forceinline__ uint32_t half2_add(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("add.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ uint32_t half2_of(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&h);
}
// (a & mask) | b
__device__ __forceinline__ uint32_t masked_or(uint32_t a, uint32_t mask, uint32_t b) {
    uint32_t r;
    asm("lop3.b32 %0,%1,%2,%3,0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(b));
    return r;
}

constexpr float kField = 0x1p24f;

// What an item's sums are multiplied by, of rows g and g+8: Σ scale · code · x, and Σ constant · Σx.
struct ItemScales {
    float d[2], m[2];
};

// Accumulators of an MMA, rows g and g+8, each for both planes of x; `high`: of what codes have beyond four
// bits.
struct Accumulators {
    int c[4], high[4];
};

// What a format says.
//   kHalves    scales are of 16 columns: accumulators [2], one of each half of the 32
//   kSums      columns of a sum of x that its constants are multiplied by: 32, 16 or, without such, 0
//   multiply   accumulators += codes of a group of 32 columns · x (the words of its first and last 16)
//   joined     the sums of rows g and g+8 over both planes
//   scales     of rows g and g+8 for a group of 32 columns, or its first or last 16, as floats
//   constants  A operand of an item's constants, a column a group
//   item       what both kinds of sums mean; factor: Weight::scale
template <SlabKind>
struct SlabForm;

// Two codes a byte.
template <int kUnit>
struct NibbleForm {
    static constexpr bool kHalves = false;
    static __device__ __forceinline__ uint4 nibbles(const std::byte* a, int group, int lane) {
        const uint4 w = shared4(a + group / 2 * kUnit + lane * 16);
        const uint32_t e = group % 2 ? w.z : w.x, f = group % 2 ? w.w : w.y;
        return make_uint4(e, e & 0xf0f0f0f0u, f, f & 0xf0f0f0f0u);
    }
    static __device__ __forceinline__ void multiply(Accumulators (&s)[1], const std::byte* a, int group,
                                                    const uint32_t (&x)[2], int lane) {
        mma_bytes<false>(s[0].c, nibbles(a, group, lane), x);
    }
    static __device__ __forceinline__ int2 joined(const Accumulators& s) {
        return make_int2((s.c[0] - s.c[2]) * 256 + (s.c[1] - s.c[3]), s.c[2] * 256 + s.c[3]);
    }
};

// Q4_K and Q5_K: words of scales, {row g, row g+8} a unit.
template <SlabKind F>
struct KForm : NibbleForm<SlabOf<F>::unit> {
    static constexpr int kSums = 32, kUnit = SlabOf<F>::unit;
    static __device__ __forceinline__ float2 scales(const std::byte* a, int group, int, int g) {
        const uint2 w = shared2(a + 4 * kUnit + group / 2 * 64 + g * 8);
        const int by = group % 2 * 6;
        return make_float2(float(int(w.x >> by & 63)), float(int(w.y >> by & 63)));
    }
    static __device__ __forceinline__ void constants(const std::byte* a, int lane, uint32_t (&m)[4]) {
        const uint2 w = shared2(a + 4 * kUnit + (lane & 3) * 64 + (lane >> 2) * 8);
        m[0] = masked_or(w.x >> 6, 0x003f0000u, w.x >> 16 & 0x3fu);
        m[1] = masked_or(w.y >> 6, 0x003f0000u, w.y >> 16 & 0x3fu);
    }
    // D and M out of the spare bits of the item's four pairs of words.
    static __device__ __forceinline__ ItemScales item(const std::byte* a, int g, float2 factor) {
        uint2 d = make_uint2(0, 0);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const uint2 w = shared2(a + 4 * kUnit + u * 64 + g * 8);
            const uint32_t mask = 0x000f000fu << (4 * u);
            d.x |= (u < 3 ? w.x >> (12 - 4 * u) : w.x) & mask;
            d.y |= (u < 3 ? w.y >> (12 - 4 * u) : w.y) & mask;
        }
        const float2 p = half2_floats(d.x), q = half2_floats(d.y);
        const float by_m = factor.x * factor.y * kField;
        return {{p.x * factor.x, q.x * factor.x}, {p.y * by_m, q.y * by_m}};
    }
};
template <>
struct SlabForm<SlabKind::k4> : KForm<SlabKind::k4> {};
template <>
struct SlabForm<SlabKind::k5> : KForm<SlabKind::k5> {
    static __device__ __forceinline__ void multiply(Accumulators (&s)[1], const std::byte* a, int group,
                                                    const uint32_t (&x)[2], int lane) {
        const uint32_t high = shared1(a + group / 2 * kUnit + 512 + lane * 4);
        const int j = group % 2 * 2;
        mma_bytes<false>(s[0].c, nibbles(a, group, lane), x);
        mma_bytes<false>(s[0].high,
                         make_uint4(__funnelshift_r(high, high, j) & 0x10101010u,
                                    __funnelshift_r(high, high, 8 + j) & 0x01010101u,
                                    __funnelshift_r(high, high, j + 1) & 0x10101010u,
                                    __funnelshift_r(high, high, 9 + j) & 0x01010101u),
                         x);
    }
    // Row g+8 is 16 times its value.
    static __device__ __forceinline__ int2 joined(const Accumulators& s) {
        return make_int2((s.c[0] - s.c[2] + s.high[0]) * 256 + (s.c[1] - s.c[3] + s.high[1]),
                         (s.c[2] + 256 * s.high[2]) * 256 + (s.c[3] + 256 * s.high[3]));
    }
};

template <>
struct SlabForm<SlabKind::k6> {
    using S = SlabOf<SlabKind::k6>;
    static constexpr int kSums = 16;
    static constexpr bool kHalves = true;
    static __device__ __forceinline__ void multiply(Accumulators (&s)[2], const std::byte* a, int group,
                                                    const uint32_t (&x)[2], int lane) {
        const uint4 w = shared4(a + group / 2 * S::unit + lane * 16);
        const uint2 high = shared2(a + group / 2 * S::unit + 512 + lane * 8);
        const uint32_t y = group % 2 ? high.y : high.x;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t e = group % 2 ? (half ? w.w : w.z) : (half ? w.y : w.x);
            mma_bytes_k16(s[half].c, masked_or(__funnelshift_r(y, y, 2 * half), 0x30303030u, e & 0x0f0f0f0fu),
                          masked_or(__funnelshift_r(y, y, 4 + 2 * half), 0x30303030u, e >> 4 & 0x0f0f0f0fu),
                          x[half]);
        }
    }
    static __device__ __forceinline__ int2 joined(const Accumulators& s) {
        return make_int2(s.c[0] * 256 + s.c[1], s.c[2] * 256 + s.c[3]);
    }
    // Bytes of scales + 128, {row g, row g+8} by 16 columns.
    static __device__ __forceinline__ float2 scales(const std::byte* a, int group, int half, int g) {
        const uint32_t s = shared1(a + S::scales_at + group / 2 * 64 + g * 8 + group % 2 * 4);
        return make_float2(unbiased_byte(s, half * 2), unbiased_byte(s, half * 2 + 1));
    }
    static __device__ __forceinline__ void constants(const std::byte* a, int lane, uint32_t (&m)[4]) {
        const int t = lane & 3;
        const std::byte* at = a + S::scales_at + (t >> 1) * 64 + (lane >> 2) * 8 + (t & 1) * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t w = shared1(at + half * 128);  // FP16 0x8080 is −128 fields
            m[2 * half] = half2_add(w & 0x00ff00ffu, 0x80808080u);
            m[2 * half + 1] = half2_add(w >> 8 & 0x00ff00ffu, 0x80808080u);
        }
    }
    static __device__ __forceinline__ ItemScales item(const std::byte* a, int g, float2 factor) {
        const float2 d = half2_floats(shared1(a + S::d_at + g * 4));
        const float x = d.x * factor.x, y = d.y * factor.x * 16;  // its codes are whole here
        return {{x, y}, {x * (-32 * kField), y * (-32 * kField)}};
    }
};

// FP16 scales of rows g and g+8 for the groups 2t and 2t+1 of an item, as an A operand.
__device__ __forceinline__ void half_constants(uint2 w, uint32_t (&m)[4]) {
    m[0] = permute(w.x, w.y, 0x5410), m[1] = permute(w.x, w.y, 0x7632);
}
template <>
struct SlabForm<SlabKind::q8> {
    static constexpr int kSums = 32, kUnit = SlabOf<SlabKind::q8>::unit;
    static constexpr bool kHalves = false;
    static __device__ __forceinline__ void multiply(Accumulators (&s)[1], const std::byte* a, int group,
                                                    const uint32_t (&x)[2], int lane) {
        mma_bytes<false>(s[0].c, shared4(a + group / 2 * kUnit + group % 2 * 512 + lane * 16), x);
    }
    static __device__ __forceinline__ int2 joined(const Accumulators& s) {
        return make_int2(s.c[0] * 256 + s.c[1], s.c[2] * 256 + s.c[3]);
    }
    static __device__ __forceinline__ float2 scales(const std::byte* a, int group, int, int g) {
        return half2_floats(shared1(a + group / 2 * kUnit + 1024 + g * 8 + group % 2 * 4));
    }
    static __device__ __forceinline__ void constants(const std::byte* a, int lane, uint32_t (&m)[4]) {
        half_constants(shared2(a + (lane & 3) * kUnit + 1024 + (lane >> 2) * 8), m);
    }
    static __device__ __forceinline__ ItemScales item(const std::byte*, int, float2 factor) {
        const float m = -128 * factor.x;
        return {{factor.x, factor.x}, {m, m}};
    }
};

template <>
struct SlabForm<SlabKind::q4_0> : NibbleForm<SlabOf<SlabKind::q4_0>::unit> {
    using S = SlabOf<SlabKind::q4_0>;
    static constexpr int kSums = 32;
    static __device__ __forceinline__ float2 scales(const std::byte* a, int group, int, int g) {
        return half2_floats(shared1(a + S::scales_at + group / 2 * 64 + g * 8 + group % 2 * 4));
    }
    static __device__ __forceinline__ void constants(const std::byte* a, int lane, uint32_t (&m)[4]) {
        half_constants(shared2(a + S::scales_at + (lane & 3) * 64 + (lane >> 2) * 8), m);
    }
    static __device__ __forceinline__ ItemScales item(const std::byte*, int, float2 factor) {
        const float m = -8 * factor.x;
        return {{factor.x, factor.x}, {m, 16 * m}};
    }
};
template <>
struct SlabForm<SlabKind::q4_1> : NibbleForm<SlabOf<SlabKind::q4_1>::unit> {
    using S = SlabOf<SlabKind::q4_1>;
    static constexpr int kSums = 32;
    static __device__ __forceinline__ float2 scales(const std::byte* a, int group, int, int g) {
        return half2_floats(shared1(a + S::scales_at + group / 2 * 128 + g * 16 + group % 2 * 4));
    }
    static __device__ __forceinline__ void constants(const std::byte* a, int lane, uint32_t (&m)[4]) {
        half_constants(shared2(a + S::scales_at + (lane & 3) * 128 + (lane >> 2) * 16 + 8), m);
    }
    static __device__ __forceinline__ ItemScales item(const std::byte*, int, float2 factor) {
        const float m = factor.x * factor.y;
        return {{factor.x, factor.x}, {m, m}};
    }
};

// Eight nibbles of a code word through a table of 16 bytes: the word of row g, the word of row g+8.
template <SlabKind F, uint32_t kA, uint32_t kB, uint32_t kC, uint32_t kD>
struct TableForm {
    using S = SlabOf<F>;
    static constexpr int kSums = 0;
    static constexpr bool kHalves = false;
    static __device__ __forceinline__ uint32_t scale_word(const std::byte* a, int group, int g) {
        return shared1(a + S::scales_at + group / 2 * 32 + g * 4);
    }
    static __device__ __forceinline__ uint2 looked_up(uint32_t w) {
        const uint32_t low = w & 0x77777777u, side = ((w >> 1) & 0x44444444u) | 0x32103210u;
        const uint32_t first = permute(permute(kA, kB, low), permute(kC, kD, low), side);
        const uint32_t last = permute(permute(kA, kB, low >> 16), permute(kC, kD, low >> 16), side >> 16);
        return make_uint2(permute(first, last, 0x6420u), permute(first, last, 0x7531u));
    }
    static __device__ __forceinline__ void multiply(Accumulators (&s)[1], const std::byte* a, int group,
                                                    const uint32_t (&x)[2], int lane) {
        const uint4 w = shared4(a + group / 2 * S::unit + lane * 16);
        const uint2 v = looked_up(group % 2 ? w.z : w.x), y = looked_up(group % 2 ? w.w : w.y);
        mma_bytes<true>(s[0].c, make_uint4(v.x, v.y, y.x, y.y), x);
    }
    static __device__ __forceinline__ int2 joined(const Accumulators& s) {
        return make_int2(s.c[0] * 256 + s.c[1], s.c[2] * 256 + s.c[3]);
    }
    static __device__ __forceinline__ void constants(const std::byte*, int, uint32_t (&)[4]) {}
};

template <>
struct SlabForm<SlabKind::iq4_xs>
    : TableForm<SlabKind::iq4_xs, four_bytes(-127, -104, -83, -65), four_bytes(-49, -35, -22, -10),
                four_bytes(1, 13, 25, 38), four_bytes(53, 69, 89, 113)> {
    static __device__ __forceinline__ float2 scales(const std::byte* a, int group, int, int g) {
        const uint32_t w = scale_word(a, group, g) >> (group % 2 * 6);
        return make_float2(float(int(w & 63) - 32), float(int(w >> 16 & 63) - 32));
    }
    // D out of the spare bits of the four scale words.
    static __device__ __forceinline__ ItemScales item(const std::byte* a, int g, float2 factor) {
        uint32_t d = 0;
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const uint32_t w = shared1(a + S::scales_at + 32 * u + 4 * g);
            d |= (u < 3 ? w >> (12 - 4 * u) : w) & (0x000f000fu << (4 * u));
        }
        const float2 v = half2_floats(d);
        return {{v.x * factor.x, v.y * factor.x}, {}};
    }
};
template <>
struct SlabForm<SlabKind::mxfp4> : TableForm<SlabKind::mxfp4, four_bytes(0, 1, 2, 3), four_bytes(4, 6, 8, 12),
                                             four_bytes(0, -1, -2, -3), four_bytes(-4, -6, -8, -12)> {
    // 2^(e − 127); of e = 0 the subnormal.
    static __device__ __forceinline__ float power(uint32_t exponent_in_place) {
        return __int_as_float(max(int(exponent_in_place & 0x7f800000u), 0x00400000));
    }
    static __device__ __forceinline__ float2 scales(const std::byte* a, int group, int, int g) {
        const uint32_t w = scale_word(a, group, g) >> (group % 2 * 16);
        return make_float2(power(w << 23), power(w << 15));
    }
    static __device__ __forceinline__ ItemScales item(const std::byte*, int, float2 factor) {
        return {{factor.x, factor.x}, {}};
    }
};

}  // namespace sparkinfer::cuda
