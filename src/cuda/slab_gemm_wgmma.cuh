// slab_gemm_wgmma.cuh — quantised weights times many rows: weights become FP16 in registers and are wgmma's A
// operand, so that the tensor cores never wait for an expanded copy.
// Computes   y[t] (+)= W · x[t], or silu(gate · x[t]) ⊙ (up · x[t])
//            (ops.h: NormLinear, LinearAdd, LinearGlu, MoeGlu, MoeDownAdd, Output)
// Shapes     x packed FP16 rows (packed_rows.cuh)   W slabs (quant/slab.h)   y F32
// Mapping    a block: a tile of 128 · kHalves rows of W × up to kTokens rows of x (8: by mma.sync, in fewer
//            instructions), one after the other; a warp copies, two warpgroups multiply, 64 · kHalves rows of
//            W each. Ring of k-steps of 64 columns. Few tiles: several blocks share one along K, and the last
//            to finish adds up what they have, in their order.
// Memory     W once a run of 160 rows of x (the second time from L2), x once a tile.
//            Floor: 2·T·rows·K / 800 TFLOP/s.
// Limits     K a multiple of 256. sm_90a.
// Tested     tests/ops/linear.cpp, moe.cpp, many_rows.cpp against cpu/.
#pragma once
#include "cuda/lib/copy.cuh"
#include "cuda/lib/mma_eight.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/wgmma.cuh"
#include "cuda/slab_gemm_call.cuh"

namespace sparkinfer::cuda {

constexpr int kGemmThreads = 384, kGemmRowSets = 5, kMostGemmStages = 16;

// Shared memory of a block, from a multiple of 1024 bytes on.
template <SlabKind F, int kHalves, int kTokens>
struct GemmLayout {
    using W = HalfSlab<F>;
    static constexpr int kSlabs = 8 * kHalves;
    // Two blocks share a multiprocessor where there are few tokens: neither keeps the memory busy alone.
    static constexpr int kResidents = kTokens <= 32 ? 2 : 1;
    static constexpr int kRoom = kResidents == 2 ? (227 << 10) / 2 - 1024 : 227 << 10;
    static constexpr int kStagedTokens = kTokens <= 64 ? (kTokens < 16 ? kTokens : 16) : 32;
    static constexpr int kStaged = 2 * staged_floats(kStagedTokens, 64 * kHalves) * 4;
    static constexpr int kFixed = 1024 + kGemmRowSets * kTokens * 8 + kStaged + 2 * kMostGemmStages * 8;
    static constexpr int kUnitX = kTokens * 128, kUnitCodes = kSlabs * W::kCodes,
                         kScales = kSlabs * W::kScales;
    // k-steps of 64 columns that arrive together. With few tokens instructions take time, and a barrier for
    // several steps saves some; but what is in use is not on its way, so a ring has four groups at least.
    static constexpr int group() {
        for (int g = 4; g > 1; g /= 2)
            if (kTokens <= 64 &&
                kFixed + 4 * g * (kUnitX + kUnitCodes) + scale_slots(g, 4) * kScales <= kRoom)
                return g;
        return 1;
    }
    static constexpr int scale_slots(int group, int stages) {
        return W::kScales == 0 ? 0 : group == 4 ? stages : (stages * group + 6) / 4;
    }
    static constexpr int kGroup = group();
    static constexpr int kX = kGroup * kUnitX, kCodes = kGroup * kUnitCodes;
    static constexpr int scale_slots(int stages) { return scale_slots(kGroup, stages); }
    static constexpr int bytes(int stages) {
        return kFixed + stages * (kX + kCodes) + scale_slots(stages) * kScales;
    }
    static constexpr int stages(int room) {
        int s = kMostGemmStages;
        while (s > 1 && bytes(s) > room) --s;
        return s;
    }
    static constexpr int kStages = stages(kRoom);
    static constexpr int kCodesAt = kStages * kX, kScalesAt = kCodesAt + kStages * kCodes,
                         kRowsAt = kScalesAt + scale_slots(kStages) * kScales,
                         kStagedAt = kRowsAt + kGemmRowSets * kTokens * 8, kBarriersAt = kStagedAt + kStaged;
    static_assert(kStages * kGroup / 4 < kGemmRowSets, "a tile may be 4 steps: its set is read to its end");
    static_assert(kStages >= 3, "steps in flight while others are converted");
    static_assert(kCodesAt % 128 == 0 && kScalesAt % 128 == 0 && kRowsAt % 128 == 0);
};

template <SlabKind F, int kHalves, int kTokens>
struct GemmBlock {
    using L = GemmLayout<F, kHalves, kTokens>;
    using W = HalfSlab<F>;
    const SlabGemm& p;
    std::byte* shared;  // at a multiple of 1024
    int stage = 0, scale_slot = 0, row_set = 0;
    uint32_t turn = 0;  // parity of `stage`

