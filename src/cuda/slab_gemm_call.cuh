// slab_gemm_call.cuh — what the matrix kernels for many rows over slabs are asked, their tiles, and how
// results leave them.
//
// A tile is a run of slabs of one part (or one expert) times a run of packed rows. Dense: groups of
// kTileGroup row tiles take all runs of rows before the next group, so that what a wave reads of both
// operands stays in L2. Experts: tiles of ExpertOrder, all row tiles of each.
#pragma once
#include <cuda.h>

#include "cuda/launch.h"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/slab_half.cuh"
#include "cuda/linear_slab_call.cuh"
#include "cuda/packed_rows.cuh"

namespace sparkinfer::cuda {

constexpr int kTileGroup = 8;

struct alignas(128) GemmPart {
    CUtensorMap codes,
        scales;  // of all slabs [slabs, bytes]: a unit's codes and an item's scales of a tile's slabs
    const std::byte* data;  // the slabs
    const int8_t* powers;   // of their rows
    float* y;
    int64_t y_stride;
    const float* factor;  // Weight::scale
    int32_t first_tile;   // row tile; INT_MAX: no such part
    int32_t slabs;        // of the part, or of one expert
    bool aligned;         // rows of y, to 16 bytes
};

struct SlabGemm {
    GemmPart part[kMaxParts];
    PackedRows x;
    ExpertOrder order;  // no tile_rows: dense
    int32_t parts;
    int32_t rows;         // dense: of x and y
    int32_t token_rows;   // dense: of a tile
    int32_t token_tiles;  // dense
    int32_t row_tiles;    // of all parts, or of an expert
    int32_t steps;        // of 64 columns, in K
    // Dense: the tiles behind the first `whole` fill no wave; blocks share each along K. Experts: none.
    int32_t whole, splits;
    float* partial;      // [shared tile][split][warpgroup] what they have summed
    int32_t* arrivals;   // [shared tile][warpgroup]
    int32_t half_power;  // SlabMode::half: y = the FP16 product as it is · 2^-half_power
    SlabMode mode;
    // Experts: y has a row a pair (pair p at p / inner · y_stride + p % inner · inner_stride), or, inner 0, a
    // row a place.
    int32_t inner, inner_stride;
};

struct GemmTile {
    int part, slab, slab_at;  // first slab in the part (or expert); and in the tensor
    int first, count;         // packed rows
    int step, steps;          // of K
    int shared, split;        // shared tile, and whose part of it; split -1: the tile is whole
};

// Work of all blocks: tiles, and parts of shared ones.
__device__ __forceinline__ int gemm_tiles(const SlabGemm& p) {
    if (p.order.tile_rows) return *p.order.tiles * p.row_tiles;
    return p.whole + (p.token_tiles * p.row_tiles - p.whole) * p.splits;
}
template <int kSlabs>
__device__ __forceinline__ GemmTile gemm_tile(const SlabGemm& p, int i) {
    GemmTile t{};
    int row;
    t.split = -1, t.steps = p.steps;
    if (p.order.tile_rows) {
        const int4 e = p.order.tile[i / p.row_tiles];
        row = i % p.row_tiles;
        t.slab = row * kSlabs;
        t.slab_at = e.x * p.part[0].slabs + t.slab;
        t.first = e.y, t.count = e.z;
        return t;
    }
    if (i >= p.whole) {
        const int fours = p.steps / 4;  // an item of 256 columns is not divided
        t.shared = (i - p.whole) / p.splits, t.split = i - p.whole - t.shared * p.splits;
        t.step = fours * t.split / p.splits * 4;
        t.steps = fours * (t.split + 1) / p.splits * 4 - t.step;
        i = p.whole + t.shared;
    }
    const int group = i / (kTileGroup * p.token_tiles), inside = i - group * kTileGroup * p.token_tiles;
    const int wide = min(kTileGroup, p.row_tiles - group * kTileGroup), token = inside / wide;
    row = group * kTileGroup + inside % wide;
#pragma unroll
    for (int j = 1; j < kMaxParts; ++j) t.part += row >= p.part[j].first_tile;
    t.slab = t.slab_at = (row - p.part[t.part].first_tile) * kSlabs;
    t.first = token * p.token_rows;
    t.count = min(p.token_rows, p.rows - t.first);
    return t;
}

__device__ __forceinline__ void tensor_copy(void* to, const CUtensorMap* map, int x, int y, uint64_t* b) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0],[%1,{%2,%3}],[%4];" ::"r"(shared_address(to)),
        "l"(map), "r"(x), "r"(y), "r"(shared_address(b))
        : "memory");
}

