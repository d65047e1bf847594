// slab_mma.cuh — one item of a slab (16 rows × 256 columns) times int8 activations, on the integer tensor
// cores.
//
// Columns: C = 2 or 8 vectors of int8 activations at once, 8/C groups of 32 columns side by side in one MMA,
// so that the tensor pipe does 8 MMAs per 4096 weights at any C. A vector is one plane of a token's 16-bit
// activations: the high bytes with scale 256·d, the low bytes with scale d; their results add up to the
// token's. Sums are exact integers inside a group of 32; groups add in one fixed order, whatever C.
//
// Activations of C vectors (ActivationLayout): codes [group of 32][vector][t][2 words], bytes in slab_column
// order; then, per format, what the accumulators need: pairs [pair of groups][vector] {d, s, d, s} or, Q6_K,
// [group][vector] {d, s, s, 0}.
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

constexpr int kMagic =
    0x4B400000;  // 1.5·2²³ as float bits: adding an int below 2²² to it makes a float of it
constexpr float kMagicFloat = 12582912.0f;

// Bytes of the codes of C vectors of `columns` columns, and of the accumulator helpers behind them.
HD constexpr int activation_codes(int columns, int vectors) { return columns * vectors; }
HD constexpr int activation_helpers(int columns, int vectors, bool k6) {
    return columns / 32 * vectors * (k6 ? 16 : 8);
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

// Partial sums of a lane: rows g and g+8 for the vectors its accumulator columns stand for, in up to four
// chains.
template <int C>
struct SlabSums {
    static constexpr int count = C == 8 ? 16 : 2 * C;
    float v[count];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < count; ++i) v[i] = 0;
    }
};

// D and M of rows g and g+8, out of the spare bits of the item's four scale words.
struct ItemScales {
    float d_low, m_low, d_high, m_high;
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
    return {p.x, p.y * m_factor, q.x, q.y * m_factor};
}

