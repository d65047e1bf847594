// slab_mma.cuh — one item of a slab (16 rows × 256 columns) times int8 activations, on the integer tensor
// cores.
//
// Columns: C = 2 or 8 vectors of int8 activations at once, 8/C groups of 32 columns side by side in one MMA,
// so that the tensor pipe does 8 MMAs per 4096 weights at any C. A vector is one plane of a token's 16-bit
// activations: the high bytes with scale 256·d, the low bytes with scale d; their results add up to the
// token's. Sums are exact integers inside a group of 32; groups add in one fixed order, whatever C.
//
// Activations reach the MMAs as Fragments, in registers (activations.cuh makes them).
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

// One item's activations as this lane's part of the MMAs' B operands. Column n of an MMA is vector n / (8/C)
// of group n % (8/C) of its chain; a chain is the 8/C groups of 32 columns that share accumulators.
template <int kMask, int C>
struct Fragments {
    static constexpr bool kHalves = kMask & (1 << int(SlabKind::k6));
    uint32_t x[C][2];  // codes of column g: the words of its first and last 16 columns
    // Of accumulator columns 2t and 2t + 1: the scale, and the sum of the group's codes; with kHalves that of
    // its first 16 plus 65,536 times that of its last 16.
    float d[C][2];
    int sum[C][2];
    __device__ __forceinline__ int first(int chain, int column) const { return int16_t(sum[chain][column]); }
    __device__ __forceinline__ int last(int chain, int column) const {
        return (sum[chain][column] - first(chain, column)) >> 16;
    }
    __device__ __forceinline__ int whole(int chain, int column) const {
        return kHalves ? first(chain, column) + last(chain, column) : sum[chain][column];
    }
};

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

