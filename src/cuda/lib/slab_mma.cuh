// slab_mma.cuh — one item of a slab (16 rows × 256 columns) times 16-bit activations, on the integer tensor
// cores.
//
// A row of x is two planes of int8, the high bytes of 16 bits and the low ones, times a scale a group of 32
// columns (activations.cuh). Column n of an MMA is plane n % 2 of token n / 2 of a tile of four, or, for one
// token alone, of its group n / 2 of four (the other groups' MMAs see zeros there), so that a lane has both
// sums and joins them: 256 · high + low, exact in 32 bits. Groups are then scaled and added as float32 in one
// fixed order: p_j = group j, then j + 4; halves p_0 + p_1 and p_2 + p_3; then both. So a token's bits are
// its own, whatever stands in the other columns and whichever form multiplies.
//
// Activations reach the MMAs as Fragments, in registers. What a format says of itself: slab_forms.cuh.
#pragma once
#include "cuda/lib/slab_forms.cuh"

namespace sparkinfer::cuda {

constexpr int kTileTokens = 4;  // of an MMA's eight columns
HD constexpr int tiles_of(int tokens) { return (tokens + kTileTokens - 1) / kTileTokens; }

enum SlabMask {
    kMask4 = 1,
    kMask5 = 2,
    kMask6 = 4,
    kMask8 = 8,
    kMaskMore = 0xf0,  // Q4_0, Q4_1, IQ4_XS, MXFP4
    kMaskAll = 0xff
};
HD constexpr int slab_mask(SlabKind k) { return 1 << int(k); }

constexpr float kSumOfX = 0x1p6f;  // sums of x come divided by this

// An item's activations as this lane's part of the MMAs' B operands, kTokens: of a tile, one or four.
template <int kMask, int kTokens>
struct Fragments {
    static constexpr bool kSums16 = kMask & kMask6, kSums32 = kMask & ~(kMask6 | 0xc0);
    static constexpr int kScales = kTokens == 1 ? 2 : 8;
    // Of a group, codes of its first and last 16 columns. One token: zero where the column is another
    // group's.
    uint32_t x[8][2];
    // Scales of groups, of token t; one token: of the groups t and t + 4. Relative to `d`.
    float scale[kScales];
    // Planes, FP16, of the sums of x over groups 2t, 2t+1 of 32 columns; of 16 columns, and 2t+8, 2t+9.
    uint32_t sum32[1], sum16[kSums16 ? 2 : 1];
    float d;  // of token t: what all the above is to be multiplied by
};

// Partial sums of a lane: rows g and g+8, token t of the tile.
struct SlabSums {
    float v[2];
};

__device__ __forceinline__ void mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_half_k8(float (&d)[4], const uint32_t (&a)[4], uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

// p = s · (sum of the first of its groups, times the group's scale), or p += s · that of the next.
template <class Form>
__device__ __forceinline__ void add_group(float (&p)[2], float2 s, const Accumulators& c, float scale,
                                          bool first) {
    const int2 sum = Form::joined(c);
    const float v = __fmul_rn(float(sum.x), scale), w = __fmul_rn(float(sum.y), scale);
    p[0] = first ? __fmul_rn(s.x, v) : fmaf(s.x, v, p[0]);
    p[1] = first ? __fmul_rn(s.y, w) : fmaf(s.y, w, p[1]);
}

// h[tile] = p_2h + p_2h+1 of half h.
template <SlabKind F, int kHalf, int kTiles, int kMask>
__device__ __forceinline__ void slab_half(const std::byte* a, const Fragments<kMask, kTileTokens>* x,
                                          SlabSums (&h)[kTiles], int lane) {
    using Form = SlabForm<F>;
    constexpr int kSets = Form::kHalves ? 2 : 1;
    float p[2][kTiles][2];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int next = 0; next < 2; ++next) {
            const int group = 4 * next + 2 * kHalf + j;
            Accumulators c[kTiles][kSets] = {};
#pragma unroll
            for (int i = 0; i < kTiles; ++i) Form::multiply(c[i], a, group, x[i].x[group], lane);
#pragma unroll
            for (int set = 0; set < kSets; ++set) {
                const float2 s = Form::scales(a, group, set, lane >> 2);
#pragma unroll
                for (int i = 0; i < kTiles; ++i)
                    add_group<Form>(p[j][i], s, c[i][set], x[i].scale[group], next == 0 && set == 0);
            }
        }
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int row = 0; row < 2; ++row) h[i].v[row] = p[0][i][row] + p[1][i][row];
}
// What a half's sum means; with kConstants also what the item's constants add.
template <SlabKind F, bool kConstants, int kMask, int kTokens>
__device__ __forceinline__ SlabSums scaled_half(const SlabSums& h, const ItemScales& by,
                                                const uint32_t (&constants)[4],
                                                const Fragments<kMask, kTokens>& x) {
    constexpr int kSums = kConstants ? SlabForm<F>::kSums : 0;
    float c[4] = {};
    if constexpr (kSums == 32) mma_half_k8(c, constants, x.sum32[0]);
    if constexpr (kSums == 16) mma_half(c, constants, x.sum16[0], x.sum16[1]);
    SlabSums v;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        v.v[row] = __fmul_rn(h.v[row], x.d * by.d[row]);
        if constexpr (kSums)
            v.v[row] = fmaf(c[2 * row] + c[2 * row + 1], x.d * kSumOfX * by.m[row], v.v[row]);
    }
    return v;
}