    __device__ __forceinline__ GemmBlock(const SlabGemm& call, std::byte* dynamic)
        : p(call), shared(dynamic + (1024 - (shared_address(dynamic) & 1023)) % 1024) {}
    __device__ __forceinline__ uint64_t* full(int s) const {
        return reinterpret_cast<uint64_t*>(shared + L::kBarriersAt) + s;
    }
    __device__ __forceinline__ uint64_t* empty(int s) const { return full(kMostGemmStages + s); }
    __device__ __forceinline__ std::byte* x_at(int s) const { return shared + s * L::kX; }
    __device__ __forceinline__ std::byte* codes_at(int s) const {
        return shared + L::kCodesAt + s * L::kCodes;
    }
    __device__ __forceinline__ std::byte* scales_at(int s) const {
        return shared + L::kScalesAt + s * L::kScales;
    }
    __device__ __forceinline__ float* factors(int set) const {
        return reinterpret_cast<float*>(shared + L::kRowsAt) + set * 2 * kTokens;
    }
    __device__ __forceinline__ int* pairs(int set) const {
        return reinterpret_cast<int*>(factors(set) + kTokens);
    }
    __device__ __forceinline__ void next_stage() {
        if (++stage == L::kStages) stage = 0, turn ^= 1;
    }
    __device__ __forceinline__ void next_scales() {
        if (W::kScales && ++scale_slot == L::scale_slots(L::kStages)) scale_slot = 0;
    }

