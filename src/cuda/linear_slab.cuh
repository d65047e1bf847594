// linear_slab.cuh — y = [norm](x) · Wᵀ for one row, weights in slabs, on the integer tensor cores.
// Computes   ops.h: NormLinear, LinearAdd, LinearGlu, the head of Output
// Shapes     x [1, K], K ≤ 4096 a multiple of 256   parts [out_i, K], slabs (out_i a multiple of 16) or plain
//            floats   y [1, out_i] F32
// Mapping    8 warps and one that requests. A slab is shared by up to 8 of them; K ≤ 2048: each has the same
//            item of 256 columns of every slab, so that its activations stay in registers; K ≤ 4096 and a
//            slab a block: each has two items, one after the other. Partial sums meet in shared memory and
//            are added in one order. Plain-float parts have blocks of their own at the end of the grid.
// Memory     weights once, by bulk copies that start before the dependency wait; x and the gains by one bulk
//            copy each, turned into planes by the warps that need them. Floor = weight bytes / bandwidth.
// Limits     72 registers for one format but Q6_K: its successor's blocks find room beside it. More or longer
//            rows: linear_slab_long.cuh.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/linear.cpp and from_tapes.cpp against float64, rel. L2 < 6e-5 (16-bit activations).
#pragma once
#include "cuda/linear_slab_dense.cuh"