// A unit's codes, and an item's scales, of as many slabs as the part's tensor maps have in a box.
template <SlabKind F>
__device__ __forceinline__ void copy_codes(void* to, const GemmPart& part, int k, int slab, uint64_t* b) {
    using W = HalfSlab<F>;
    if constexpr (F == SlabKind::q8)
        tensor_copy(to, &part.codes, k * W::kCodes / 8, slab, b);
    else
        tensor_copy(to, &part.codes, (k / 4 * SlabOf<F>::item + k % 4 * W::kCodes) / 4, slab, b);
}
template <SlabKind F>
__device__ __forceinline__ void copy_scales(void* to, const GemmPart& part, int k, int slab, uint64_t* b) {
    tensor_copy(to, &part.scales, (k / 4 * SlabOf<F>::item + 4 * HalfSlab<F>::kCodes) / 4, slab, b);
}

// The rows of slab `slab` of a tile's first.
template <SlabKind F>
__device__ __forceinline__ HalfScales tile_scales(const SlabGemm& p, const GemmTile& t, int slab, int g) {
    const GemmPart& part = p.part[t.part];
    const bool live = t.slab + slab < part.slabs;
    return half_scales<F>(part.factor, part.powers + (live ? int64_t(t.slab_at + slab) * 16 : 0), g);
}

// Of a warpgroup's results for some tokens on their way out: `width` floats a token, and four that keep its
// stores off each other's banks.
HD constexpr int staged_floats(int tokens, int width) { return tokens * (width + 4); }

// Where the results of a run of slabs of one tile go.
struct GemmResults {
    float* y;  // column of the first slab, in row 0; of FP16 numbers with SlabMode::half
    int64_t stride;
    int32_t live;  // columns that exist
    int32_t inner, inner_stride;
    SlabMode mode;
    bool aligned;
    __device__ __forceinline__ GemmResults(const SlabGemm& p, const GemmTile& t, int slab, int columns)
        : stride(p.part[t.part].y_stride),
          live((p.part[t.part].slabs - slab) * columns),
          inner(p.inner),
          inner_stride(p.inner_stride),
          mode(p.mode),
          aligned(p.part[t.part].aligned) {
        float* all = p.part[t.part].y;
        y = mode == SlabMode::half ? reinterpret_cast<float*>(reinterpret_cast<__half*>(all) + slab * columns)
                                   : all + slab * columns;
    }
    // Elements from row 0 to that of packed row `row`, whose pair is at `pair`.
    __device__ __forceinline__ int64_t row_at(int row, const int* pair) const {
        if (!inner) return row * stride;
        return *pair / inner * stride + *pair % inner * inner_stride;
    }
    __device__ __forceinline__ void put(int64_t at, float4 v) const {
        if (mode == SlabMode::half) {
            *reinterpret_cast<uint2*>(reinterpret_cast<__half*>(y) + at) =
                make_uint2(half2_of(v.x, v.y), half2_of(v.z, v.w));
        } else if (aligned) {
            float4* to = reinterpret_cast<float4*>(y + at);
            if (mode == SlabMode::add) {
                const float4 old = *to;
                v = make_float4(__fadd_rn(old.x, v.x), __fadd_rn(old.y, v.y), __fadd_rn(old.z, v.z),
                                __fadd_rn(old.w, v.w));
            }
            *to = v;
        } else {
            const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; ++j)
                y[at + j] = mode == SlabMode::add ? __fadd_rn(y[at + j], each[j]) : each[j];
        }
    }
};

// Staged tokens [kTokens][kWidth] -> y, 16 bytes a thread: `thread` of kThreads. Token k is packed row first
// + k, of which the tile has `count`; pair: of token 0.
template <int kTokens, int kWidth, int kThreads>
__device__ __forceinline__ void store_staged(const float* staged, const GemmResults& to, int first, int count,
                                             const int* pair, int thread) {
    constexpr int kAcross = kWidth / 4, kTurns = (kTokens * kAcross + kThreads - 1) / kThreads;
    static_assert(kThreads % kAcross == 0);
    const int c = thread % kAcross * 4, own = thread / kAcross;
    if (c >= to.live) return;
    float4 v[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i)
        if (const int k = own + i * (kThreads / kAcross);
            kTurns * kThreads == kTokens * kAcross || k < kTokens)
            v[i] = *reinterpret_cast<const float4*>(staged + k * (kWidth + 4) + c);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
        const int k = own + i * (kThreads / kAcross);
        if (k < kTokens && k < count) to.put(to.row_at(first + k, pair + k) + c, v[i]);
    }
}

// What a product of a row with that power is multiplied by, but for the factor of its token (SlabMode::half:
// it stays).
template <SlabKind F>
__device__ __forceinline__ float gemm_undo(const SlabGemm& p, const GemmPart& part, int power) {
    if (p.mode == SlabMode::half) return power_of_two(-p.half_power);
    return part.factor[0] * power_of_two(24 - kHalfPower<F> - power);
}

}  // namespace sparkinfer::cuda
