// activations.cuh — float32 rows as two planes of int8, as slab_mma.cuh wants them.
// v = rint(x · 32512 / max|x|) per group of 32; high plane (v + 128) >> 8, low plane v − 256 · high. Relative
// error 1.5e-5 of the group's greatest value: what the project calls 16-bit activations. Scales and sums are
// relative to a power of two of the item of 256 columns, so that sums of them are FP16 numbers and products
// stay finite.
//
// A warp makes the planes of an item of a row: lane 4s + t those of eight columns, 2t + {0, 1, 8, 9} + {0,
// 16} of group s, which are what the lanes with that t want of their columns of the MMAs.
#pragma once
#include "cuda/lib/slab_mma.cuh"

namespace sparkinfer::cuda {

__device__ __forceinline__ float2 load2_l2(const float* p) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float2 shared_two(const float* p) { return *reinterpret_cast<const float2*>(p); }

// A lane's eight columns of an item.
struct PlaneValues {
    float v[8];
    template <class Load>
    __device__ __forceinline__ void load(Load from, int lane) {
        const int column = (lane >> 2) * 32 + (lane & 3) * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 two = from(column + 8 * i);
            v[2 * i] = two.x, v[2 * i + 1] = two.y;
        }
    }
    __device__ __forceinline__ float squares() const {
        float sum = v[0] * v[0];
#pragma unroll
        for (int i = 1; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
        return sum;
    }
};
// Over the warp, in one order for everybody.
__device__ __forceinline__ float item_sum(float v) {
#pragma unroll
    for (int by = 1; by < 32; by *= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}
// Sums a, b of two groups as one of their planes, which add up to 22 bits.
__device__ __forceinline__ uint32_t sums_plane(float a, float b, bool low) {
    const uint32_t high = half2_of(a, b);
    const float2 taken = half2_floats(high);
    return low ? half2_of(a - taken.x, b - taken.y) : high;
}

// A lane's part of an item of one row in planes, and its group's scale and sums. All lanes of a warp.
struct Planes {
    uint32_t high[2], low[2];  // of the first and the last 16 columns
    float scale, sum[2];       // sums: of the first and the last 16 columns of the group, divided by kSumOfX
    float d;                   // of the item: a power of two that scale and sums lack
    __device__ __forceinline__ explicit Planes(const PlaneValues& x) {
        float greatest = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) greatest = fmaxf(greatest, fabsf(x.v[i]));
        greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 2));
        const float inverse = greatest > 0 ? __fdividef(32512.0f, greatest) : 0.0f;
        // 2^p · the item's greatest is in [2^14, 2^15); p ≤ 126, so that both powers are normal numbers.
        const int exponent =
            min(max(int(__reduce_max_sync(0xffffffffu, __float_as_uint(greatest)) >> 23), 15), 254);
        d = __uint_as_float(uint32_t(exponent - 14) << 23);
        scale = greatest * (1.0f / 32512.0f) * __uint_as_float(uint32_t(268 - exponent) << 23);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            // Integers in a float's low bits; the high plane's bytes are the next ones, rounded.
            uint32_t a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] = __float_as_uint(fmaf(x.v[4 * h + i], inverse, 12582912.0f + 128.0f));
                b[i] = __float_as_uint(fmaf(x.v[4 * h + i], inverse, 12582912.0f));
            }
            high[h] = __byte_perm(__byte_perm(a[0], a[2], 0x0051), __byte_perm(a[1], a[3], 0x0051), 0x5410);
            low[h] = __byte_perm(__byte_perm(b[0], b[2], 0x0040), __byte_perm(b[1], b[3], 0x0040), 0x5410);
            int codes = __dp4a(int(high[h]), 0x01010101, 0) * 256 + __dp4a(int(low[h]), 0x01010101, 0);
            codes += __shfl_xor_sync(0xffffffffu, codes, 1);
            codes += __shfl_xor_sync(0xffffffffu, codes, 2);
            sum[h] = float(codes) * scale * (1 / kSumOfX);
        }
    }
};

// An item's planes in shared memory: 8-byte pieces [32 columns][plane][t], and what belongs to them.
struct alignas(16) PlaneItem {
    uint2 x[8][2][4];
    uint32_t of16[2][8];  // sums [plane][32 columns]: of the first 16 and the last
    uint16_t of32[2][8];
    float scale[8], d;
};
template <int kMask>
__device__ __forceinline__ void store_planes(PlaneItem& to, const Planes& p, int lane) {
    using Of = Fragments<kMask, 1>;
    const int s = lane >> 2, t = lane & 3;
    to.x[s][0][t] = make_uint2(p.high[0], p.high[1]);
    to.x[s][1][t] = make_uint2(p.low[0], p.low[1]);
    if (t == 0) to.scale[s] = p.scale;
    if (Of::kSums16 && t == 1) {
        to.of16[0][s] = sums_plane(p.sum[0], p.sum[1], false);
        to.of16[1][s] = sums_plane(p.sum[0], p.sum[1], true);
    }
    if (Of::kSums32 && t == 2) {
        const float both = p.sum[0] + p.sum[1];
        to.of32[0][s] = uint16_t(sums_plane(both, 0, false)),
        to.of32[1][s] = uint16_t(sums_plane(both, 0, true));
    }
    if (lane == 3) to.d = p.d;
}
// An item of a row, times gains (null: as they are), to planes; Σx² to squares unless null. All lanes of a
// warp.
template <int kMask>
__device__ __forceinline__ void make_planes(const float* from, const float* gains, PlaneItem& to,
                                            float* squares, int lane) {
    PlaneValues x, gain;
    x.load([&](int k) { return shared_two(from + k); }, lane);
    if (squares) {
        const float sum = item_sum(x.squares());
        if (lane == 0) *squares = sum;
    }
    if (gains) {
        gain.load([&](int k) { return shared_two(gains + k); }, lane);
#pragma unroll
        for (int j = 0; j < 8; ++j) x.v[j] *= gain.v[j];
    }
    __syncwarp();
    store_planes<kMask>(to, Planes(x), lane);
}
// The fragments of one token.
template <int kMask>
__device__ __forceinline__ void take_planes(Fragments<kMask, 1>& f, const PlaneItem& from, int lane) {
    using Of = Fragments<kMask, 1>;
    const int group = lane >> 3, t = lane & 3, plane = lane >> 2 & 1;
    const bool first = group == 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const uint2 v = i % 4 == group ? from.x[i][plane][t] : make_uint2(0, 0);
        f.x[i][0] = v.x, f.x[i][1] = v.y;
    }
    f.scale[0] = from.scale[t], f.scale[1] = from.scale[t + 4];
    if (Of::kSums32) f.sum32[0] = first ? reinterpret_cast<const uint32_t*>(from.of32[plane])[t] : 0;
    if (Of::kSums16) {
        f.sum16[0] = first ? from.of16[plane][t] : 0;
        f.sum16[Of::kSums16] = first ? from.of16[plane][t + 4] : 0;
    }
    f.d = from.d;
}

}  // namespace sparkinfer::cuda