namespace sparkinfer::cuda {

// Shared memory of linear_slab: this, then x [K], the gains [K], sums, the ring.
struct alignas(128) SlabShared {
    alignas(16) float squares[8][2 * kSlabWarps];  // [group][item]
    PlaneItem planes[kSlabWarps];
    float2 factors[kMaxParts];
    uint64_t x_full, full[kMaxStages], empty[kMaxStages];
};

// Requests a slab of the row of all: all its items.
template <int kMask>
__device__ __forceinline__ void request(const SlabLinear& p, std::byte* ring, uint64_t* full, int slab,
                                        int stage) {
    const SlabPart& part = p.part[part_of(p, slab)];
    const int bytes = (p.columns / kSlabColumns) * slab_item_bytes<kMask>(part.kind);
    barrier_expect(full + stage, bytes);
    bulk_copy(ring + stage * p.stage_bytes, part.data + int64_t(slab) * bytes, bytes, full + stage);
}

// By one warp; a block barrier makes the barriers known.
__device__ __forceinline__ void init_ring(uint64_t* x_full, uint64_t* full, uint64_t* empty, int stages,
                                          int warps) {
    const int lane = threadIdx.x % 32;
    if (lane < stages) {
        barrier_init(full + lane, 1);
        barrier_init(empty + lane, warps);
    }
    if (lane == 0) barrier_init(x_full, 1);
    barrier_init_fence();
    __syncwarp();
}
// Gains before the wait, x after it, both counted by one barrier. One thread.
__device__ __forceinline__ void request_gains(const SlabLinear& p, float* x, uint64_t* x_full) {
    const int row = p.columns * 4;
    barrier_expect(x_full, (p.norm ? 2 : 1) * row);
    if (p.norm) bulk_copy_kept(x + p.columns, p.norm, row, x_full);
}

// A warp, before the wait: barriers, gains and the first slabs.
template <int kMask>
__device__ __forceinline__ void produce_first(const SlabLinear& p, SlabShared& s, float* x, std::byte* ring,
                                              const SlabShare& share) {
    const int lane = threadIdx.x % 32;
    init_ring(&s.x_full, s.full, s.empty, p.stages, p.warps);
    if (lane < min(p.stages, share.count)) request<kMask>(p, ring, s.full, share.first + lane, lane);
    if (lane < kMaxParts && p.part[lane].factor) s.factors[lane] = __ldg(p.part[lane].factor);
    if (lane == 0) request_gains(p, x, &s.x_full);
    __syncwarp();
}
// One thread, after the wait: what slots become free for.
template <int kMask>
__device__ __forceinline__ void produce_rest(const SlabLinear& p, SlabShared& s, std::byte* ring,
                                             const SlabShare& share) {
    Slot slot{0};
#pragma unroll 1
    for (int n = p.stages; n < share.count; ++n) {
        barrier_wait_alone(s.empty + slot.stage, slot.turn & 1);
        request<kMask>(p, ring, s.full, share.first + n, slot.stage);
        slot.advance(1, p.stages);
    }
}

// The finished sums of `waiting` slabs, the last of them `slab`: its group's warps share them. kPasses: sets
// of sums of each, of which fours of items are added in their order.
template <int kPasses = 1>
__device__ __forceinline__ void finish_slabs(const SlabLinear& p, const SlabShared& s, const float* red,
                                             int group, int own, int slab, int waiting, float before,
                                             int before_of) {
    const int lane = threadIdx.x % 32, items = p.columns / kSlabColumns;
#pragma unroll 1
    for (int q = own; q < waiting; q += p.warps) {
        const int of = slab - (waiting - 1 - q) * p.groups, i = part_of(p, of);
        const float* sums = red + q * red_floats(1, p.warps);
        float v = slab_sum(sums, p.warps, lane);
        if (kPasses == 2) {
            const float four = slab_sum_half(sums + red_floats(1, p.warps), p.warps, lane);
            v += __shfl_sync(kWholeWarp, four, lane % 16);
            v += __shfl_sync(kWholeWarp, four, lane % 16 + 16);
        }
        if (p.norm) v *= rms_of(s.squares[group], items, p.inverse_columns, p.eps, source_row(p, 0));
        if (of != before_of || q != own) before = value_before(p, p.part[i], of, 0, lane);
        give_slab(p, p.part[i], of, 0, v, before, lane);
    }
}

template <int kMask>
__device__ __forceinline__ void consume(const SlabLinear& p, std::byte* ring, float* red, SlabShared& s,
                                        const Fragments<kMask, 1>& f, const SlabShare& share, int group,
                                        int own, float before, int before_of) {
    const int lane = threadIdx.x % 32, last = share.first + share.count;
    const int sums_each = p.batch * red_floats(1, p.warps);  // of a group; twice where it has two batches
    int other = p.groups * sums_each, waiting = 0;
    red += group * sums_each;
    Slot slot{group};
#pragma unroll 1
    for (int slab = share.first + group; slab < last; slab += p.groups) {
        // A slot's parity aliases for a group that runs a whole phase ahead of another: see it emptied before
        // waiting for it full.
        if (p.groups > 1 && slot.turn) barrier_wait(s.empty + slot.stage, (slot.turn - 1) & 1);
        barrier_wait(s.full + slot.stage, slot.turn & 1);
        const int i = (kMask & (kMask - 1)) ? part_of(p, slab) : 0;
        const int item = slab_item_bytes<kMask>(p.part[i].kind);
        SlabSums sums{};
        item_of<1>(p.part[i].kind, ring + slot.stage * p.stage_bytes + own * item, &f,
                   s.factors[part_of(p, slab)], &sums, lane);
        __syncwarp();
        if (lane == 0) barrier_arrive(s.empty + slot.stage);
        slot.advance(p.groups, p.stages);
        store_sums<1>(sums, red + waiting * red_floats(1, p.warps), p.warps, own, lane);
        if (++waiting < p.batch && slab + p.groups < last) continue;
        named_barrier(2 + group, p.warps * 32);
        finish_slabs(p, s, red, group, own, slab, waiting, before, before_of);
        red += other, other = -other, waiting = 0;
    }
}

// An item of x to fragments, and its Σx² to shared memory.
template <int kMask>
__device__ __forceinline__ void take_fragments(const SlabLinear& p, const float* x, SlabShared& s,
                                               Fragments<kMask, 1>& f, int group, int item) {
    const int lane = threadIdx.x % 32;
    const float* from = x + item * kSlabColumns;
    PlaneItem& planes = s.planes[threadIdx.x / 32];
    make_planes<kMask>(from, p.norm ? from + p.columns : nullptr, planes, &s.squares[group][item], lane);
    __syncwarp();
    take_planes(f, planes, lane);
}

// The block's only slab, of which each warp takes two items, one after the other; as two passes of
// linear_slab_long.cuh.
template <int kMask>
__device__ __forceinline__ void consume_one(const SlabLinear& p, const std::byte* ring, float* red,
                                            SlabShared& s, const float* x, const SlabShare& share, int own,
                                            float before, int before_of) {
    const int lane = threadIdx.x % 32, i = part_of(p, share.first);
    const int item = slab_item_bytes<kMask>(p.part[i].kind);
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        const int k = pass * p.warps + own;
        SlabSums sums{};
        if (k < p.columns / kSlabColumns) {
            Fragments<kMask, 1> f;
            take_fragments(p, x, s, f, 0, k);
            barrier_wait(s.full, 0);
            item_of<1>(p.part[i].kind, ring + k * item, &f, s.factors[i], &sums, lane);
        }
        store_sums<1>(sums, red + pass * red_floats(1, p.warps), p.warps, own, lane);
    }
    named_barrier(2, p.warps * 32);
    finish_slabs<2>(p, s, red, 0, own, share.first, 1, before, before_of);
}

