// slab_half.cuh — 16 rows × 64 columns of a slab as FP16 fragments of the A operand of mma.m16n8k16 and of
// wgmma.m64k16, converted in registers.
//
// A field of up to 11 bits inside an FP16 word *is* the number field · 2^-24 (subnormals go on linearly into
// the first normal binade), and HFMA2 takes subnormals at full speed: so a code is masked, multiplied by its
// scale and added to its minimum in two instructions for two weights, and nothing is subtracted. Weights come
// out as w / Weight::scale[0] · 2^(power − 24), see HalfScales: the epilogue undoes both.
#pragma once
#include <cuda_fp16.h>

#include "cuda/lib/math.cuh"
#include "cuda/lib/slab_mma.cuh"

namespace sparkinfer::cuda {

__device__ __forceinline__ uint32_t half2_fma(uint32_t a, uint32_t s, uint32_t b) {
    uint32_t r;
    asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(s), "r"(b));
    return r;
}
__device__ __forceinline__ uint32_t half2_mul(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ uint32_t low_twice(uint32_t x) {
    const __half2 h = __low2half2(*reinterpret_cast<const __half2*>(&x));
    return *reinterpret_cast<const uint32_t*>(&h);
}
__device__ __forceinline__ uint32_t high_twice(uint32_t x) {
    const __half2 h = __high2half2(*reinterpret_cast<const __half2*>(&x));
    return *reinterpret_cast<const uint32_t*>(&h);
}

// What D and M of the rows g and g + 8 are multiplied by once for 256 columns, so that D times its six or
// eight bits of scale still is an FP16 number, M is in the same unit, and each row fills FP16 as well as the
// tensor's greatest does (row_powers.cu).
template <SlabKind F>
constexpr int kHalfPower = F == SlabKind::k6   ? -7
                           : F == SlabKind::q8 ? 0
                                               : -6;
struct HalfScales {
    int power[2];  // of the rows g and g + 8
    int relative;  // of M beyond D
};
template <SlabKind F>
__device__ __forceinline__ HalfScales half_scales(const float* factor, const int8_t* powers, int g) {
    HalfScales s{{powers[g], powers[g + 8]}, 0};
    if constexpr (F == SlabKind::k4 || F == SlabKind::k5)
        s.relative = int(__float_as_uint(factor[1]) >> 23 & 255) - 127;
    return s;
}
// Of one k-step: `codes` at the slab's unit of 64 columns, `scales` at its scales of 256 columns; `kept`
// lasts for the four units of an item.
template <SlabKind>
struct HalfSlab;

template <>
struct HalfSlab<SlabKind::k4> {
    static constexpr int kCodes = 512, kScales = 256, kKept = 2;
    uint4 c;
    uint32_t s[4];  // half2 {scale, minimum}: first 32 columns of rows g, g+8; second 32
    static __device__ __forceinline__ uint32_t scale(uint32_t w, uint32_t dm) {
        return half2_mul(half2_add((w & 0x003f003fu) | 0x64006400u, 0xe400e400u), dm);
    }
    static __device__ __forceinline__ uint32_t adapt(uint32_t dm, const HalfScales& by, int row) {
        const float2 v = half2_floats(dm);
        const int power = by.power[row] - 6;
        return half2_of(v.x * power_of_two(power), v.y * power_of_two(power + by.relative - 24));
    }
    template <int kUnit>
    __device__ __forceinline__ void load(const std::byte* codes, const std::byte* scales, int lane,
                                         uint32_t* kept, const HalfScales& by) {
        c = shared4(codes + lane * 16);
        const std::byte* at = scales + (lane >> 2) * 8;
        if constexpr (kUnit == 0) {
            uint32_t a = 0, b = 0;
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const uint2 w = shared2(at + u * 64);
                const uint32_t mask = 0x000f000fu << (4 * u);
                a |= (u < 3 ? w.x >> (12 - 4 * u) : w.x) & mask;
                b |= (u < 3 ? w.y >> (12 - 4 * u) : w.y) & mask;
            }
            kept[0] = adapt(a, by, 0), kept[1] = adapt(b, by, 1);
        }
        const uint2 w = shared2(at + kUnit * 64);
        s[0] = scale(w.x, kept[0]), s[1] = scale(w.y, kept[1]);
        s[2] = scale(w.x >> 6, kept[0]), s[3] = scale(w.y >> 6, kept[1]);
    }
    template <int J>
    __device__ __forceinline__ void convert(uint32_t* a) const {
        const uint32_t x = J == 0 ? c.x : J == 1 ? c.y : J == 2 ? c.z : c.w, y = x >> 8;
        const uint32_t p = s[J < 2 ? 0 : 2], q = s[J < 2 ? 1 : 3];
        a[0] = half2_fma(x & 0x000f000f, low_twice(p), high_twice(p));
        a[1] = half2_fma(x & 0x00f000f0, low_twice(q), high_twice(q));
        a[2] = half2_fma(y & 0x000f000f, low_twice(p), high_twice(p));
        a[3] = half2_fma(y & 0x00f000f0, low_twice(q), high_twice(q));
    }
};

