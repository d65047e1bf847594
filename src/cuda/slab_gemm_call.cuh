// slab_gemm_call.cuh — what the matrix kernels for many rows over slabs are asked, their tiles, and how results
// leave them.
//
// A tile is a run of slabs of one part (or one expert) times a run of packed rows. Dense: groups of kTileGroup row
// tiles take all runs of rows before the next group, so that what a wave reads of both operands stays in L2.
// Experts: tiles of ExpertOrder, all row tiles of each.
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
    CUtensorMap codes, scales;  // of all slabs [slabs, bytes]: a unit's codes and an item's scales of a tile's slabs
    const std::byte* data;      // the slabs
    float* y;
    int64_t y_stride;
    const float* factor;  // Weight::scale
    int32_t first_tile;   // row tile; INT_MAX: no such part
    int32_t slabs;        // of the part, or of one expert
};

struct SlabGemm {
    GemmPart part[kMaxParts];
    PackedRows x;
    ExpertOrder order;    // no tile_rows: dense
    int32_t parts;
    int32_t rows;         // dense: of x and y
    int32_t token_rows;   // dense: of a tile
    int32_t token_tiles;  // dense
    int32_t row_tiles;    // of all parts, or of an expert
    int32_t steps;        // of 64 columns
    SlabMode mode;
    // Experts: y has a row a pair (pair p at p / inner · y_stride + p % inner · inner_stride), or, inner 0, a row a
    // place.
    int32_t inner, inner_stride;
};

struct GemmTile {
    int part, slab, slab_at;  // first slab in the part (or expert); and in the tensor
    int first, count;         // packed rows
};

__device__ __forceinline__ int gemm_tiles(const SlabGemm& p) {
    return (p.order.tile_rows ? *p.order.tiles : p.token_tiles) * p.row_tiles;
}
template <int kSlabs>
__device__ __forceinline__ GemmTile gemm_tile(const SlabGemm& p, int i) {
    GemmTile t{};
    int row;
    if (p.order.tile_rows) {
        const int4 e = p.order.tile[i / p.row_tiles];
        row = i % p.row_tiles;
        t.slab = row * kSlabs;
        t.slab_at = e.x * p.part[0].slabs + t.slab;
        t.first = e.y, t.count = e.z;
        return t;
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
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3}],[%4];" ::"r"(
            shared_address(to)),
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

// Where a tile's results go: y of row 0 of the slab a warp holds, for its lane's g.
struct GemmRows {
    float* y;
    int64_t stride;
    SlabMode mode;
    bool live;
};
__device__ __forceinline__ GemmRows gemm_rows(const SlabGemm& p, const GemmTile& t, int slab, int g) {
    const GemmPart& part = p.part[t.part];
    const int rows = p.mode == SlabMode::glu ? 8 : 16;
    return {part.y + int64_t(slab) * rows + g, part.y_stride, p.mode, slab < part.slabs};
}
// Elements from row 0 of y to the row of a packed one; `pair` is read where y has a row a pair.
__device__ __forceinline__ int64_t gemm_row_at(const SlabGemm& p, const GemmRows& r, int packed, const int* pair) {
    if (!p.inner) return packed * r.stride;
    return *pair / p.inner * r.stride + *pair % p.inner * p.inner_stride;
}
// Rows g and g + 8 of one token.
__device__ __forceinline__ void gemm_store(const GemmRows& r, int64_t at, float low, float high) {
    float* y = r.y + at;
    if (r.mode == SlabMode::glu) {
        *y = fast_silu(low) * high;
    } else if (r.mode == SlabMode::add) {
        const float a = y[0], b = y[8];
        y[0] = __fadd_rn(a, low), y[8] = __fadd_rn(b, high);
    } else {
        y[0] = low, y[8] = high;
    }
}

}  // namespace sparkinfer::cuda