// sums += item · activations, formats of 32-column groups. `codes`, `helpers`: of this item's 256 columns.
template <SlabKind F, int C>
__device__ __forceinline__ void slab_item_32(const std::byte* a, const std::byte* codes,
                                             const std::byte* helpers, float m_factor, SlabSums<C>& sums,
                                             int lane) {
    constexpr int kGroups = 8 / C;  // groups of 32 columns in one MMA
    constexpr bool kQ8 = F == SlabKind::q8;
    constexpr int kUnit = SlabOf<F>::unit, kScales = 4 * kUnit;
    const int g = lane >> 2, t = lane & 3, gr = g % kGroups;
    ItemScales s{};
    if constexpr (!kQ8) s = item_scales(a + kScales, g, m_factor);
    constexpr int kChains = C == 2 ? 2 : 1;
    float even[4];
    uint4 h0, h1;
    uint2 sw;
    uint4 w;
    uint32_t high = 0;
#pragma unroll
    for (int ch = 0; ch < C; ++ch) {
        const uint2 x = shared2(codes + ((ch * kGroups + gr) * C + g / kGroups) * 32 + t * 8);
        const int pair = C == 8 ? ch >> 1 : (ch * kGroups + (2 * t) % kGroups) >> 1;
        const int vector = C == 8 ? 2 * t : 2 * t / kGroups;
        if (C != 8 || !(ch & 1)) {
            h0 = shared4(helpers + (pair * C + vector) * 16);
            if (C == 8) h1 = shared4(helpers + (pair * C + vector + 1) * 16);
            sw = kQ8 ? shared2(a + pair * kUnit + 1024 + g * 8) : shared2(a + kScales + pair * 64 + g * 8);
        }
        int c[kChains][4], hc[4] = {0, 0, 0, 0};
        if constexpr (!kQ8) {
            c[0][0] = c[0][1] = c[0][2] = c[0][3] = kMagic;
        } else if constexpr (C == 8) {
            c[0][0] = c[0][2] = int((ch & 1) ? h0.w : h0.y);
            c[0][1] = c[0][3] = int((ch & 1) ? h1.w : h1.y);
        } else {
            c[0][0] = c[0][2] = int(h0.y);
            c[0][1] = c[0][3] = int(h0.w);
        }
#pragma unroll
        for (int z = 1; z < kChains; ++z) c[z][0] = c[z][1] = c[z][2] = c[z][3] = 0;
#pragma unroll
        for (int i = ch * kGroups; i < ch * kGroups + kGroups; ++i) {
            int* cc = c[i % kChains];
            const bool mine = kGroups == 1 || gr == i % kGroups;
            const uint32_t b0 = mine ? x.x : 0u, b1 = mine ? x.y : 0u;
            if constexpr (kQ8) {
                const uint4 v = shared4(a + (i >> 1) * kUnit + (i & 1) * 512 + lane * 16);
                mma_u8s8(cc, v.x, v.y, v.z, v.w, b0, b1);
            } else {
                if (!(i & 1)) {
                    w = shared4(a + (i >> 1) * kUnit + lane * 16);
                    if constexpr (F == SlabKind::k5) high = shared1(a + (i >> 1) * kUnit + 512 + lane * 4);
                }
                const uint32_t e = (i & 1) ? w.z : w.x, f = (i & 1) ? w.w : w.y;
                mma_u8s8(cc, e, e & 0xf0f0f0f0u, f, f & 0xf0f0f0f0u, b0, b1);
                if constexpr (F == SlabKind::k5) {
                    const int j = (i & 1) * 2;
                    mma_u8s8(hc, __funnelshift_r(high, high, j) & 0x10101010u,
                             __funnelshift_r(high, high, 8 + j) & 0x01010101u,
                             __funnelshift_r(high, high, j + 1) & 0x10101010u,
                             __funnelshift_r(high, high, 9 + j) & 0x01010101u, b0, b1);
                }
            }
        }
#pragma unroll
        for (int z = 1; z < kChains; ++z)
#pragma unroll
            for (int i = 0; i < 4; ++i) c[0][i] += c[z][i];
        if constexpr (F == SlabKind::k5) c[0][0] += hc[0], c[0][1] += hc[1];
        // Row g's words carry 16 times row g+8's nibbles; the difference takes them out, exactly.
        const float low0 = __int_as_float(c[0][0]) - __int_as_float(c[0][2]),
                    low1 = __int_as_float(c[0][1]) - __int_as_float(c[0][3]);
        if constexpr (F == SlabKind::k5) c[0][2] += 256 * hc[2], c[0][3] += 256 * hc[3];
        const float high0 = __int_as_float(c[0][2]) - kMagicFloat,
                    high1 = __int_as_float(c[0][3]) - kMagicFloat;
        if constexpr (C == 8) {
            const float d[4] = {
                __int_as_float(int((ch & 1) ? h0.z : h0.x)), __int_as_float(int((ch & 1) ? h1.z : h1.x)),
                __int_as_float(int((ch & 1) ? h0.z : h0.x)), __int_as_float(int((ch & 1) ? h1.z : h1.x))};
            float v[4];
            if constexpr (kQ8) {
                const float2 f = half2_floats((ch & 1) ? sw.y : sw.x);
                v[0] = __fmul_rn(f.x, __int_as_float(c[0][0]) - kMagicFloat);
                v[1] = __fmul_rn(f.x, __int_as_float(c[0][1]) - kMagicFloat);
                v[2] = __fmul_rn(f.y, high0);
                v[3] = __fmul_rn(f.y, high1);
            } else {
                const float2 fg = scale_minimum((ch & 1) ? sw.x >> 6 : sw.x),
                             fh = scale_minimum((ch & 1) ? sw.y >> 6 : sw.y);
                const float sg = __fmul_rn(fg.x, s.d_low), ng = __fmul_rn(fg.y, s.m_low),
                            sh = __fmul_rn(fh.x, s.d_high), nh = __fmul_rn(fh.y, s.m_high);
                const float x0 = __int_as_float(int((ch & 1) ? h0.w : h0.y)),
                            x1 = __int_as_float(int((ch & 1) ? h1.w : h1.y));
                v[0] = fmaf(ng, x0, __fmul_rn(sg, low0));
                v[1] = fmaf(ng, x1, __fmul_rn(sg, low1));
                v[2] = fmaf(nh, x0, __fmul_rn(sh, high0));
                v[3] = fmaf(nh, x1, __fmul_rn(sh, high1));
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (!(ch & 1))
                    even[j] = __fmul_rn(d[j], v[j]);
                else
                    sums.v[(ch >> 1) * 4 + j] += fmaf(d[j], v[j], even[j]);
            }
        } else {
            const float d0 = __int_as_float(int(h0.x)), d1 = __int_as_float(int(h0.z));
            if constexpr (kQ8) {
                const float2 f0 = half2_floats(sw.x), f1 = half2_floats(sw.y);
                sums.v[ch * 2] += fmaf(d1, __fmul_rn(f1.x, __int_as_float(c[0][1]) - kMagicFloat),
                                       __fmul_rn(d0, __fmul_rn(f0.x, __int_as_float(c[0][0]) - kMagicFloat)));
                sums.v[ch * 2 + 1] += fmaf(d1, __fmul_rn(f1.y, high1), __fmul_rn(d0, __fmul_rn(f0.y, high0)));
            } else {
                const float2 g0 = scale_minimum(sw.x), g1 = scale_minimum(sw.x >> 6),
                             e0 = scale_minimum(sw.y), e1 = scale_minimum(sw.y >> 6);
                const float x0 = __int_as_float(int(h0.y)), x1 = __int_as_float(int(h0.w));
                const float a0 =
                    fmaf(__fmul_rn(g0.y, s.m_low), x0, __fmul_rn(__fmul_rn(g0.x, s.d_low), low0));
                const float a1 =
                    fmaf(__fmul_rn(g1.y, s.m_low), x1, __fmul_rn(__fmul_rn(g1.x, s.d_low), low1));
                const float b0 =
                    fmaf(__fmul_rn(e0.y, s.m_high), x0, __fmul_rn(__fmul_rn(e0.x, s.d_high), high0));
                const float b1 =
                    fmaf(__fmul_rn(e1.y, s.m_high), x1, __fmul_rn(__fmul_rn(e1.x, s.d_high), high1));
                sums.v[ch * 2] += fmaf(d1, a1, __fmul_rn(d0, a0));
                sums.v[ch * 2 + 1] += fmaf(d1, b1, __fmul_rn(d0, b0));
            }
        }
    }
}