// sums += item · activations, formats of 32-column groups.
template <SlabKind F, int kMask, int C>
__device__ __forceinline__ void slab_item_32(const std::byte* a, const Fragments<kMask, C>& x, float m_factor,
                                             SlabSums<C>& sums, int lane) {
    constexpr int kGroups = 8 / C;  // groups of 32 columns in one chain
    constexpr bool kQ8 = F == SlabKind::q8;
    constexpr int kUnit = SlabOf<F>::unit, kScales = 4 * kUnit, kChains = C == 2 ? 2 : 1;
    const int g = lane >> 2, t = lane & 3, gr = g % kGroups;
    ItemScales s{};
    if constexpr (!kQ8) s = item_scales(a + kScales, g, m_factor);
    float even[4];
    uint2 sw;
    uint4 w;
    uint32_t high = 0;
#pragma unroll
    for (int ch = 0; ch < C; ++ch) {
        const int pair = C == 8 ? ch >> 1 : (ch * kGroups + (2 * t) % kGroups) >> 1;
        if (C != 8 || !(ch & 1))
            sw = kQ8 ? shared2(a + pair * kUnit + 1024 + g * 8) : shared2(a + kScales + pair * 64 + g * 8);
        int c[kChains][4], hc[4] = {0, 0, 0, 0};
        c[0][0] = c[0][2] = kQ8 ? kMagic - 128 * x.whole(ch, 0) : kMagic;
        c[0][1] = c[0][3] = kQ8 ? kMagic - 128 * x.whole(ch, 1) : kMagic;
#pragma unroll
        for (int z = 1; z < kChains; ++z) c[z][0] = c[z][1] = c[z][2] = c[z][3] = 0;
#pragma unroll
        for (int i = ch * kGroups; i < ch * kGroups + kGroups; ++i) {
            int* cc = c[i % kChains];
            const bool mine = kGroups == 1 || gr == i % kGroups;
            const uint32_t b0 = mine ? x.x[ch][0] : 0u, b1 = mine ? x.x[ch][1] : 0u;
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
        const float low0 = __int_as_float(c[0][0]) - (kQ8 ? kMagicFloat : __int_as_float(c[0][2])),
                    low1 = __int_as_float(c[0][1]) - (kQ8 ? kMagicFloat : __int_as_float(c[0][3]));
        if constexpr (F == SlabKind::k5) c[0][2] += 256 * hc[2], c[0][3] += 256 * hc[3];
        const float high0 = __int_as_float(c[0][2]) - kMagicFloat,
                    high1 = __int_as_float(c[0][3]) - kMagicFloat;
        const float d0 = x.d[ch][0], d1 = x.d[ch][1];
        if constexpr (C == 8) {
            float v[4];
            if constexpr (kQ8) {
                const float2 f = half2_floats((ch & 1) ? sw.y : sw.x);
                v[0] = __fmul_rn(f.x, low0);
                v[1] = __fmul_rn(f.x, low1);
                v[2] = __fmul_rn(f.y, high0);
                v[3] = __fmul_rn(f.y, high1);
            } else {
                const float2 fg = scale_minimum((ch & 1) ? sw.x >> 6 : sw.x),
                             fh = scale_minimum((ch & 1) ? sw.y >> 6 : sw.y);
                const float sg = __fmul_rn(fg.x, s.d_low), ng = __fmul_rn(fg.y, s.m_low),
                            sh = __fmul_rn(fh.x, s.d_high), nh = __fmul_rn(fh.y, s.m_high);
                const float x0 = float(x.whole(ch, 0)), x1 = float(x.whole(ch, 1));
                v[0] = fmaf(ng, x0, __fmul_rn(sg, low0));
                v[1] = fmaf(ng, x1, __fmul_rn(sg, low1));
                v[2] = fmaf(nh, x0, __fmul_rn(sh, high0));
                v[3] = fmaf(nh, x1, __fmul_rn(sh, high1));
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float d = (j & 1) ? d1 : d0;
                if (!(ch & 1))
                    even[j] = __fmul_rn(d, v[j]);
                else
                    sums.v[(ch >> 1) * 4 + j] += fmaf(d, v[j], even[j]);
            }
        } else if constexpr (kQ8) {
            const float2 f0 = half2_floats(sw.x), f1 = half2_floats(sw.y);
            sums.v[ch * 2] += fmaf(d1, __fmul_rn(f1.x, low1), __fmul_rn(d0, __fmul_rn(f0.x, low0)));
            sums.v[ch * 2 + 1] += fmaf(d1, __fmul_rn(f1.y, high1), __fmul_rn(d0, __fmul_rn(f0.y, high0)));
        } else {
            const float2 g0 = scale_minimum(sw.x), g1 = scale_minimum(sw.x >> 6), e0 = scale_minimum(sw.y),
                         e1 = scale_minimum(sw.y >> 6);
            const float x0 = float(x.whole(ch, 0)), x1 = float(x.whole(ch, 1));
            const float a0 = fmaf(__fmul_rn(g0.y, s.m_low), x0, __fmul_rn(__fmul_rn(g0.x, s.d_low), low0));
            const float a1 = fmaf(__fmul_rn(g1.y, s.m_low), x1, __fmul_rn(__fmul_rn(g1.x, s.d_low), low1));
            const float b0 = fmaf(__fmul_rn(e0.y, s.m_high), x0, __fmul_rn(__fmul_rn(e0.x, s.d_high), high0));
            const float b1 = fmaf(__fmul_rn(e1.y, s.m_high), x1, __fmul_rn(__fmul_rn(e1.x, s.d_high), high1));
            sums.v[ch * 2] += fmaf(d1, a1, __fmul_rn(d0, a0));
            sums.v[ch * 2 + 1] += fmaf(d1, b1, __fmul_rn(d0, b0));
        }
    }
}

// The same for Q6_K, whose scales are per 16 columns: MMAs of 16 columns, the first half of a chain's groups
// and then the last.
template <int kMask, int C>
__device__ __forceinline__ void slab_item_16(const std::byte* a, const Fragments<kMask, C>& x,
                                             SlabSums<C>& sums, int lane) {
    using F = Format<Quant::q6_k_slab>;
    constexpr int kGroups = 8 / C;
    const int g = lane >> 2, t = lane & 3, gr = g % kGroups;
    const float2 d = half2_floats(shared1(a + F::d_at + g * 4));
    uint4 w;
    uint2 high, sw;
#pragma unroll
    for (int ch = 0; ch < C; ++ch) {
        const int pair = C == 8 ? ch >> 1 : (ch * kGroups + (2 * t) % kGroups) >> 1;
        if (C != 8 || !(ch & 1)) sw = shared2(a + F::scales_at + pair * 64 + g * 8);
        float both[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int s0 = -32 * (half ? x.last(ch, 0) : x.first(ch, 0)),
                      s1 = -32 * (half ? x.last(ch, 1) : x.first(ch, 1));
            int c[4] = {kMagic + s0, kMagic + s1, kMagic, kMagic}, hc[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = ch * kGroups; i < ch * kGroups + kGroups; ++i) {
                const uint32_t b = (kGroups == 1 || gr == i % kGroups) ? x.x[ch][half] : 0u;
                const int j = (i & 1) * 2 + half;
                w = shared4(a + (i >> 1) * F::unit + lane * 16);
                high = shared2(a + (i >> 1) * F::unit + 512 + lane * 8);
                const uint32_t e = j == 0   ? w.x
                                   : j == 1 ? w.y
                                   : j == 2 ? w.z
                                            : w.w,
                               y = j < 2 ? high.x : high.y;
                mma_u8s8_k16(c, e, e & 0xf0f0f0f0u, b);
                mma_u8s8_k16(hc, __funnelshift_r(y, y, 2 * half) & 0x30303030u,
                             __funnelshift_r(y, y, 8 + 2 * half) & 0x03030303u, b);
            }
            const float f[4] = {__int_as_float(c[0] - c[2] + hc[0] + kMagic) - kMagicFloat,
                                __int_as_float(c[1] - c[3] + hc[1] + kMagic) - kMagicFloat,
                                __int_as_float(c[2] + 16 * s0 + 256 * hc[2]) - kMagicFloat,
                                __int_as_float(c[3] + 16 * s1 + 256 * hc[3]) - kMagicFloat};
#pragma unroll
            for (int q = 0; q < 4; ++q) {  // row g or g+8, accumulator column 2t or 2t+1
                const uint32_t word = C == 8 ? ((ch & 1) ? sw.y : sw.x) : ((q & 1) ? sw.y : sw.x);
                const float scale = __fmul_rn(unbiased_byte(word, half * 2 + (q >> 1)), q < 2 ? d.x : d.y);
                both[q] = half ? fmaf(scale, f[q], both[q]) : __fmul_rn(scale, f[q]);
            }
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            // Groups i and i+4 share a sum; those of 0, 2 and of 1, 3 then meet in store_sums.
            constexpr int kSlot[4] = {0, 2, 1, 3};
            float& sum = C == 8 ? sums.v[kSlot[ch & 3] * 4 + q] : sums.v[(q & 1) * 2 + (q >> 1)];
            sum = fmaf(x.d[ch][q & 1], both[q], sum);
        }
    }
}

template <SlabKind F, int kMask, int C>  // slab_mma_more.cuh
__device__ __forceinline__ void slab_item_more(const std::byte* a, const Fragments<kMask, C>& x,
                                               float m_factor, SlabSums<C>& sums, int lane);

template <SlabKind F, int kMask, int C>
__device__ __forceinline__ void slab_item(const std::byte* a, const Fragments<kMask, C>& x, float m_factor,
                                          SlabSums<C>& sums, int lane) {
    if constexpr (F == SlabKind::k6)
        slab_item_16(a, x, sums, lane);
    else if constexpr (F > SlabKind::q8)
        slab_item_more<F>(a, x, m_factor, sums, lane);
    else
        slab_item_32<F>(a, x, m_factor, sums, lane);
}

// Partial sums of a slab in shared memory: [token][row][warp][plane], rows padded against bank conflicts.
HD constexpr int red_stride(int warps) { return (2 * warps + 3) / 4 * 4 + 4; }
template <int C>
HD constexpr int red_floats(int warps) {
    return C / 2 * 16 * red_stride(warps);
}

// A warp's 16 rows × C vectors -> its place.
template <int C>
__device__ __forceinline__ void store_sums(const SlabSums<C>& s, float* red, int warps, int own, int lane) {
    const int g = lane >> 2, t = lane & 3, stride = red_stride(warps);
    if constexpr (C == 2) {
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = s.v[i] + __shfl_xor_sync(0xffffffffu, s.v[i], 1);
        float* to = red + g * stride + own * 2 + (t >> 1);
        if (!(t & 1)) to[0] = v[0] + v[2], to[8 * stride] = v[1] + v[3];
    } else {
        float* to = red + (t * 16 + g) * stride + own * 2;  // columns 2t and 2t + 1: both planes of token t
        *reinterpret_cast<float2*>(to) =
            make_float2((s.v[0] + s.v[4]) + (s.v[8] + s.v[12]), (s.v[1] + s.v[5]) + (s.v[9] + s.v[13]));
        *reinterpret_cast<float2*>(to + 8 * stride) =
            make_float2((s.v[2] + s.v[6]) + (s.v[10] + s.v[14]), (s.v[3] + s.v[7]) + (s.v[11] + s.v[15]));
    }
}

// Row `lane % 16` of a finished slab for one token (red of it): half of the warps' sums by each half of the
// warp, then the halves.
__device__ __forceinline__ float slab_sum(const float* red, int warps, int lane) {
    const int fours = (2 * warps + 3) / 4;  // of floats in a row
    const float4* v = reinterpret_cast<const float4*>(red + lane % 16 * red_stride(warps));
    float sum = 0;
#pragma unroll 2
    for (int i = lane / 16; i < fours; i += 2) {
        float4 a = v[i];
        if (4 * i + 2 >= 2 * warps) a.z = a.w = 0;
        sum += (a.x + a.y) + (a.z + a.w);
    }
    return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
}

}  // namespace sparkinfer::cuda

#include "cuda/lib/slab_mma_more.cuh"
