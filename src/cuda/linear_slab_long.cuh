// linear_slab_long.cuh — linear_slab.cuh for rows too long for registers.
// Computes   ops.h: NormLinear, LinearAdd, LinearGlu, the head of Output
// Shapes     as linear_slab.cuh, K ≤ 32,768
// Mapping    as linear_slab.cuh, but a slab is shared by 2…8 warps, each with every n-th item of 256 columns,
//            and the quantised rows lie in shared memory, where every warp finds the items it needs.
// Memory     as linear_slab.cuh
// Limits     as linear_slab.cuh
// Numbers    docs/perf/h200.md
// Tested     as linear_slab.cuh
#pragma once
#include "cuda/linear_slab.cuh"

namespace sparkinfer::cuda {

constexpr int kMostItems = 128;  // columns up to 32,768

template <int C>
struct alignas(128) LongShared {
    alignas(16) float red[8 * 2 * red_floats<C>(2)];  // [group][turn]: most for eight groups of two warps
    alignas(16) float squares[C / 2][kMostItems];
    float factors[kMaxParts][2];
    uint64_t x_full, full[kMaxStages], empty[kMaxStages];
};

// Requests step q of a slab: the items that its warps take at once.
template <int kMask>
__device__ __forceinline__ void request_step(const SlabLinear& p, std::byte* ring, uint64_t* full, int slab,
                                             int q, int stage) {
    const int items = p.columns / kSlabColumns;
    const SlabPart& part = p.part[part_of(p, slab)];
    const int item = slab_item_bytes<kMask>(part.kind), bytes = min(p.warps, items - q * p.warps) * item;
    barrier_expect(full + stage, bytes);
    bulk_copy(ring + stage * p.stage_bytes, part.data + (int64_t(slab) * items + q * p.warps) * item, bytes,
              full + stage);
}

// A warp, before the wait: barriers and the first steps.
template <int kMask, int C>
__device__ __forceinline__ void produce_first_steps(const SlabLinear& p, LongShared<C>& s, std::byte* ring,
                                                    const SlabShare& share) {
    const int lane = threadIdx.x % 32;
    init_ring(&s.x_full, s.full, s.empty, p.stages, p.warps);
    if (lane < min(p.stages, share.count * p.steps))
        request_step<kMask>(p, ring, s.full, share.first + lane / p.steps, lane % p.steps, lane);
    if (lane < 2 * kMaxParts && p.part[lane / 2].factor)
        s.factors[lane / 2][lane % 2] = __ldg(p.part[lane / 2].factor + lane % 2);
    __syncwarp();
}

// One thread, after the wait: what slots become free for.
template <int kMask, int C>
__device__ __forceinline__ void produce_rest_steps(const SlabLinear& p, LongShared<C>& s, std::byte* ring,
                                                   const SlabShare& share) {
    Slot slot{0};
    int slab = share.first + p.stages / p.steps, q = p.stages % p.steps;
#pragma unroll 1
    for (int n = p.stages; n < share.count * p.steps; ++n) {
        barrier_wait_alone(s.empty + slot.stage, slot.turn & 1);
        request_step<kMask>(p, ring, s.full, slab, q, slot.stage);
        slot.advance(1, p.stages);
        if (++q == p.steps) q = 0, ++slab;
    }
}

template <int kMask, int C>
__device__ __forceinline__ void consume_steps(const SlabLinear& p, std::byte* ring, const std::byte* act,
                                              LongShared<C>& s, const SlabShare& share) {
    const ActivationLayout<kMask, C> at{p.columns};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int items = p.columns / kSlabColumns, steps = p.steps;
    const int group = warp * p.inverse >> 16, own = warp - group * p.warps;
    int other = red_floats<C>(p.warps);
    float* red = s.red + group * 2 * other;
#pragma unroll 1
    for (int i = group; i < share.count; i += p.groups) {
        const int slab = share.first + i, of = part_of(p, slab);
        const SlabPart& part = p.part[of];
        const int item = slab_item_bytes<kMask>(part.kind);
        SlabSums<C> sums;
        sums.clear();
        const float before = own < p.rows ? value_before(p, part, slab, own, lane) : 0.0f;
        uint32_t turn = i * steps / p.stages;
        Slot slot{int(i * steps - turn * p.stages), turn};
#pragma unroll 1
        for (int kb = own; kb < steps * p.warps; kb += p.warps, slot.advance(1, p.stages)) {
            // A slot's parity aliases for a group that runs a whole phase ahead of another: see it emptied
            // before waiting for it full.
            if (p.groups > 1 && slot.turn) barrier_wait(s.empty + slot.stage, (slot.turn - 1) & 1);
            barrier_wait(s.full + slot.stage, slot.turn & 1);
            if (kb < items) {
                Fragments<kMask, C> x;
                at.load(x, act, kb, lane);
                item_of<kMask, C>(part.kind, ring + slot.stage * p.stage_bytes + own * item, x,
                                  s.factors[of][1], sums, lane);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(s.empty + slot.stage);
        }
        store_sums<C>(sums, red, p.warps, own, lane);
        named_barrier(2 + group, p.warps * 32);
#pragma unroll 1
        for (int r = own; r < p.rows; r += p.warps) {
            float v = slab_sum(red + r * red_floats<2>(p.warps), p.warps, lane) * s.factors[of][0];
            if (p.norm) v *= rms_of(s.squares[r], items, p.inverse_columns, p.eps, source_row(p, r));
            give_slab(p, part, slab, r, v, r == own ? before : value_before(p, part, slab, r, lane), lane);
        }
        red += other, other = -other;
    }
}

// A lane's chains of an item from rows in global memory, as take_item.
template <int C, class Give>
__device__ __forceinline__ float take_item_global(const float* row, const float* gains, int lane, Give give) {
    float squares[C];
#pragma unroll
    for (int ch = 0; ch < C; ++ch) {
        const int column = chain_column<C>(ch, lane);
        ChainValues c = {};
        if (row) c = load_chain([&](int k) { return load2_l2(row + k); }, column);
        squares[ch] = chain_squares(c);
        if (gains) {
            const ChainValues gain =
                load_chain([&](int k) { return __ldg(reinterpret_cast<const float2*>(gains + k)); }, column);
#pragma unroll
            for (int i = 0; i < 8; ++i) c.v[i] *= gain.v[i];
        }
        give(ch, c);
    }
    return item_squares<C>(squares);
}

// Kernel     linear_slab_long: 168 registers
template <int kMask, int C>
__global__ void __launch_bounds__(kSlabThreads, C == 2 ? 2 : 1)
    linear_slab_long(const __grid_constant__ SlabLinear p) {
    extern __shared__ __align__(128) std::byte shared[];
    const int block = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    let_successor_start();
    if (block >= p.slab_blocks) {
        if (block < p.slab_blocks + p.dense_blocks && warp < kSlabWarps)
            return dense_rows<C>(p, block - p.slab_blocks, reinterpret_cast<float2*>(shared));
        wait_for_predecessor();
        return;
    }
    const ActivationLayout<kMask, C> at{p.columns};
    LongShared<C>& s = *reinterpret_cast<LongShared<C>*>(shared);
    std::byte* act = shared + sizeof(LongShared<C>);
    std::byte* ring = act + (at.bytes() + 127) / 128 * 128;
    const SlabShare share(p, block);
    if (warp == kSlabWarps) {
        produce_first_steps<kMask, C>(p, s, ring, share);
        __syncthreads();
        wait_for_predecessor();
        if (lane == 0) produce_rest_steps<kMask, C>(p, s, ring, share);
        return;
    }
    const float* row = source_row(p, token_of<C>(lane));
    __syncthreads();
    wait_for_predecessor();
#pragma unroll 1
    for (int item = warp; item < p.columns / kSlabColumns; item += kSlabWarps) {
        const float squares = take_item_global<C>(
            row ? row + item * kSlabColumns : nullptr, p.norm ? p.norm + item * kSlabColumns : nullptr, lane,
            [&](int chain, const ChainValues& c) {
                at.store(act, item, chain,
                         quantise_chain<Fragments<kMask, C>::kHalves>(c, makes_low_plane<C>(lane)), lane);
            });
        if (lane % 8 == 0) s.squares[token_of<C>(lane)][item] = squares;
    }
    if (threadIdx.x < C / 2)  // what rms_of reads behind the items
        for (int i = p.columns / kSlabColumns; i % 4; ++i) s.squares[threadIdx.x][i] = 0;
    named_barrier(1, kSlabWarps * 32);
    consume_steps<kMask, C>(p, ring, act, s, share);
}

}  // namespace sparkinfer::cuda
