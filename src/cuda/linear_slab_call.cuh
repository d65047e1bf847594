// linear_slab_call.cuh — what the kernels of linear_slab*.cuh are asked, and what they share: parts and their
// slabs, taking a row's activations, finishing sums.
#pragma once
#include "cuda/launch.h"
#include "cuda/lib/activations.cuh"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

constexpr int kSlabWarps = 8, kSlabThreads = (kSlabWarps + 1) * 32, kMaxStages = 32;
constexpr int kMostItems = 128;  // columns up to 32,768

enum class SlabMode : int32_t {
    store,
    add,
    glu,
    half,  // FP16 that still lacks powers of two (slab_gemm_call.cuh); many rows only
};

// Slabs of all parts are counted as one row of them; data and y lie where they would if the part had them
// all.
struct SlabPart {
    const std::byte* data;
    float* y;
    const float2* factor;  // {2^-power of D, power of M relative to D}
    int64_t y_stride;
    int32_t first;  // slab; INT_MAX: no such part
    SlabKind kind;
};
struct DensePart {
    const void* data;  // [out, K]
    float* y;
    int64_t y_stride;
    int32_t out;
    Quant quant;  // f32, f16 or bf16
};
struct SlabLinear {
    const float* x;
    int64_t x_stride;
    const float* norm;     // [K] or null: x as it is
    StepView step;         // gather: row i of y comes from the row of x that is Step's output first + i
    int32_t gather_first;  // -1: rows of y are rows of x
    SlabPart part[kMaxParts];
    DensePart dense[kMaxParts];
    float eps, inverse_columns;  // 1 / K
    int32_t rows, columns;       // T, K
    int32_t parts, slabs;        // slab parts, their slabs in all
    int32_t denses, dense_rows;
    int32_t slab_blocks;  // blocks that do slabs: each so many, the first ones one more
    int32_t each, more;
    int32_t dense_blocks;  // behind them, for dense rows; further ones do nothing
    int32_t warps;         // of a slab
    int32_t inverse;       // 65536 / warps, rounded up
    int32_t groups;        // of warps, a slab each
    int32_t stages, stage_bytes;
    // Rows by passes (linear_slab_long.cuh), in which `warps` is the items of one.
    int32_t passes, range_items;  // of a block; items of its part of K
    const uint4* planes;          // of several rows, and Σx² of their items: slab_planes.cuh
    const float* squares;
    int32_t round;  // slabs that a block takes through all passes before others
    int32_t batch;  // slabs of a group between two meetings of its warps
    int32_t ring_at;
    SlabMode mode;
};

constexpr int kDenseRows = 4;  // of one dense block

template <int kMask>
HD constexpr int largest_item() {
    return (kMask & kMask8)                                 ? 4352
           : (kMask & kMask6)                               ? 3360
           : (kMask & kMask5)                               ? 2816
           : (kMask & slab_mask(SlabKind::q4_1))            ? 2560
           : (kMask & (kMask4 | slab_mask(SlabKind::q4_0))) ? 2304
                                                            : 2176;
}
// Of a format that is one of kMask.
template <int kMask>
__device__ __forceinline__ int slab_item_bytes(SlabKind k) {
    if constexpr ((kMask & (kMask - 1)) == 0) return largest_item<kMask>();
    switch (k) {
        case SlabKind::k4:
        case SlabKind::q4_0: return SlabOf<SlabKind::k4>::item;
        case SlabKind::k5: return SlabOf<SlabKind::k5>::item;
        case SlabKind::k6: return SlabOf<SlabKind::k6>::item;
        case SlabKind::q8: return SlabOf<SlabKind::q8>::item;
        case SlabKind::q4_1: return SlabOf<SlabKind::q4_1>::item;
        default: return SlabOf<SlabKind::iq4_xs>::item;  // and MXFP4's
    }
}
__device__ __forceinline__ int part_of(const SlabLinear& p, int slab) {
    int i = 0;
#pragma unroll
    for (int j = 1; j < kMaxParts; ++j) i += slab >= p.part[j].first;
    return i;
}
// The slabs of a block, and the group and place of a warp.
struct SlabShare {
    int first, count;
    __device__ __forceinline__ SlabShare(const SlabLinear& p, int block)
        : first(block * p.each + min(block, p.more)), count(p.each + (block < p.more)) {}
};
// A slot of a ring and how often the ring has gone round.
struct Slot {
    int stage;
    uint32_t turn = 0;
    __device__ __forceinline__ void advance(int by, int stages) {
        stage += by;
        if (stage >= stages) stage -= stages, ++turn;
    }
};
// Null: there is no such row.
__device__ __forceinline__ const float* source_row(const SlabLinear& p, int r) {
    if (r >= p.rows) return nullptr;
    if (p.gather_first >= 0)
        r = p.gather_first + r < p.step.header().outputs ? p.step.outputs()[p.gather_first + r] : 0;
    return p.x + r * p.x_stride;
}

