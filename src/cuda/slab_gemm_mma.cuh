// slab_gemm_mma.cuh — quantised weights times many rows where there is no wgmma: the same conversion to FP16
// in registers, as the A operand of mma.sync. Computes   y[t] (+)= W · x[t], or silu(gate · x[t]) ⊙ (up ·
// x[t])
//            (ops.h: NormLinear, LinearAdd, LinearGlu, MoeGlu, MoeDownAdd, Output)
// Shapes     x packed FP16 rows (packed_rows.cuh)   W slabs (quant/slab.h)   y F32
// Mapping    a block: a tile of 128 rows of W × up to kTokens rows of x, one after the other; a warp copies,
//            eight multiply: 32 rows of W × 64 of x each (kTokens 128) or 16 × 64. Ring of k-steps of 64
//            columns.
// Memory     as slab_gemm_wgmma.cuh.
// Limits     K a multiple of 256; 99 KB of shared memory. sm_90+.
// Tested     tests/ops/linear.cpp, moe.cpp, many_rows.cpp against cpu/, by --policy=rtx5090.
#pragma once
#include "cuda/lib/copy.cuh"
#include "cuda/lib/mma_bf16.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/slab_gemm_call.cuh"

namespace sparkinfer::cuda {

constexpr int kMmaGemmThreads = 288, kMmaSlabs = 8, kMmaStagedTokens = 16;

template <SlabKind F, int kTokens>
struct MmaLayout {
    using W = HalfSlab<F>;
    static constexpr int kX = kTokens * 128, kCodes = kMmaSlabs * W::kCodes, kScales = kMmaSlabs * W::kScales;
    static constexpr int kStaged = kTokens / 64 * staged_floats(kMmaStagedTokens, 16 * kMmaSlabs) * 4;
    static constexpr int scale_slots(int stages) { return W::kScales ? (stages + 6) / 4 : 0; }
    static constexpr int bytes(int stages) {
        return 1024 + 128 + kStaged + stages * (kX + kCodes) + scale_slots(stages) * kScales;
    }
    static constexpr int stages(int room) {
        int s = 8;
        while (s > 1 && bytes(s) > room) --s;
        return s;
    }
    static constexpr int kStages = stages(99 << 10);
    static constexpr int kCodesAt = kStages * kX, kScalesAt = kCodesAt + kStages * kCodes,
                         kStagedAt = kScalesAt + scale_slots(kStages) * kScales,
                         kBarriersAt = kStagedAt + kStaged;
    static_assert(kCodesAt % 128 == 0 && kScalesAt % 128 == 0 && kStages >= 2);
};

template <SlabKind F, int kTokens>
struct MmaBlock {
    using L = MmaLayout<F, kTokens>;
    using W = HalfSlab<F>;
    static constexpr int kAcross = kTokens / 64;          // warps beside each other along the tokens
    static constexpr int kOwn = kMmaSlabs * kAcross / 8;  // slabs of a warp
    const SlabGemm& p;
    std::byte* shared;  // at a multiple of 1024
    int stage = 0, scale_slot = 0;
    uint32_t turn = 0;