template <>
struct HalfSlab<SlabKind::k5> {
    static constexpr int kCodes = 640, kScales = 256, kKept = 2;
    HalfSlab<SlabKind::k4> low;
    uint32_t h;
    template <int kUnit>
    __device__ __forceinline__ void load(const std::byte* codes, const std::byte* scales, int lane,
                                         uint32_t* kept, const HalfScales& by) {
        low.load<kUnit>(codes, scales, lane, kept, by);
        h = shared1(codes + 512 + lane * 4);
    }
    template <int J>
    __device__ __forceinline__ void convert(uint32_t* a) const {
        const uint4& c = low.c;
        const uint32_t x = J == 0 ? c.x : J == 1 ? c.y : J == 2 ? c.z : c.w, x8 = x >> 8;
        const uint32_t y = J ? __funnelshift_r(h, h, J) : h, y8 = __funnelshift_r(h, h, 8 + J);
        const uint32_t p = low.s[J < 2 ? 0 : 2], q = low.s[J < 2 ? 1 : 3];
        a[0] = half2_fma(masked_or(y, 0x00100010, x & 0x000f000f), low_twice(p), high_twice(p));
        a[1] = half2_fma(masked_or(y, 0x01000100, x & 0x00f000f0), low_twice(q), high_twice(q));
        a[2] = half2_fma(masked_or(y8, 0x00100010, x8 & 0x000f000f), low_twice(p), high_twice(p));
        a[3] = half2_fma(masked_or(y8, 0x01000100, x8 & 0x00f000f0), low_twice(q), high_twice(q));
    }
};

template <>
struct HalfSlab<SlabKind::k6> {
    static constexpr int kCodes = 768, kScales = 288, kKept = 1;
    uint4 c;
    uint2 h;
    uint32_t s[4];  // half2 of rows g and g+8, by 16 columns
    // Bytes 0 and 1, or 2 and 3, are scales + 128: FP16 1024 + byte − 1152.
    static __device__ __forceinline__ uint32_t scale(uint32_t w, uint32_t which, uint32_t d) {
        return half2_mul(half2_add(__byte_perm(w, 0x64646464u, which), 0xe480e480u), d);
    }
    template <int kUnit>
    __device__ __forceinline__ void load(const std::byte* codes, const std::byte* scales, int lane,
                                         uint32_t* kept, const HalfScales& by) {
        c = shared4(codes + lane * 16);
        h = shared2(codes + 512 + lane * 8);
        const int g = lane >> 2;
        if constexpr (kUnit == 0) {
            const float2 d = half2_floats(shared1(scales + 256 + g * 4));
            kept[0] = half2_of(d.x * power_of_two(by.power[0] - 7), d.y * power_of_two(by.power[1] - 7));
        }
        const uint2 w = shared2(scales + kUnit * 64 + g * 8);
        s[0] = scale(w.x, 0x4140, kept[0]), s[1] = scale(w.x, 0x4342, kept[0]);
        s[2] = scale(w.y, 0x4140, kept[0]), s[3] = scale(w.y, 0x4342, kept[0]);
    }
    template <int J>
    __device__ __forceinline__ void convert(uint32_t* a) const {
        const uint32_t x = J == 0 ? c.x : J == 1 ? c.y : J == 2 ? c.z : c.w, x8 = x >> 8;
        const uint32_t whole = J < 2 ? h.x : h.y;
        const uint32_t y = (J & 1) ? __funnelshift_r(whole, whole, 2) : whole,
                       y8 = __funnelshift_r(whole, whole, 8 + 2 * (J & 1));
        // −32 · 2^-24 for row g, −512 · 2^-24 for row g+8, whose codes lie four bits higher.
        const uint32_t bias = half2_mul(s[J], 0x82008020u);
        a[0] = half2_fma(masked_or(y, 0x00300030, x & 0x000f000f), low_twice(s[J]), low_twice(bias));
        a[1] = half2_fma(masked_or(y, 0x03000300, x & 0x00f000f0), high_twice(s[J]), high_twice(bias));
        a[2] = half2_fma(masked_or(y8, 0x00300030, x8 & 0x000f000f), low_twice(s[J]), low_twice(bias));
        a[3] = half2_fma(masked_or(y8, 0x03000300, x8 & 0x00f000f0), high_twice(s[J]), high_twice(bias));
    }
};

template <>
struct HalfSlab<SlabKind::q8> {
    static constexpr int kCodes = 1088, kScales = 0, kKept = 1;
    uint4 c[2];
    uint2 s;
    template <int kUnit>
    __device__ __forceinline__ void load(const std::byte* codes, const std::byte*, int lane, uint32_t* kept,
                                         const HalfScales& by) {
        c[0] = shared4(codes + lane * 16), c[1] = shared4(codes + 512 + lane * 16);
        s = shared2(codes + 1024 + (lane >> 2) * 8);
        if constexpr (kUnit == 0) kept[0] = half2_of(power_of_two(by.power[0]), power_of_two(by.power[1]));
        s.x = half2_mul(s.x, kept[0]), s.y = half2_mul(s.y, kept[0]);
    }
    template <int J>
    __device__ __forceinline__ void convert(uint32_t* a) const {
        const uint4& v = c[J / 2];
        const uint32_t x = J & 1 ? v.z : v.x, z = J & 1 ? v.w : v.y, d = J < 2 ? s.x : s.y;
        const uint32_t bias = half2_mul(d, 0x80808080u);  // FP16 0x8080 is −128 · 2^-24
        a[0] = half2_fma(x & 0x00ff00ff, low_twice(d), low_twice(bias));
        a[1] = half2_fma(z & 0x00ff00ff, high_twice(d), high_twice(bias));
        a[2] = half2_fma((x >> 8) & 0x00ff00ff, low_twice(d), low_twice(bias));
        a[3] = half2_fma((z >> 8) & 0x00ff00ff, high_twice(d), high_twice(bias));
    }
};

}  // namespace sparkinfer::cuda