    __device__ __forceinline__ void produce(const GemmTile& t);
    __device__ __forceinline__ void multiply(float (&sum)[kHalves][kTokens / 2],
                                             const HalfScales (&by)[kHalves], const GemmTile& t, int group,
                                             int warp, int lane);
    __device__ __forceinline__ bool merge(float (&sum)[kHalves][kTokens / 2], const GemmTile& t, int group,
                                          int thread);
    __device__ __forceinline__ void finish_half(const float (&sum)[kHalves][kTokens / 2], const GemmTile& t,
                                                int group, int warp, int lane);
    template <bool kGlu>
    __device__ __forceinline__ void finish(const float (&sum)[kHalves][kTokens / 2],
                                           const HalfScales (&by)[kHalves], const GemmTile& t, int group,
                                           int warp, int lane);
};

// One thread.
template <SlabKind F, int kHalves, int kTokens>
__device__ __forceinline__ void GemmBlock<F, kHalves, kTokens>::produce(const GemmTile& t) {
    const GemmPart& part = p.part[t.part];
    const int n = kTokens == kRaggedTokens ? (t.count + 15) / 16 * 16 : kTokens;
    const std::byte* x = p.x.data + int64_t(t.first) * 128 + int64_t(t.step) * p.x.padded * 128;
#pragma unroll 1
    for (int k = 0; k < t.steps; k += L::kGroup) {
        barrier_wait_alone(empty(stage), turn ^ 1);
        uint64_t* b = full(stage);
        const bool scales = W::kScales && k % 4 == 0;
        const int rows_bytes = k ? 0 : p.order.tile_rows ? 8 * n : 4 * n;
        barrier_expect(b, L::kCodes + L::kGroup * n * 128 + (scales ? L::kScales : 0) + rows_bytes);
        if (k == 0) {
            bulk_copy_kept(factors(row_set), p.x.factor + t.first, 4 * n, b);
            if (p.order.tile_rows) bulk_copy_kept(pairs(row_set), p.order.pair + t.first, 4 * n, b);
        }
        if (scales) copy_scales<F>(scales_at(scale_slot), part, t.step + k, t.slab_at, b);
#pragma unroll
        for (int i = 0; i < L::kGroup; ++i) {
            copy_codes<F>(codes_at(stage) + i * L::kUnitCodes, part, t.step + k + i, t.slab_at, b);
            bulk_copy_kept(x_at(stage) + i * L::kUnitX, x + int64_t(k + i) * p.x.padded * 128, n * 128, b);
        }
        if ((k + L::kGroup) % 4 == 0) next_scales();
        next_stage();
    }
    row_set = (row_set + 1) % kGemmRowSets;
}

// One warpgroup, software-pipelined: [convert 64 rows × 64 columns] [issue their wgmma] [wait for the next
// copy, load its codes] [wait for the wgmma before that, free its stage].
template <SlabKind F, int kHalves, int kTokens>
__device__ __forceinline__ void GemmBlock<F, kHalves, kTokens>::multiply(float (&sum)[kHalves][kTokens / 2],
                                                                         const HalfScales (&by)[kHalves],
                                                                         const GemmTile& t, int group,
                                                                         int warp, int lane) {
    const int sixteens = (t.count + 15) / 16;
    uint32_t a[2][16], kept[kHalves][W::kKept];
    W w;
    const int slab = group * kHalves * 4 + warp;  // of the tile
    int before = -1;
    barrier_wait(full(stage), turn);
    w.template load<0>(codes_at(stage) + slab * W::kCodes, scales_at(scale_slot) + slab * W::kScales, lane,
                       kept[0], by[0]);
    const auto unit = [&]<int kUnit>(bool last) {
        constexpr int kPlace = kUnit % L::kGroup,
                      kNext = (kUnit + 1) % L::kGroup;  // of what arrived together
        constexpr bool kEnd = kNext == 0;
        const uint64_t b = wgmma_operand(shared_address(x_at(stage) + kPlace * L::kUnitX));
        const int now = stage, slot = scale_slot;
        if (kEnd) next_stage();
        if (kUnit == 3) next_scales();
        [[maybe_unused]] uint32_t eight[2][4];
        if constexpr (kTokens == 8)
            load_eight_tokens(eight, shared_address(x_at(now) + kPlace * L::kUnitX), lane);
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
            uint32_t* to = a[kHalves == 1 ? kUnit & 1 : half];
            w.template convert<0>(to), w.template convert<1>(to + 4);
            w.template convert<2>(to + 8), w.template convert<3>(to + 12);
            if constexpr (kTokens == 8)
                mma_eight_tokens(sum[half], to, eight);
            else
                wgmma_step<kTokens>(sum[half], to, b, sixteens);
            if (half + 1 < kHalves) {
                const int next = slab + (half + 1) * 4;
                w.template load<kUnit>(codes_at(now) + kPlace * L::kUnitCodes + next * W::kCodes,
                                       scales_at(slot) + next * W::kScales, lane,
                                       kept[half + 1 < kHalves ? half + 1 : 0],
                                       by[half + 1 < kHalves ? half + 1 : 0]);
            } else if (kUnit < 3 || !last) {
                if (kEnd) barrier_wait(full(stage), turn);
                w.template load<(kUnit + 1) % 4>(codes_at(stage) + kNext * L::kUnitCodes + slab * W::kCodes,
                                                 scales_at(scale_slot) + slab * W::kScales, lane, kept[0],
                                                 by[0]);
            }
            if constexpr (kTokens > 8) wgmma_wait<1>();
            // What the last group of copies brought has now been multiplied.
            if (kPlace == 0 && half == 0 && before >= 0 && lane == 0) barrier_arrive(empty(before));
        }
        if (kEnd) before = now;
    };
#pragma unroll 1
    for (int k = 0; k < t.steps; k += 4) {
        const bool last = k + 4 >= t.steps;
        unit.template operator()<0>(last);
        unit.template operator()<1>(last);
        unit.template operator()<2>(last);
        unit.template operator()<3>(last);
    }
    if constexpr (kTokens > 8) wgmma_wait<0>();
    __syncwarp();
    if (lane == 0) barrier_arrive(empty(before));
}