    __device__ __forceinline__ MmaBlock(const SlabGemm& call, std::byte* dynamic)
        : p(call), shared(dynamic + (1024 - (shared_address(dynamic) & 1023)) % 1024) {}
    __device__ __forceinline__ uint64_t* full(int s) const {
        return reinterpret_cast<uint64_t*>(shared + L::kBarriersAt) + s;
    }
    __device__ __forceinline__ uint64_t* empty(int s) const { return full(8 + s); }
    __device__ __forceinline__ std::byte* codes_at(int s) const {
        return shared + L::kCodesAt + s * L::kCodes;
    }
    __device__ __forceinline__ std::byte* scales_at(int s) const {
        return shared + L::kScalesAt + s * L::kScales;
    }
    __device__ __forceinline__ void next_stage() {
        if (++stage == L::kStages) stage = 0, turn ^= 1;
    }
    __device__ __forceinline__ void next_scales() {
        if (W::kScales && ++scale_slot == L::scale_slots(L::kStages)) scale_slot = 0;
    }
    __device__ __forceinline__ void produce(const GemmTile& t);
    template <int kUnit, bool kFull>
    __device__ __forceinline__ void step(float (&sum)[kOwn][8][4], uint32_t (&kept)[kOwn][W::kKept],
                                         const HalfScales (&by)[kOwn], int count, int warp, int lane);
    template <bool kGlu>
    __device__ __forceinline__ void finish(const float (&sum)[kOwn][8][4], const HalfScales (&by)[kOwn],
                                           const GemmTile& t, int warp, int lane);
};

// One thread.
template <SlabKind F, int kTokens>
__device__ __forceinline__ void MmaBlock<F, kTokens>::produce(const GemmTile& t) {
    const GemmPart& part = p.part[t.part];
    const int n = (t.count + 15) / 16 * 16;
    const std::byte* x = p.x.data + int64_t(t.first) * 128;
#pragma unroll 1
    for (int k = 0; k < p.steps; ++k) {
        barrier_wait_alone(empty(stage), turn ^ 1);
        uint64_t* b = full(stage);
        const bool scales = W::kScales && k % 4 == 0;
        barrier_expect(b, L::kCodes + n * 128 + (scales ? L::kScales : 0));
        copy_codes<F>(codes_at(stage), part, k, t.slab_at, b);
        if (scales) copy_scales<F>(scales_at(scale_slot), part, k, t.slab_at, b);
        bulk_copy_kept(shared + stage * L::kX, x + int64_t(k) * p.x.padded * 128, n * 128, b);
        if (k % 4 == 3) next_scales();
        next_stage();
    }
}

// Columns 64 · kUnit of an item.
template <SlabKind F, int kTokens>
template <int kUnit, bool kFull>
__device__ __forceinline__ void MmaBlock<F, kTokens>::step(float (&sum)[kOwn][8][4],
                                                           uint32_t (&kept)[kOwn][W::kKept],
                                                           const HalfScales (&by)[kOwn], int count, int warp,
                                                           int lane) {
    const int across = warp % kAcross, first_slab = warp / kAcross * kOwn;
    barrier_wait(full(stage), turn);
    W w[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
        w[i].template load<kUnit>(codes_at(stage) + (first_slab + i) * W::kCodes,
                                  scales_at(scale_slot) + (first_slab + i) * W::kScales, lane, kept[i],
                                  by[i]);
    // Matrices 0 and 1: tokens 0…7, columns 0…7 and 8…15; 2 and 3: tokens 8…15.
    const int token = (lane & 7) + ((lane >> 4) << 3), chunk = lane >> 3 & 1;
    const uint32_t x = shared_address(shared + stage * L::kX) + (across * 64 + token) * 128;
    const auto columns_16 = [&]<int J>() {
        uint32_t a[kOwn][4];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) w[i].template convert<J>(a[i]);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (!kFull && across * 64 + n * 16 >= count) break;
            uint32_t b[4];
            load_matrices(b, x + n * 16 * 128 + (((2 * J + chunk) ^ (lane & 7)) << 4));
#pragma unroll
            for (int i = 0; i < kOwn; ++i) {
                mma_f16(sum[i][2 * n], a[i], b[0], b[1]);
                mma_f16(sum[i][2 * n + 1], a[i], b[2], b[3]);
            }
        }
    };
    columns_16.template operator()<0>();
    columns_16.template operator()<1>();
    columns_16.template operator()<2>();
    columns_16.template operator()<3>();
    __syncwarp();
    if (lane == 0) barrier_arrive(empty(stage));
    if constexpr (kUnit == 3) next_scales();
    next_stage();
}

