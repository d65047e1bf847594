// moe_slab.cuh — experts of up to eight rows, weights in slabs, on the integer tensor cores.
// Computes   ops.h: MoeGlu and MoeDownAdd
// Shapes     x [T ≤ 8, D]   gate and up [E, F, D] paired   down [E, D, F], shared down [D, Fs]
//            D, F, Fs multiples of 256
// Mapping    gate/up: (row, expert, slab) triples spread over the grid; all warps rank the experts, the
//            producer requests their slabs, 16 warps multiply. down: a block per (16 outputs, row), a warp
//            per item of 256 columns over all experts of the row and the shared one, which are requested
//            before the dependency wait.
// Memory     each used expert's weights once per row that uses it (rows that share one meet in L2).
// Limits     E ≤ 256, K ≤ 16. The router's projection and gate/up trigger their successors after their own
//            wait, so x and the router's logits are settled when gate/up and down start.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/moe.cpp and from_tapes.cpp against float64, rel. L2 < 6e-5 (16-bit activations).
#pragma once
#include "cuda/lib/route.cuh"
#include "cuda/linear_slab.cuh"

namespace sparkinfer::cuda {

struct MoeGluSlab {
    MoeGlu op;
    const std::byte* data;
    const float* factor;
    int32_t columns, items, slabs;  // D, D / 256, slabs of one expert
    int32_t experts, warps, stages;
};

template <SlabKind F>
__global__ void __launch_bounds__(kSlabThreads, 2) moe_glu_slab(const __grid_constant__ MoeGluSlab p) {
    constexpr int kMask = slab_mask(F), kItem = SlabOf<F>::item;
    extern __shared__ __align__(128) std::byte shared[];
    const MoeGlu& o = p.op;
    const ActivationLayout<kMask, 2> at{p.columns};
    const int rows = o.x.rows(), k = o.router.top_k, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    std::byte* ring = shared;
    std::byte* act = ring + p.stages * p.warps * kItem;
    float* red = reinterpret_cast<float*>(act + rows * at.bytes());  // [groups][2][warps][32]
    uint64_t* full = reinterpret_cast<uint64_t*>(red + kSlabWarps * 2 * 32);
    uint64_t* empty = full + kMaxStages;
    float* rms = reinterpret_cast<float*>(empty + kMaxStages);        // [8]
    float* part = rms + 8;                                            // [2][kMostItems]
    int32_t* id = reinterpret_cast<int32_t*>(part + 2 * kMostItems);  // [8][16], -1: absent row
    uint32_t* key = reinterpret_cast<uint32_t*>(id + 128);            // [256]
    const int64_t all = int64_t(rows) * k * p.slabs;
    const int first = int(all * blockIdx.x / gridDim.x), last = int(all * (blockIdx.x + 1) / gridDim.x);
    const int steps = (p.items + p.warps - 1) / p.warps;
    if (warp == kSlabWarps) {
        if (lane == 0) {
            for (int i = 0; i < p.stages; ++i) barrier_init(full + i, 1), barrier_init(empty + i, p.warps);
            barrier_init_fence();
        }
        __syncwarp();
        wait_for_predecessor();
        let_successor_start();
        asm volatile("bar.sync 15,%0;" ::"n"(kSlabThreads) : "memory");  // the experts are known
        if (lane != 0) return;
        for (int n = 0; n < (last - first) * steps; ++n) {
            const int s = first + n / steps, q = n % steps, stage = n % p.stages,
                      held = min(p.warps, p.items - q * p.warps);
            const int expert = id[s / (k * p.slabs) * 16 + s / p.slabs % k];
            if (n >= p.stages) barrier_wait_alone(empty + stage, (n / p.stages - 1) & 1);
            if (expert < 0) {
                barrier_arrive(full + stage);
                continue;
            }
            barrier_expect(full + stage, held * kItem);
            bulk_copy(ring + stage * p.warps * kItem,
                      p.data + ((int64_t(expert) * p.slabs + s % p.slabs) * p.items + q * p.warps) * kItem,
                      held * kItem, full + stage);
        }
        return;
    }
    // x is settled: rows are quantised while the router's logits are on their way.
    SlabLinear rows_of{};
    rows_of.x = static_cast<const float*>(o.x.data);
    rows_of.x_stride = o.x.stride;
    rows_of.norm = static_cast<const float*>(o.norm.data);
    rows_of.eps = o.eps;
    rows_of.columns = p.columns;
    rows_of.gather_first = -1;
    rows_of.rows = 1;
    const int first_row = first / (k * p.slabs),
              last_row = last > first ? (last - 1) / (k * p.slabs) : first_row;
    const float factor = __ldg(p.factor), m_factor = __ldg(p.factor + 1);
    const Eight gains = first_gains(rows_of);
    for (int r = first_row; r <= last_row; ++r) {
        rows_of.x = o.x.row(r);
        take_rows<1>(rows_of, gains, part + (r & 1) * kMostItems, rms + r,
                     [&](const float(&v)[8], int item, int) {
                         quantise_item<kMask, 2>(v, item, 0, act + r * at.bytes(), at, lane);
                     });
    }
    wait_for_predecessor();
    let_successor_start();
    for (int r = first_row; r <= last_row; ++r) {
        if (live_row(o.step, o.slots, r).present)
            rank_row(o.router, o.logits.row(r), p.experts, key, id + r * 16);
        else if (warp == 0 && lane < k)
            id[r * 16 + lane] = -1;
    }
    asm volatile("bar.sync 15,%0;" ::"n"(kSlabThreads) : "memory");
    const int group = warp / p.warps, own = warp % p.warps, groups = kSlabWarps / p.warps;
    int turn = 0;
    for (int i = group; i < last - first; i += groups, turn ^= 1) {
        const int s = first + i, r = s / (k * p.slabs), j = s / p.slabs % k;
        const bool present = id[r * 16 + j] >= 0;
        SlabSums<2> sums;
        sums.clear();
#pragma unroll 1
        for (int q = 0; q < steps; ++q) {
            const int n = i * steps + q, stage = n % p.stages, kb = q * p.warps + own;
            if (n >= p.stages) barrier_wait(empty + stage, (n / p.stages - 1) & 1);
            barrier_wait(full + stage, (n / p.stages) & 1);
            if (kb < p.items && present)
                item_of<kMask, 2>(F, ring + (stage * p.warps + own) * kItem, act + r * at.bytes(), kb,
                                  m_factor, sums, lane, p.columns);
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + stage);
        }
        float* mine = red + (group * 2 + turn) * p.warps * 32;
        store_sums<2>(sums, mine + own * 32, lane);
        named_barrier(2 + group, p.warps * 32);
        if (own == 0) {
            const float v = slab_sum<2>(mine, p.warps, 0, lane) * factor * rms[r],
                        up = __shfl_sync(kWholeWarp, v, lane % 8 + 8);
            if (lane < 8)
                o.y.row(r)[j * o.y.shape[2] + s % p.slabs * 8 + lane] = present ? silu(v) * up : 0.0f;
        }
    }
}