// Blocks that a multiprocessor shall have the registers for: with a third one's, one of delta_step fits
// beside.
HD constexpr int slab_residents(int mask) {
    const bool mixed = mask & (mask - 1);
    return mixed || mask == kMask6 ? 1 : 3;
}

// kOne: K > 2048, and a slab a block.
// Kernel     linear_slab: 168 registers
template <int kMask, bool kOne>
__global__ void __launch_bounds__(kSlabThreads, slab_residents(kMask))
    linear_slab(const __grid_constant__ SlabLinear p) {
    extern __shared__ __align__(128) std::byte shared[];
    const int block = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    let_successor_start();
    if (block >= p.slab_blocks) {
        if (block < p.slab_blocks + p.dense_blocks && warp < kSlabWarps)
            return dense_rows<1>(p, block - p.slab_blocks, reinterpret_cast<float*>(shared));
        wait_for_predecessor();
        return;
    }
    SlabShared& s = *reinterpret_cast<SlabShared*>(shared);
    float* x = reinterpret_cast<float*>(&s + 1);
    float* red = x + (p.norm ? 2 : 1) * p.columns;
    std::byte* ring = shared + p.ring_at;
    const SlabShare share(p, block);
    if (warp == kSlabWarps) {
        produce_first<kMask>(p, s, x, ring, share);
        __syncthreads();
        wait_for_predecessor();
        if (lane != 0) return;
        bulk_copy_kept(x, source_row(p, 0), p.columns * 4, &s.x_full);
        return produce_rest<kMask>(p, s, ring, share);
    }
    const int group = warp * p.inverse >> 16, own = warp - group * p.warps;
    // What the first sum that this warp finishes adds to.
    const int before_of = share.first + group + own * p.groups;
    if (lane == 0 && own == 0 && group < p.groups)  // what rms_of reads behind the items
        for (int i = p.columns / kSlabColumns; i % 4; ++i) s.squares[group][i] = 0;
    __syncthreads();
    wait_for_predecessor();
    if (group >= min(p.groups, share.count)) return;
    float before = 0;
    if (p.mode == SlabMode::add && before_of < share.first + share.count)
        before = value_before(p, p.part[part_of(p, before_of)], before_of, 0, lane);
    barrier_wait(&s.x_full, 0);
    if constexpr (kOne) {
        consume_one<kMask>(p, ring, red, s, x, share, own, before, before_of);
    } else {
        Fragments<kMask, 1> f;
        take_fragments(p, x, s, f, group, own);
        consume(p, ring, red, s, f, share, group, own, before, before_of);
    }
}

}  // namespace sparkinfer::cuda