// sums[i] += item · activations x[i] of a tile.
template <SlabKind F, int kTiles, int kMask>
__device__ __forceinline__ void slab_item(const std::byte* a, const Fragments<kMask, kTileTokens>* x,
                                          float2 factor, SlabSums* sums, int lane) {
    using Form = SlabForm<F>;
    SlabSums h[2][kTiles];
    slab_half<F, 0>(a, x, h[0], lane);
    slab_half<F, 1>(a, x, h[1], lane);
    const ItemScales by = Form::item(a, lane >> 2, factor);
    uint32_t constants[4];
    Form::constants(a, lane, constants);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
        const SlabSums v = scaled_half<F, true>(h[0][i], by, constants, x[i]),
                       w = scaled_half<F, false>(h[1][i], by, constants, x[i]);
        sums[i].v[0] += v.v[0] + w.v[0], sums[i].v[1] += v.v[1] + w.v[1];
    }
}
// sums += item · one token; the lanes with t = 0 have it.
template <SlabKind F, int kMask>
__device__ __forceinline__ void slab_item_one(const std::byte* a, const Fragments<kMask, 1>& x, float2 factor,
                                              SlabSums& sums, int lane) {
    using Form = SlabForm<F>;
    constexpr int kSets = Form::kHalves ? 2 : 1;
    float p[2];
#pragma unroll
    for (int next = 0; next < 2; ++next) {
        Accumulators c[kSets] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) Form::multiply(c, a, 4 * next + j, x.x[4 * next + j], lane);
#pragma unroll
        for (int set = 0; set < kSets; ++set)
            add_group<Form>(p, Form::scales(a, 4 * next + (lane & 3), set, lane >> 2), c[set], x.scale[next],
                            next == 0 && set == 0);
    }
    SlabSums h;
#pragma unroll
    for (int row = 0; row < 2; ++row) h.v[row] = p[row] + __shfl_xor_sync(0xffffffffu, p[row], 1);
    uint32_t constants[4];
    Form::constants(a, lane, constants);
    const SlabSums v = scaled_half<F, true>(h, Form::item(a, lane >> 2, factor), constants, x);
#pragma unroll
    for (int row = 0; row < 2; ++row) sums.v[row] += v.v[row] + __shfl_xor_sync(0xffffffffu, v.v[row], 2);
}

// Partial sums of a slab in shared memory: [token][row][warp], rows padded against bank conflicts.
HD constexpr int red_stride(int warps) { return (warps + 3) / 4 * 4 + 4; }
HD constexpr int red_floats(int tokens, int warps) { return tokens * 16 * red_stride(warps); }

// A warp's 16 rows × the tile's tokens -> their place.
template <int kTokens>
__device__ __forceinline__ void store_sums(const SlabSums& s, float* red, int warps, int own, int lane) {
    const int g = lane >> 2, t = lane & 3, stride = red_stride(warps);
    if (t >= kTokens) return;
    float* to = red + (t * 16 + g) * stride + own;
    to[0] = s.v[0], to[8 * stride] = s.v[1];
}

// Row `lane % 16` of a finished slab for one token (red of it): the fours of warps with this half of the
// warp's parity.
__device__ __forceinline__ float slab_sum_half(const float* red, int warps, int lane) {
    const float4* v = reinterpret_cast<const float4*>(red + lane % 16 * red_stride(warps));
    float sum = 0;
#pragma unroll 2
    for (int i = lane / 16; i < (warps + 3) / 4; i += 2) {
        float4 a = v[i];
        if (4 * i + 1 >= warps) a.y = 0;
        if (4 * i + 2 >= warps) a.z = 0;
        if (4 * i + 3 >= warps) a.w = 0;
        sum += (a.x + a.y) + (a.z + a.w);
    }
    return sum;
}
// The whole sum, of up to eight warps in the order of their fours.
__device__ __forceinline__ float slab_sum(const float* red, int warps, int lane) {
    const float sum = slab_sum_half(red, warps, lane);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
}

}  // namespace sparkinfer::cuda