// One warpgroup: adds its part of the sums to those of the other blocks of the tile. True in the last one to
// come, which then has them all.
template <SlabKind F, int kHalves, int kTokens>
__device__ __forceinline__ bool GemmBlock<F, kHalves, kTokens>::merge(float (&sum)[kHalves][kTokens / 2],
                                                                      const GemmTile& t, int group,
                                                                      int thread) {
    constexpr int kFloats = kHalves * kTokens / 2;  // of a thread
    float* tile = p.partial + int64_t(t.shared) * p.splits * 2 * kFloats * 128 + thread;
    const auto at = [&](int split) { return tile + int64_t(split * 2 + group) * kFloats * 128; };
    float* own = at(t.split);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < kTokens / 2; ++j) __stcg(own + (half * kTokens / 2 + j) * 128, sum[half][j]);
    __threadfence();
    named_barrier(1 + group, 128);
    float* staged = reinterpret_cast<float*>(shared + L::kStagedAt) +
                    group * staged_floats(L::kStagedTokens, 64 * kHalves);
    int* last = reinterpret_cast<int*>(staged);
    if (thread == 0) {
        int32_t* arrivals = p.arrivals + t.shared * 2 + group;
        *last = atomicAdd(arrivals, 1) == p.splits - 1;
        if (*last) *arrivals = 0;
    }
    named_barrier(1 + group, 128);
    if (!*last) return false;
    __threadfence();
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int j = 0; j < kTokens / 2; ++j) sum[half][j] = 0;
#pragma unroll 1
    for (int split = 0; split < p.splits; ++split)
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
            for (int j = 0; j < kTokens / 2; ++j)
                sum[half][j] += __ldcg(at(split) + (half * kTokens / 2 + j) * 128);
    return true;
}

// Some tokens at a time through shared memory, so that a row's results leave together.
template <SlabKind F, int kHalves, int kTokens>
template <bool kGlu>
__device__ __forceinline__ void GemmBlock<F, kHalves, kTokens>::finish(
    const float (&sum)[kHalves][kTokens / 2], const HalfScales (&by)[kHalves], const GemmTile& t, int group,
    int warp, int lane) {
    constexpr int kEach = kGlu ? 8 : 16, kWidth = 4 * kHalves * kEach;  // columns of y of a slab, of a group
    constexpr int kSome = L::kStagedTokens;
    const int g = lane >> 2, c = 2 * (lane & 3), slab = t.slab + group * kHalves * 4;
    const GemmResults to(p, t, slab, kEach);
    const float* factor = factors(row_set);
    const int* pair = pairs(row_set);
    float* staged =
        reinterpret_cast<float*>(shared + L::kStagedAt) + group * staged_floats(kSome, 64 * kHalves);
    float* own = staged + c * (kWidth + 4) + warp * kEach + g;
    float undo[kHalves][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) undo[half][i] = gemm_undo<F>(p, p.part[t.part], by[half].power[i]);
#pragma unroll
    for (int first = 0; first < kTokens; first += kSome) {
        if (first >= t.count) break;
        named_barrier(1 + group, 128);
#pragma unroll
        for (int i = 0; i < kSome; i += 8) {
            const float2 f = *reinterpret_cast<const float2*>(factor + first + i + c);
#pragma unroll
            for (int half = 0; half < kHalves; ++half)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int at = (first + i) / 2 + j;
                    const float low = sum[half][at] * (undo[half][0] * (j ? f.y : f.x)),
                                high = sum[half][at + 2] * (undo[half][1] * (j ? f.y : f.x));
                    float* v = own + (i + j) * (kWidth + 4) + half * 4 * kEach;
                    if constexpr (kGlu)
                        v[0] = fast_silu(low) * high;
                    else
                        v[0] = low, v[8] = high;
                }
        }
        named_barrier(1 + group, 128);
        store_staged<kSome, kWidth, 128>(staged, to, t.first + first, t.count - first, pair + first,
                                         warp * 32 + lane);
    }
}

__device__ __forceinline__ void store_matrices(void* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(shared_address(to)),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

__device__ __forceinline__ void store_matrices(void* to, uint32_t a, uint32_t b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0],{%1,%2};" ::"r"(shared_address(to)),
                 "r"(a), "r"(b)
                 : "memory");
}

