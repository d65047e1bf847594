// slab_forms.cuh — what the slab formats say of themselves to the integer tensor cores: their codes as A
// operands of an MMA of 32 columns, what its sums mean, and their scales. Used by slab_mma.cuh.
//
// Row g's bytes of nibbles carry 16 times row g+8's; the difference of both rows' sums takes them out,
// exactly. IQ4_XS and MXFP4 choose among 16 signed bytes: a word of eight nibbles becomes two words of bytes
// by 13 integer instructions.
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

__device__ __forceinline__ void mma_u8s8(int* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_u8s8_k16(int* c, uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ float2 half2_floats(uint32_t v) {
    const __half2 h = *reinterpret_cast<const __half2*>(&v);
    return __half22float2(h);
}
// {scale, minimum} of the word's low six bits and those at 16: fp16 1024 + x has x in its low bits.
__device__ __forceinline__ float2 scale_minimum(uint32_t w) {
    const uint32_t v = (w & 0x003f003fu) | 0x64006400u;
    const __half2 h = __hadd2(*reinterpret_cast<const __half2*>(&v), __floats2half2_rn(-1024.0f, -1024.0f));
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

// Accumulators of an MMA: rows g and g+8, each for both planes; `high`: of a code's fifth bit.
struct Accumulators {
    int c[4], high[4];
    __device__ __forceinline__ void operator+=(const Accumulators& o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] += o.c[i], high[i] += o.high[i];
    }
};

// D and M of rows g and g+8, out of the spare bits of the item's four scale words.
struct ItemScales {
    float d[2], m[2];
};
__device__ __forceinline__ ItemScales item_scales(const std::byte* scales, int g, float m_factor) {
    uint2 d = make_uint2(0, 0);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        const uint2 w = shared2(scales + u * 64 + g * 8);
        const uint32_t mask = 0x000f000fu << (4 * u);
        d.x |= (u < 3 ? w.x >> (12 - 4 * u) : w.x) & mask;
        d.y |= (u < 3 ? w.y >> (12 - 4 * u) : w.y) & mask;
    }
    const float2 p = half2_floats(d.x), q = half2_floats(d.y);
    return {{p.x, q.x}, {p.y * m_factor, q.y * m_factor}};
}

// What a format says. once: of an item; scales: of a group of 32 columns; multiply: a group into
// accumulators; joined: the sums of rows g and g+8 over both planes, whose codes add up to `codes`; value:
// such a sum, scaled.
template <SlabKind>
struct SlabForm;

// Two codes a byte.
struct NibbleForm {
    struct None {};
    static __device__ __forceinline__ None once(const std::byte*, int, float) { return {}; }
    template <int kUnit>
    static __device__ __forceinline__ uint4 nibbles(const std::byte* a, int group, int lane) {
        const uint4 w = shared4(a + group / 2 * kUnit + lane * 16);
        const uint32_t e = group % 2 ? w.z : w.x, f = group % 2 ? w.w : w.y;
        return make_uint4(e, e & 0xf0f0f0f0u, f, f & 0xf0f0f0f0u);
    }
    static __device__ __forceinline__ void multiply(Accumulators& s, const uint4& a, uint32_t b0,
                                                    uint32_t b1) {
        mma_u8s8(s.c, a.x, a.y, a.z, a.w, b0, b1);
    }
    static __device__ __forceinline__ int2 joined(const Accumulators& s, int) {
        return make_int2((s.c[0] - s.c[2]) * 256 + (s.c[1] - s.c[3]), s.c[2] * 256 + s.c[3]);
    }
    // With a minimum.
    static __device__ __forceinline__ float value(const RowScales& r, int row, float sum, int codes) {
        return fmaf(r.m[row], float(codes), __fmul_rn(r.s[row], sum));
    }
};

template <SlabKind F>
struct KForm : NibbleForm {
    static constexpr int kUnit = SlabOf<F>::unit;
    static __device__ __forceinline__ ItemScales once(const std::byte* a, int g, float m_factor) {
        return item_scales(a + 4 * kUnit, g, m_factor);
    }
    static __device__ __forceinline__ RowScales scales(const std::byte* a, int group, int g,
                                                       const ItemScales& item, float) {
        const uint2 w = shared2(a + 4 * kUnit + group / 2 * 64 + g * 8);
        const int by = group % 2 * 6;
        const float2 low = scale_minimum(w.x >> by), high = scale_minimum(w.y >> by);
        return {{__fmul_rn(low.x, item.d[0]), __fmul_rn(high.x, item.d[1])},
                {__fmul_rn(low.y, item.m[0]), __fmul_rn(high.y, item.m[1])}};
    }
};
template <>
struct SlabForm<SlabKind::k4> : KForm<SlabKind::k4> {
    static __device__ __forceinline__ uint4 codes(const std::byte* a, int group, int lane) {
        return nibbles<kUnit>(a, group, lane);
    }
};
template <>
struct SlabForm<SlabKind::k5> : KForm<SlabKind::k5> {
    struct Codes {
        uint4 low, high;
    };
    static __device__ __forceinline__ Codes codes(const std::byte* a, int group, int lane) {
        const uint32_t high = shared1(a + group / 2 * kUnit + 512 + lane * 4);
        const int j = group % 2 * 2;
        return {
            nibbles<kUnit>(a, group, lane),
            {__funnelshift_r(high, high, j) & 0x10101010u, __funnelshift_r(high, high, 8 + j) & 0x01010101u,
             __funnelshift_r(high, high, j + 1) & 0x10101010u,
             __funnelshift_r(high, high, 9 + j) & 0x01010101u}};
    }
    static __device__ __forceinline__ void multiply(Accumulators& s, const Codes& a, uint32_t b0,
                                                    uint32_t b1) {
        mma_u8s8(s.c, a.low.x, a.low.y, a.low.z, a.low.w, b0, b1);
        mma_u8s8(s.high, a.high.x, a.high.y, a.high.z, a.high.w, b0, b1);
    }
    // Row g+8 is 16 times its value.
    static __device__ __forceinline__ int2 joined(const Accumulators& s, int) {
        return make_int2((s.c[0] - s.c[2] + s.high[0]) * 256 + (s.c[1] - s.c[3] + s.high[1]),
                         (s.c[2] + 256 * s.high[2]) * 256 + (s.c[3] + 256 * s.high[3]));
    }
};

template <>
struct SlabForm<SlabKind::q8> : NibbleForm {
    static constexpr int kUnit = SlabOf<SlabKind::q8>::unit;
    static __device__ __forceinline__ RowScales scales(const std::byte* a, int group, int g, None, float) {
        const float2 d = half2_floats(shared1(a + group / 2 * kUnit + 1024 + g * 8 + group % 2 * 4));
        return {{d.x, d.y}, {}};
    }
    static __device__ __forceinline__ uint4 codes(const std::byte* a, int group, int lane) {
        return shared4(a + group / 2 * kUnit + group % 2 * 512 + lane * 16);
    }
    static __device__ __forceinline__ int2 joined(const Accumulators& s, int codes) {
        return make_int2(s.c[0] * 256 + s.c[1] - 128 * codes, s.c[2] * 256 + s.c[3] - 128 * codes);
    }
    static __device__ __forceinline__ float value(const RowScales& r, int row, float sum, int) {
        return __fmul_rn(r.s[row], sum);
    }
};

template <>
struct SlabForm<SlabKind::q4_0> : NibbleForm {
    static __device__ __forceinline__ RowScales scales(const std::byte* a, int group, int g, None, float) {
        using S = SlabOf<SlabKind::q4_0>;
        const float2 d = half2_floats(shared1(a + S::scales_at + group / 2 * 64 + 8 * g + group % 2 * 4));
        return {{d.x, d.y}, {}};
    }
    static __device__ __forceinline__ uint4 codes(const std::byte* a, int group, int lane) {
        return nibbles<SlabOf<SlabKind::q4_0>::unit>(a, group, lane);
    }
    // d · (q − 8): exact up to the product with d.
    static __device__ __forceinline__ float value(const RowScales& r, int row, float sum, int codes) {
        return __fmul_rn(r.s[row], fmaf(row ? -128.0f : -8.0f, float(codes), sum));
    }
};
template <>
struct SlabForm<SlabKind::q4_1> : NibbleForm {
    static __device__ __forceinline__ RowScales scales(const std::byte* a, int group, int g, None,
                                                       float m_factor) {
        using S = SlabOf<SlabKind::q4_1>;
        const std::byte* at = a + S::scales_at + group / 2 * 128 + 16 * g + group % 2 * 4;
        const float2 d = half2_floats(shared1(at)), m = half2_floats(shared1(at + 8));
        return {{d.x, d.y}, {__fmul_rn(m.x, m_factor), __fmul_rn(m.y, m_factor)}};
    }
    static __device__ __forceinline__ uint4 codes(const std::byte* a, int group, int lane) {
        return nibbles<SlabOf<SlabKind::q4_1>::unit>(a, group, lane);
    }
};

// Eight nibbles of a code word through a table of 16 bytes: the word of row g, the word of row g+8.
template <uint32_t kA, uint32_t kB, uint32_t kC, uint32_t kD>
struct TableForm {
    static __device__ __forceinline__ uint2 looked_up(uint32_t w) {
        const uint32_t low = w & 0x77777777u, side = ((w >> 1) & 0x44444444u) | 0x32103210u;
        const uint32_t first = permute(permute(kA, kB, low), permute(kC, kD, low), side);
        const uint32_t last = permute(permute(kA, kB, low >> 16), permute(kC, kD, low >> 16), side >> 16);
        return make_uint2(permute(first, last, 0x6420u), permute(first, last, 0x7531u));
    }
    template <int kUnit>
    static __device__ __forceinline__ uint4 words(const std::byte* a, int group, int lane) {
        const uint4 w = shared4(a + group / 2 * kUnit + lane * 16);
        const uint2 x = looked_up(group % 2 ? w.z : w.x), y = looked_up(group % 2 ? w.w : w.y);
        return make_uint4(x.x, x.y, y.x, y.y);
    }
    static __device__ __forceinline__ void multiply(Accumulators& s, const uint4& a, uint32_t b0,
                                                    uint32_t b1) {
        mma_s8s8(s.c, a.x, a.y, a.z, a.w, b0, b1);
    }
    static __device__ __forceinline__ int2 joined(const Accumulators& s, int) {
        return make_int2(s.c[0] * 256 + s.c[1], s.c[2] * 256 + s.c[3]);
    }
    static __device__ __forceinline__ float value(const RowScales& r, int row, float sum, int) {
        return __fmul_rn(r.s[row], sum);
    }
};

template <>
struct SlabForm<SlabKind::iq4_xs>
    : TableForm<four_bytes(-127, -104, -83, -65), four_bytes(-49, -35, -22, -10), four_bytes(1, 13, 25, 38),
                four_bytes(53, 69, 89, 113)> {
    // D of rows g and g+8, out of the spare bits of the four scale words.
    using S = SlabOf<SlabKind::iq4_xs>;
    static __device__ __forceinline__ float2 once(const std::byte* a, int g, float) {
        uint32_t d = 0;
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const uint32_t w = shared1(a + S::scales_at + 32 * u + 4 * g);
            d |= (u < 3 ? w >> (12 - 4 * u) : w) & (0x000f000fu << (4 * u));
        }
        return half2_floats(d);
    }
    // fp16 1024 + x has x in its low bits.
    static __device__ __forceinline__ RowScales scales(const std::byte* a, int group, int g, float2 d,
                                                       float) {
        const uint32_t raw = shared1(a + S::scales_at + group / 2 * 32 + 4 * g),
                       v = ((raw >> group % 2 * 6) & 0x003f003fu) | 0x64006400u;
        const float2 s = __half22float2(
            __hadd2(*reinterpret_cast<const __half2*>(&v), __floats2half2_rn(-1056.0f, -1056.0f)));
        return {{__fmul_rn(s.x, d.x), __fmul_rn(s.y, d.y)}, {}};
    }
    static __device__ __forceinline__ uint4 codes(const std::byte* a, int group, int lane) {
        return words<S::unit>(a, group, lane);
    }
};
template <>
struct SlabForm<SlabKind::mxfp4> : TableForm<four_bytes(0, 1, 2, 3), four_bytes(4, 6, 8, 12),
                                             four_bytes(0, -1, -2, -3), four_bytes(-4, -6, -8, -12)> {
    using S = SlabOf<SlabKind::mxfp4>;
    struct None {};
    static __device__ __forceinline__ None once(const std::byte*, int, float) { return {}; }
    // 2^(e − 127); of e = 0 the subnormal.
    static __device__ __forceinline__ float power(uint32_t exponent_in_place) {
        return __int_as_float(max(int(exponent_in_place & 0x7f800000u), 0x00400000));
    }
    static __device__ __forceinline__ RowScales scales(const std::byte* a, int group, int g, None, float) {
        const uint32_t raw = shared1(a + S::scales_at + group / 2 * 32 + 4 * g) >> group % 2 * 16;
        return {{power(raw << 23), power(raw << 15)}, {}};
    }
    static __device__ __forceinline__ uint4 codes(const std::byte* a, int group, int lane) {
        return words<S::unit>(a, group, lane);
    }
};

}  // namespace sparkinfer::cuda