// The same for Q6_K, whose scales are per 16 columns: MMAs of 16 columns, 2·C chains of 8/C groups.
template <int C>
__device__ __forceinline__ void slab_item_16(const std::byte* a, const std::byte* codes,
                                             const std::byte* helpers, SlabSums<C>& sums, int lane) {
    using F = Format<Quant::q6_k_slab>;
    constexpr int kGroups = 8 / C;
    const int g = lane >> 2, t = lane & 3, gr = g % kGroups;
    const float2 d = half2_floats(shared1(a + F::d_at + g * 4));
    uint4 w, h0, h1;
    uint2 high;
    uint32_t sw = 0;
    float even[4];
#pragma unroll
    for (int cq = 0; cq < 2 * C; ++cq) {
        const int i0 = cq * kGroups, ig = i0 + gr;
        const uint32_t x = shared1(codes + ((ig >> 1) * C + g / kGroups) * 32 + t * 8 + (ig & 1) * 4);
        const int group = C == 8 ? cq >> 1 : (i0 + (2 * t) % kGroups) >> 1,
                  vector = C == 8 ? 2 * t : 2 * t / kGroups;
        if (C != 8 || !(cq & 1)) {
            h0 = shared4(helpers + (group * C + vector) * 16);
            if (C == 8) h1 = shared4(helpers + (group * C + vector + 1) * 16);
            sw = shared1(a + F::scales_at + (group >> 1) * 64 + g * 8 + (group & 1) * 4);
        }
        const int s0 = int(C == 8 ? ((cq & 1) ? h0.z : h0.y) : h0.y),
                  s1 = int(C == 8 ? ((cq & 1) ? h1.z : h1.y) : h0.z);
        int c[4] = {kMagic + s0, kMagic + s1, kMagic, kMagic}, hc[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = i0; i < i0 + kGroups; ++i) {
            const uint32_t b = (kGroups == 1 || gr == i % kGroups) ? x : 0u;
            const int j = i & 3;
            if (j == 0) {
                w = shared4(a + (i >> 2) * F::unit + lane * 16);
                high = shared2(a + (i >> 2) * F::unit + 512 + lane * 8);
            }
            const uint32_t e = j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w, y = j < 2 ? high.x : high.y;
            mma_u8s8_k16(c, e, e & 0xf0f0f0f0u, b);
            mma_u8s8_k16(hc, __funnelshift_r(y, y, 2 * (j & 1)) & 0x30303030u,
                         __funnelshift_r(y, y, 8 + 2 * (j & 1)) & 0x03030303u, b);
        }
        const float low0 = __int_as_float(c[0] - c[2] + hc[0] + kMagic) - kMagicFloat,
                    low1 = __int_as_float(c[1] - c[3] + hc[1] + kMagic) - kMagicFloat,
                    high0 = __int_as_float(c[2] + 16 * s0 + 256 * hc[2]) - kMagicFloat,
                    high1 = __int_as_float(c[3] + 16 * s1 + 256 * hc[3]) - kMagicFloat;
        if constexpr (C == 8) {
            const float sg = __fmul_rn(unbiased_byte(sw, (cq & 1) * 2), d.x),
                        sh = __fmul_rn(unbiased_byte(sw, (cq & 1) * 2 + 1), d.y);
            const float scale[4] = {__int_as_float(int(h0.x)), __int_as_float(int(h1.x)),
                                    __int_as_float(int(h0.x)), __int_as_float(int(h1.x))};
            const float f[4] = {low0, low1, high0, high1};
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const float sq = q < 2 ? sg : sh;
                if (!(cq & 1)) {
                    even[q] = __fmul_rn(sq, f[q]);
                } else {
                    float& sum = sums.v[((cq >> 1) & 3) * 4 + q];
                    sum = fmaf(scale[q], fmaf(sq, f[q], even[q]), sum);
                }
            }
        } else {
            const float scale = __int_as_float(int(h0.x));
            const int o = (cq % C) * 2;
            sums.v[o] = fmaf(scale,
                             fmaf(__fmul_rn(unbiased_byte(sw, 2), d.x), low1,
                                  __fmul_rn(__fmul_rn(unbiased_byte(sw, 0), d.x), low0)),
                             sums.v[o]);
            sums.v[o + 1] = fmaf(scale,
                                 fmaf(__fmul_rn(unbiased_byte(sw, 3), d.y), high1,
                                      __fmul_rn(__fmul_rn(unbiased_byte(sw, 1), d.y), high0)),
                                 sums.v[o + 1]);
        }
    }
}