// Calls run(kind as a constant) for the format of a part, one of kMask.
template <int kMask, class Run>
__device__ __forceinline__ void with_kind(SlabKind kind, Run run) {
    const auto if_in_mask = [&](auto tag) {
        if constexpr (kMask & slab_mask(decltype(tag)::value))
            if ((kMask & (kMask - 1)) == 0 || kind == decltype(tag)::value) run(tag);
    };
    using std::integral_constant;
    if_in_mask(integral_constant<SlabKind, SlabKind::k4>{});
    if_in_mask(integral_constant<SlabKind, SlabKind::k5>{});
    if_in_mask(integral_constant<SlabKind, SlabKind::k6>{});
    if_in_mask(integral_constant<SlabKind, SlabKind::q8>{});
    if_in_mask(integral_constant<SlabKind, SlabKind::q4_0>{});
    if_in_mask(integral_constant<SlabKind, SlabKind::q4_1>{});
    if_in_mask(integral_constant<SlabKind, SlabKind::iq4_xs>{});
    if_in_mask(integral_constant<SlabKind, SlabKind::mxfp4>{});
}
// sums += item · up to kTokens rows of activations.
template <int kTokens, int kMask, int kTile>
__device__ __forceinline__ void item_of(SlabKind kind, const std::byte* item,
                                        const Fragments<kMask, kTile>* x, float2 factor, SlabSums* sums,
                                        int lane) {
    with_kind<kMask>(kind, [&](auto tag) {
        constexpr SlabKind F = decltype(tag)::value;
        if constexpr (kTokens == 1)
            slab_item_one<F>(item, *x, factor, *sums, lane);
        else
            slab_item<F, tiles_of(kTokens)>(item, x, factor, sums, lane);
    });
}

// 1/rms of a row whose squares do not fit a float.
static __noinline__ __device__ float rms_of_large(const float* row, int columns) {
    constexpr float kUnit = 0x1p-72f;
    float sum = 0;
    for (int i = 0; i < columns; ++i) sum = fmaf(row[i] * kUnit, row[i] * kUnit, sum);
    return rsqrtf(sum / float(columns)) * kUnit;
}
// 1/rms of a row from Σx² of its items, four at a time, zeros behind them.
__device__ __forceinline__ float rms_of(const float* squares, int items, float inverse_columns, float eps,
                                        const float* row) {
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < items; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(squares + i);
        sum += (v.x + v.y) + (v.z + v.w);
    }
    if (isinf(sum)) return rms_of_large(row, items * kSlabColumns);
    return rsqrtf(fmaf(sum, inverse_columns, eps));
}

// The finished sum `v` of row `lane % 16` of a part's slab, to y of token r. `before`: what it adds to.
__device__ __forceinline__ void give_slab(const SlabLinear& p, const SlabPart& part, int slab, int r, float v,
                                          float before, int lane) {
    float* y = part.y + r * part.y_stride;
    int at = slab * 16 + lane, lanes = 16;
    if (p.mode == SlabMode::glu) {
        v = fast_silu(v) * __shfl_sync(kWholeWarp, v, lane % 8 + 8);
        at = slab * 8 + lane, lanes = 8;
    } else {
        v += before;
    }
    if (lane < lanes) y[at] = v;
}
__device__ __forceinline__ float value_before(const SlabLinear& p, const SlabPart& part, int slab, int r,
                                              int lane) {
    return p.mode == SlabMode::add && lane < 16 ? load_l2(part.y + r * part.y_stride + slab * 16 + lane)
                                                : 0.0f;
}

}  // namespace sparkinfer::cuda