// The same for SlabMode::half: [token][64 · kHalves] FP16 in shared memory, 16 bytes behind each token.
template <SlabKind F, int kHalves, int kTokens>
__device__ __forceinline__ void GemmBlock<F, kHalves, kTokens>::finish_half(
    const float (&sum)[kHalves][kTokens / 2], const GemmTile& t, int group, int warp, int lane) {
    constexpr int kWidth = 64 * kHalves, kPitch = kWidth + 8, kAcross = kWidth / 8, kSome = L::kStagedTokens;
    const int slab = t.slab + group * kHalves * 4, live = (p.part[t.part].slabs - slab) * 16;
    const int64_t stride = p.part[t.part].y_stride;
    const float undo = power_of_two(-p.half_power);
    __half* y = reinterpret_cast<__half*>(p.part[t.part].y) + int64_t(t.first) * stride + slab * 16;
    __half* staged = reinterpret_cast<__half*>(shared + L::kStagedAt) + group * kSome * kPitch;
    const int token = (lane & 7) + (kSome > 8 ? (lane >> 4) << 3 : 0);
    __half* own = staged + token * kPitch + warp * 16 + (lane >> 3 & 1) * 8;
    const int thread = warp * 32 + lane, column = thread % kAcross * 8;
#pragma unroll
    for (int first = 0; first < kTokens; first += kSome) {
        if (first >= t.count) break;
        named_barrier(1 + group, 128);
#pragma unroll
        for (int i = 0; i < kSome; i += 16)
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
                const float* v = sum[half] + (first + i) / 2;
                const uint32_t low = half2_of(v[0] * undo, v[1] * undo),
                               high = half2_of(v[2] * undo, v[3] * undo);
                if constexpr (kSome == 8)
                    store_matrices(own + half * 64, low, high);
                else
                    store_matrices(own + i * kPitch + half * 64, low, high,
                                   half2_of(v[4] * undo, v[5] * undo), half2_of(v[6] * undo, v[7] * undo));
            }
        named_barrier(1 + group, 128);
#pragma unroll
        for (int i = 0; i < (kSome * kAcross + 127) / 128; ++i) {
            const int k = thread / kAcross + i * (128 / kAcross);
            if (k < kSome && first + k < t.count && column < live)
                *reinterpret_cast<uint4*>(y + (first + k) * stride + column) =
                    *reinterpret_cast<const uint4*>(staged + k * kPitch + column);
        }
    }
}

// kShared: some tiles are shared; the sums of others take registers.
// Kernel     slab_gemm_wgmma: 168 registers
template <SlabKind F, int kHalves, int kTokens, bool kShared>
__global__ void __launch_bounds__(kGemmThreads, (GemmLayout<F, kHalves, kTokens>::kResidents))
    slab_gemm_wgmma(const __grid_constant__ SlabGemm p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::byte dynamic[];
    GemmBlock<F, kHalves, kTokens> block(p, dynamic);
    if (threadIdx.x == 0) {
        for (int s = 0; s < kMostGemmStages; ++s)
            barrier_init(block.full(s), 1), barrier_init(block.empty(s), 8);
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_predecessor();
    let_successor_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = gemm_tiles(p);
    constexpr int kSlabs = GemmLayout<F, kHalves, kTokens>::kSlabs;
    if (warp < 4) {
        if constexpr (GemmLayout<F, kHalves, kTokens>::kResidents == 2)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        else
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp || lane) return;
        for (int i = blockIdx.x; i < tiles; i += gridDim.x) block.produce(gemm_tile<kSlabs>(p, i));
        return;
    }
    if constexpr (GemmLayout<F, kHalves, kTokens>::kResidents == 2)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int group = warp / 4 - 1;
#pragma unroll 1
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        const GemmTile t = gemm_tile<kSlabs>(p, i);
        HalfScales by[kHalves];
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
            by[half] = tile_scales<F>(p, t, (group * kHalves + half) * 4 + warp % 4, lane >> 2);
        float sum[kHalves][kTokens / 2];
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
            for (int j = 0; j < kTokens / 2; ++j) sum[half][j] = 0;
        block.multiply(sum, by, t, group, warp % 4, lane);
        if (kShared && t.split >= 0 && !block.merge(sum, t, group, threadIdx.x % 128)) {
            block.row_set = (block.row_set + 1) % kGemmRowSets;
            continue;
        }
        if (p.mode == SlabMode::half)
            block.finish_half(sum, t, group, warp % 4, lane);
        else if (p.mode == SlabMode::glu)
            block.template finish<true>(sum, by, t, group, warp % 4, lane);
        else
            block.template finish<false>(sum, by, t, group, warp % 4, lane);
        block.row_set = (block.row_set + 1) % kGemmRowSets;
    }
#endif
}

}  // namespace sparkinfer::cuda