template <SlabKind F, int C>  // slab_mma_more.cuh
__device__ __forceinline__ void slab_item_more(const std::byte* a, const std::byte* codes,
                                               const std::byte* helpers, float m_factor, SlabSums<C>& sums,
                                               int lane);

template <SlabKind F, int C>
__device__ __forceinline__ void slab_item(const std::byte* a, const std::byte* codes,
                                          const std::byte* helpers, float m_factor, SlabSums<C>& sums,
                                          int lane) {
    if constexpr (F == SlabKind::k6)
        slab_item_16<C>(a, codes, helpers, sums, lane);
    else if constexpr (F > SlabKind::q8)
        slab_item_more<F, C>(a, codes, helpers, m_factor, sums, lane);
    else
        slab_item_32<F, C>(a, codes, helpers, m_factor, sums, lane);
}

// A warp's 16 rows × C vectors -> to[vector · 16 + row].
template <int C>
__device__ __forceinline__ void store_sums(const SlabSums<C>& s, float* to, int lane) {
    const int g = lane >> 2, t = lane & 3;
    if constexpr (C == 2) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = s.v[i] + __shfl_xor_sync(0xffffffffu, s.v[i], 1);
        if (!(t & 1)) {
            to[(t >> 1) * 16 + g] = v[0] + v[2];
            to[(t >> 1) * 16 + g + 8] = v[1] + v[3];
        }
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
            to[(2 * t + (j & 1)) * 16 + g + (j >> 1) * 8] =
                (s.v[j] + s.v[4 + j]) + (s.v[8 + j] + s.v[12 + j]);
    }
}

}  // namespace sparkinfer::cuda

#include "cuda/lib/slab_mma_more.cuh"