// As slab_gemm_wgmma.cuh's; warps that have the same tokens share a piece of shared memory.
template <SlabKind F, int kTokens>
template <bool kGlu>
__device__ __forceinline__ void MmaBlock<F, kTokens>::finish(const float (&sum)[kOwn][8][4],
                                                             const HalfScales (&by)[kOwn], const GemmTile& t,
                                                             int warp, int lane) {
    constexpr int kEach = kGlu ? 8 : 16, kWidth = kMmaSlabs * kEach, kThreads = 256 / kAcross;
    const int g = lane >> 2, c = 2 * (lane & 3), across = warp % kAcross, own = warp / kAcross;
    const GemmResults to(p, t, t.slab, kEach);
    float* staged = reinterpret_cast<float*>(shared + L::kStagedAt) +
                    across * staged_floats(kMmaStagedTokens, 16 * kMmaSlabs);
    float undo[kOwn][2];
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) undo[i][j] = gemm_undo<F>(p, p.part[t.part], by[i].power[j]);
#pragma unroll
    for (int first = 0; first < 64; first += kMmaStagedTokens) {
        const int token = across * 64 + first;
        if (token >= t.count) break;
        named_barrier(1 + across, kThreads);
#pragma unroll
        for (int n = 0; n < kMmaStagedTokens / 8; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int k = 8 * n + c + j;
                const float f =
                    to.mode == SlabMode::half ? 1.0f : p.x.factor[t.first + min(token + k, t.count - 1)];
#pragma unroll
                for (int i = 0; i < kOwn; ++i) {
                    const float low = sum[i][first / 8 + n][j] * (undo[i][0] * f),
                                high = sum[i][first / 8 + n][j + 2] * (undo[i][1] * f);
                    float* v = staged + k * (kWidth + 4) + (own * kOwn + i) * kEach + g;
                    if constexpr (kGlu)
                        v[0] = fast_silu(low) * high;
                    else
                        v[0] = low, v[8] = high;
                }
            }
        named_barrier(1 + across, kThreads);
        store_staged<kMmaStagedTokens, kWidth, kThreads>(staged, to, t.first + token, t.count - token,
                                                         p.order.pair + t.first + token, own * 32 + lane);
    }
}

// Kernel     slab_gemm_mma: 168 registers
template <SlabKind F, int kTokens>
__global__ void __launch_bounds__(kMmaGemmThreads, 1) slab_gemm_mma(const __grid_constant__ SlabGemm p) {
    extern __shared__ std::byte dynamic[];
    using Block = MmaBlock<F, kTokens>;
    Block block(p, dynamic);
    if (threadIdx.x == 0) {
        for (int s = 0; s < 8; ++s) barrier_init(block.full(s), 1), barrier_init(block.empty(s), 8);
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_predecessor();
    let_successor_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = gemm_tiles(p);
    if (warp == 8) {
        if (lane) return;
        for (int i = blockIdx.x; i < tiles; i += gridDim.x) block.produce(gemm_tile<kMmaSlabs>(p, i));
        return;
    }
#pragma unroll 1
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        const GemmTile t = gemm_tile<kMmaSlabs>(p, i);
        HalfScales by[Block::kOwn];
#pragma unroll
        for (int s = 0; s < Block::kOwn; ++s)
            by[s] = tile_scales<F>(p, t, warp / Block::kAcross * Block::kOwn + s, lane >> 2);
        float sum[Block::kOwn][8][4] = {};
        uint32_t kept[Block::kOwn][HalfSlab<F>::kKept];
        const auto multiply = [&]<bool kFull>() {
#pragma unroll 1
            for (int k = 0; k < p.steps; k += 4) {
                block.template step<0, kFull>(sum, kept, by, t.count, warp, lane);
                block.template step<1, kFull>(sum, kept, by, t.count, warp, lane);
                block.template step<2, kFull>(sum, kept, by, t.count, warp, lane);
                block.template step<3, kFull>(sum, kept, by, t.count, warp, lane);
            }
        };
        if (t.count > kTokens - 16)
            multiply.template operator()<true>();
        else
            multiply.template operator()<false>();
        if (p.mode == SlabMode::glu)
            block.template finish<true>(sum, by, t, warp, lane);
        else
            block.template finish<false>(sum, by, t, warp, lane);
    }
}

}  // namespace sparkinfer::cuda