struct MoeDownSlab {
    MoeDownAdd op;
    const std::byte *data, *shared_data;
    const float *factor, *shared_factor;
    int32_t experts, slabs;       // E, D / 16
    int32_t items, shared_items;  // F / 256, Fs / 256
};

constexpr int kDownWarps = 24;

// Columns of the expert part are the K experts' F, one after the other; those of the shared part follow in a
// layout of their own.
template <SlabKind F, SlabKind S, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, kWarps <= 18 ? 2 : 1)
    moe_down_slab(const __grid_constant__ MoeDownSlab p) {
    constexpr int kItem = SlabOf<F>::item, kSharedItem = SlabOf<S>::item;
    extern __shared__ __align__(128) std::byte shared[];
    const MoeDownAdd& o = p.op;
    const int k = o.router.top_k, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int slab = blockIdx.x, r = blockIdx.y, ffn = o.h.shape[2],
              shared_ffn = p.shared_items * kSlabColumns;
    const ActivationLayout<slab_mask(F), 2> at{k * ffn};
    const ActivationLayout<slab_mask(S), 2> shared_at{shared_ffn};
    std::byte* items = shared;
    std::byte* shared_items = items + k * p.items * kItem;
    std::byte* act = shared_items + p.shared_items * kSharedItem;
    std::byte* shared_act = act + at.bytes();
    float* red = reinterpret_cast<float*>(shared_act + shared_at.bytes());  // [warps][32]
    uint64_t* full = reinterpret_cast<uint64_t*>(red + kWarps * 32);
    float* weight = reinterpret_cast<float*>(full + 2);  // [16]
    int32_t* id = reinterpret_cast<int32_t*>(weight + 16);
    let_successor_start();
    const bool present = live_row(o.step, o.slots, r).present;
    // Settled before the wait: the router's logits, the shared expert's gate, up and scalar.
    if (present && warp == 0) {
        if (lane == 0) {
            barrier_init(full, 1);
            barrier_init_fence();
            barrier_expect(full, k * p.items * kItem + p.shared_items * kSharedItem);
        }
        __syncwarp();
        const int expert = route_row(o.router, o.logits.row(r), p.experts, id, weight);
        if (lane < k)
            bulk_copy(items + lane * p.items * kItem,
                      p.data + (int64_t(expert) * p.slabs + slab) * p.items * kItem, p.items * kItem, full);
        if (lane == 31 && p.shared_items)
            bulk_copy(shared_items, p.shared_data + int64_t(slab) * p.shared_items * kSharedItem,
                      p.shared_items * kSharedItem, full);
    } else if (present && p.shared_items) {
        const float scalar = o.shared_scalar.data ? sigmoid(load_l2(o.shared_scalar.row(r))) : 1.0f;
        for (int item = warp - 1; item < p.shared_items; item += warps - 1) {
            const int column = item * kSlabColumns + lane * 8;
            const Eight gate = load_eight(o.shared_gate.row(r) + column),
                        up = load_eight(o.shared_up.row(r) + column);
            Eight v;
#pragma unroll
            for (int i = 0; i < 8; ++i) v.v[i] = silu(gate.v[i]) * up.v[i] * scalar;
            quantise_item<slab_mask(S), 2>(v.v, item, 0, shared_act, shared_at, lane);
        }
    }
    const float factor = __ldg(p.factor), m_factor = __ldg(p.factor + 1);
    const float shared_factor = p.shared_items ? __ldg(p.shared_factor) : 0.0f,
                shared_m = p.shared_items ? __ldg(p.shared_factor + 1) : 0.0f;
    // So is x, that the attention or the delta rule has added to.
    const float before = present && threadIdx.x < 16 ? load_l2(o.x.row(r) + slab * 16 + threadIdx.x) : 0.0f;
    wait_for_predecessor();
    if (!present) return;
    __syncthreads();
    const float* h = o.h.row(r);
    for (int item = warp; item < k * p.items; item += warps) {
        Eight v = load_eight(h + item * kSlabColumns + lane * 8);
        const float w = weight[item / p.items];
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] *= w;
        quantise_item<slab_mask(F), 2>(v.v, item, 0, act, at, lane);
    }
    __syncthreads();
    barrier_wait(full, 0);
    const int count = k * p.items;
    float mine[2] = {0, 0};  // this warp's rows, both planes, scaled
    SlabSums<2> sums;
    sums.clear();
    for (int i = warp; i < count; i += warps)
        slab_item<F, 2>(items + i * kItem, act + i * 8 * 2 * 32, act + at.template helpers<F>(i * 8),
                        m_factor, sums, lane);
    float* own = red + warp * 32;
    store_sums<2>(sums, own, lane);
    __syncwarp();
    if (lane < 16) mine[0] = (own[lane] + own[lane + 16]) * factor;
    __syncwarp();
    if (p.shared_items) {
        sums.clear();
        // The last warps take them: those that have no second item of an expert.
        for (int i = warps - 1 - warp; i < p.shared_items; i += warps)
            slab_item<S, 2>(shared_items + i * kSharedItem, shared_act + i * 8 * 2 * 32,
                            shared_act + shared_at.template helpers<S>(i * 8), shared_m, sums, lane);
        store_sums<2>(sums, own, lane);
        __syncwarp();
        if (lane < 16) mine[1] = (own[lane] + own[lane + 16]) * shared_factor;
        __syncwarp();
    }
    if (lane < 16) own[lane] = mine[0] + mine[1];
    __syncthreads();
    if (warp == 0) {
        float total = 0;
#pragma unroll 4
        for (int w = lane / 16; w < warps; w += 2) total += red[w * 32 + lane % 16];
        total += __shfl_xor_sync(kWholeWarp, total, 16);
        if (lane < 16) o.x.row(r)[slab * 16 + lane] = before + total;
    }
}

}  // namespace sparkinfer::cuda
