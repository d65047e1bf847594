// moe_slab.cuh — experts of up to eight rows, weights in slabs, on the integer tensor cores.
// Computes   ops.h: MoeGlu and MoeDownAdd
// Shapes     x [T ≤ 8, D]   gate and up [E, F, D] paired   down [E, D, F], shared down [D, Fs]
//            D ≤ 4096, F, Fs multiples of 256
// Mapping    gate/up: (row, expert, slab) triples spread over the grid. The last warp ranks the experts and
//            requests their slabs; eight or 16 multiply, as linear_slab.cuh. down: a block per (16 outputs,
//            row), the items of 256 columns over all experts of the row spread over its warps; of one row
//            their weights are requested before the dependency wait; the shared expert is done by then.
// Memory     each used expert's weights once per row that uses it (rows that share one meet in L2).
// Limits     E ≤ 256, K ≤ 16. gate/up triggers its successor after its own wait, so that the
//            router's logits and x are settled when down starts.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/moe.cpp and from_tapes.cpp against float64, rel. L2 < 6e-5 (16-bit activations).
#pragma once
#include "cuda/lib/route.cuh"
#include "cuda/linear_slab.cuh"

namespace sparkinfer::cuda {

constexpr int kMoeRows = 8;

// Of several rows: what the gate/up kernel has found, for the down kernel.
struct MoeRoutes {
    int32_t* id;    // [T][kMostTopK]; null: one row, which each block ranks itself, before its wait
    float* weight;  // as id
};

struct MoeGluSlab {
    MoeGlu op;
    MoeRoutes routes;
    const std::byte* data;
    const float2* factor;
    int32_t items, slabs;  // D / 256, slabs of one expert
    int32_t experts, groups, stages;
    int32_t warps, inverse;  // of a slab; 65536 / warps, rounded up
    int32_t batch, ring_at;  // as SlabLinear
    int32_t x_rows;          // that a block may touch: 1 or 2
    int32_t each, more;      // triples of a block; the first `more` blocks have one more
    float inverse_columns;   // 1 / D
};

// Warps that multiply: of one row, whose blocks share a multiprocessor with their neighbours', and of
// several.
constexpr int kGluWarpsOne = 8, kGluWarpsMany = 16;

// Shared memory: this, then x [≤ 2 rows][D], the gains [D], sums, the ring.
template <int kWarps>
struct alignas(128) GluShared {
    alignas(16) float squares[8][kMoeRows][2 * kSlabWarps];  // [group][row][item]
    PlaneItem planes[kWarps];
    int32_t id[kMoeRows][kMostTopK];  // -1: absent row
    float score[kMostTopK];
    uint64_t x_full[2], full[kMaxStages], empty[kMaxStages];
};

// One of the block's triples.
struct GluPiece {
    int row, choice, slab;
    __device__ __forceinline__ GluPiece(const MoeGluSlab& p, int s) {
        choice = s / p.slabs;
        slab = s - choice * p.slabs;
        row = choice / p.op.router.top_k;
        choice -= row * p.op.router.top_k;
    }
    __device__ __forceinline__ void advance(const MoeGluSlab& p, int by) {
        for (slab += by; slab >= p.slabs; slab -= p.slabs)
            if (++choice == p.op.router.top_k) choice = 0, ++row;
    }
};

template <int kWarps>
__device__ __forceinline__ void request_piece(const MoeGluSlab& p, GluShared<kWarps>& s, std::byte* ring,
                                              const GluPiece& piece, int stage, int item_bytes) {
    const int bytes = p.items * item_bytes, expert = s.id[piece.row][piece.choice];
    if (expert < 0) return barrier_arrive(s.full + stage);
    barrier_expect(s.full + stage, bytes);
    bulk_copy(ring + stage * bytes, p.data + int64_t(expert * p.slabs + piece.slab) * bytes, bytes,
              s.full + stage);
}

// One thread: a row of x for the block, with the first one the gains.
template <int kWarps>
__device__ __forceinline__ void request_row(const MoeGluSlab& p, GluShared<kWarps>& s, float* x, int row,
                                            int i) {
    const int width = p.op.x.cols();
    barrier_expect(s.x_full + i, width * (i == 0 ? 8 : 4));
    bulk_copy_kept(x + i * width, p.op.x.row(row), width * 4, s.x_full + i);
}

// The last warp: x of the block's rows, their experts, and all requests. `x`: [x_rows][D]. Ranking runs once
// before the wait, on nothing: code that is used once a token comes late.
template <int kWarps>
__device__ __forceinline__ void glu_produce(const MoeGluSlab& p, GluShared<kWarps>& s, float* x,
                                            std::byte* ring, const GluPiece& start, int count, int item_bytes,
                                            bool present) {
    const MoeGlu& o = p.op;
    const int lane = threadIdx.x % 32;
    GluPiece mine = start, end = start;
    mine.advance(p, min(lane, count - 1)), end.advance(p, count - 1);
    ExpertRanking order;
#pragma unroll 1
    for (int r = start.row - 1; r <= end.row; ++r) {
        if (r == start.row) {
            wait_for_predecessor();
            let_successor_start();
        }
        if (r >= start.row) {
            if (lane == 0) request_row(p, s, x, r, r - start.row);
            order.load(o.router, o.logits.row(r), p.experts);
        }
        best_experts(order, o.router.top_k, s.id[max(r, 0)], s.score);
        if (p.routes.id && (r > start.row || (r == start.row && start.choice == 0 && start.slab == 0))) {
            const float weight = expert_weight(o.router, o.logits.row(r), s.id[r], s.score, p.experts);
            if (lane < o.router.top_k) {
                p.routes.id[r * kMostTopK + lane] = s.id[r][lane];
                p.routes.weight[r * kMostTopK + lane] = weight;
            }
        }
        if (!__shfl_sync(kWholeWarp, present, max(r, 0)) && lane < kMostTopK) s.id[max(r, 0)][lane] = -1;
    }
    __syncwarp();
    if (lane < min(p.stages, count)) request_piece(p, s, ring, mine, lane, item_bytes);
    if (lane != 0) return;
    GluPiece next = start;
    next.advance(p, p.stages);
    Slot slot{0};
#pragma unroll 1
    for (int n = p.stages; n < count; ++n) {
        barrier_wait_alone(s.empty + slot.stage, slot.turn & 1);
        request_piece(p, s, ring, next, slot.stage, item_bytes);
        slot.advance(1, p.stages);
        next.advance(p, 1);
    }
}

// The row's activations of a warp, and their Σx² to shared memory.
template <int kMask, int kItems, int kWarps>
__device__ __forceinline__ void glu_take(const MoeGluSlab& p, GluShared<kWarps>& s, const float* x,
                                         Fragments<kMask, 1> (&f)[kItems], int row, int first_row, int group,
                                         int own) {
    const int lane = threadIdx.x % 32, width = p.op.x.cols();
    barrier_wait(s.x_full + row - first_row, 0);
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
        const int at = (own + k * p.warps) * kSlabColumns;
        PlaneItem& planes = s.planes[threadIdx.x / 32];
        make_planes<kMask>(x + (row - first_row) * width + at, x + p.x_rows * width + at, planes,
                           &s.squares[group][row][own + k * p.warps], lane);
        __syncwarp();
        take_planes(f[k], planes, lane);
    }
    if (lane == 0 && own == 0)  // what rms_of reads behind the items
        for (int i = p.items; i % 4; ++i) s.squares[group][row][i] = 0;
}

// The block's pieces up to `count` that are the group's.
template <SlabKind F, int kItems, int kWarps>
__device__ __forceinline__ void glu_consume(const MoeGluSlab& p, GluShared<kWarps>& s, float* x,
                                            std::byte* ring, const GluPiece& start, int count, int group,
                                            int own, bool present, float2 factor) {
    constexpr int kMask = slab_mask(F), kItem = SlabOf<F>::item;
    const MoeGlu& o = p.op;
    const int lane = threadIdx.x % 32;
    Fragments<kMask, 1> f[kItems];
    GluPiece piece = start, finish = start;
    piece.advance(p, group), finish.advance(p, group + own * p.groups);
    const int sums_each = p.batch * red_floats(1, p.warps);  // of a group; twice where it has two batches
    int other = p.groups * sums_each, waiting = 0, row = -1;
    float* red = x + (p.x_rows + 1) * o.x.cols() + group * sums_each;
    Slot slot{group};
#pragma unroll 1
    for (int i = group; i < count; i += p.groups) {
        if (piece.row != row) glu_take<kMask>(p, s, x, f, row = piece.row, start.row, group, own);
        if (p.groups > 1 && slot.turn) barrier_wait(s.empty + slot.stage, (slot.turn - 1) & 1);
        barrier_wait(s.full + slot.stage, slot.turn & 1);
        SlabSums sums{};
        if (__shfl_sync(kWholeWarp, present, row))
#pragma unroll
            for (int k = 0; k < kItems; ++k)
                slab_item_one<F>(ring + (slot.stage * p.items + own + k * p.warps) * kItem, f[k], factor,
                                 sums, lane);
        __syncwarp();
        if (lane == 0) barrier_arrive(s.empty + slot.stage);
        slot.advance(p.groups, p.stages);
        piece.advance(p, p.groups);
        store_sums<1>(sums, red + waiting * red_floats(1, p.warps), p.warps, own, lane);
        if (++waiting < p.batch && i + p.groups < count) continue;
        named_barrier(2 + group, p.warps * 32);
        GluPiece of = finish;
#pragma unroll 1
        for (int b = own; b < waiting; b += p.warps, of.advance(p, p.warps * p.groups)) {
            const float v =
                slab_sum(red + b * red_floats(1, p.warps), p.warps, lane) *
                rms_of(s.squares[group][of.row], p.items, p.inverse_columns, o.eps, o.x.row(of.row));
            const float up = __shfl_sync(kWholeWarp, v, lane % 8 + 8);
            if (lane < 8) o.y.row(of.row)[of.choice * o.y.shape[2] + of.slab * 8 + lane] = fast_silu(v) * up;
        }
        finish.advance(p, waiting * p.groups);
        red += other, other = -other, waiting = 0;
    }
}

// Blocks that a multiprocessor shall have the registers for, where no spill comes of it.
HD constexpr int glu_residents(SlabKind kind, int items, int warps) {
    if (warps == kGluWarpsMany || items == 2) return 1;
    return kind == SlabKind::k4 || kind == SlabKind::q8 || kind == SlabKind::iq4_xs || kind == SlabKind::mxfp4
               ? 3
               : 2;
}
// kItems: of a warp.
// Kernel     moe_glu_slab: 168 registers
template <SlabKind F, int kItems, int kWarps>
__global__ void __launch_bounds__((kWarps + 1) * 32, glu_residents(F, kItems, kWarps))
    moe_glu_slab(const __grid_constant__ MoeGluSlab p) {
    constexpr int kMask = slab_mask(F), kItem = SlabOf<F>::item;
    extern __shared__ __align__(128) std::byte shared[];
    const MoeGlu& o = p.op;
    auto& s = *reinterpret_cast<GluShared<kWarps>*>(shared);
    float* x = reinterpret_cast<float*>(&s + 1);
    std::byte* ring = shared + p.ring_at;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x;
    const int count = p.each + (block < p.more);
    const GluPiece start(p, block * p.each + min(block, p.more));
    const int group = warp * p.inverse >> 16, own = warp - group * p.warps;
    const bool present = lane < o.x.rows() && live_row(o.step, o.slots, lane).present;  // row `lane`
    if (warp == kWarps) {
        init_ring(s.x_full, s.full, s.empty, p.stages, p.warps);
        if (lane == 0) {
            barrier_init(s.x_full + 1, 1);
            barrier_init_fence();
            bulk_copy_kept(x + p.x_rows * o.x.cols(), o.norm.data, int(o.x.cols()) * 4, s.x_full);
        }
        __syncwarp();
    }
    const float2 factor = __ldg(p.factor);
    __syncthreads();
    if (warp == kWarps && count) return glu_produce(p, s, x, ring, start, count, kItem, present);
    wait_for_predecessor();
    let_successor_start();
    if (group < min(p.groups, count))
        glu_consume<F, kItems>(p, s, x, ring, start, count, group, own, present, factor);
}

struct MoeDownSlab {
    MoeDownAdd op;
    MoeRoutes routes;
    const std::byte *data, *shared_data;
    const float2 *factor, *shared_factor;
    int32_t experts, slabs;       // E, D / 16
    int32_t items, shared_items;  // F / 256, Fs / 256
    int32_t inverse;              // 65536 / items, rounded up
};

constexpr int kDownWarps = 8;

// Shared memory: this, then h [K·F], the experts' items, the shared expert's, the sums.
struct alignas(128) DownShared {
    alignas(16) float shared_red[16 * red_stride(kDownWarps)];  // of the shared expert's items
    float score[kMostTopK], weight[kMostTopK];
    int32_t id[kMostTopK];
    PlaneItem planes[kDownWarps];
    uint64_t experts_full, shared_full, h_full;
};

// One thread: the barriers, and the request of the shared expert's slab.
__device__ __forceinline__ void down_begin(const MoeDownSlab& p, DownShared& s, std::byte* shared_items,
                                           int expert_bytes, int shared_bytes) {
    barrier_init(&s.experts_full, 1);
    barrier_init(&s.shared_full, 1);
    barrier_init(&s.h_full, 1);
    barrier_init_fence();
    barrier_expect(&s.experts_full, expert_bytes);
    barrier_expect(&s.shared_full, shared_bytes);
    barrier_expect(&s.h_full, p.op.router.top_k * p.items * kSlabColumns * 4);
    if (shared_bytes)
        bulk_copy(shared_items, p.shared_data + int64_t(blockIdx.x) * shared_bytes, shared_bytes,
                  &s.shared_full);
}

// A warp: the experts of row r, the requests of their slabs, and their weights. One row: before the wait.
__device__ __forceinline__ void down_route(const MoeDownSlab& p, DownShared& s, std::byte* items, int r,
                                           int item_bytes) {
    const MoeDownAdd& o = p.op;
    const int lane = threadIdx.x % 32, k = o.router.top_k, bytes = p.items * item_bytes;
    const auto request = [&](int expert) {
        bulk_copy(items + lane * bytes, p.data + (int64_t(expert) * p.slabs + blockIdx.x) * bytes, bytes,
                  &s.experts_full);
    };
    if (p.routes.id) {
        if (lane < k) {
            request(__ldcg(p.routes.id + r * kMostTopK + lane));
            s.weight[lane] = load_l2(p.routes.weight + r * kMostTopK + lane);
        }
        return;
    }
    ExpertRanking order;
    order.load(o.router, o.logits.row(r), p.experts);
    best_experts(order, k, s.id, s.score);
    if (lane < k) request(s.id[lane]);
    const float weight = expert_weight(o.router, o.logits.row(r), s.id, s.score, p.experts);
    if (lane < k) s.weight[lane] = weight;
}

// A warp's item of the shared expert: silu(gate) · up · scalar times its down.
template <SlabKind S>
__device__ __forceinline__ void shared_item(const MoeDownSlab& p, DownShared& s, const std::byte* weights,
                                            int r, int item, float2 factor) {
    const MoeDownAdd& o = p.op;
    const int lane = threadIdx.x % 32;
    const float scalar = o.shared_scalar.data ? fast_sigmoid(load_l2(o.shared_scalar.row(r))) : 1.0f;
    Fragments<slab_mask(S), 1> x;
    PlaneValues h;
    h.load(
        [&](int column) {
            const float2 gate = load2_l2(o.shared_gate.row(r) + item * kSlabColumns + column),
                         up = load2_l2(o.shared_up.row(r) + item * kSlabColumns + column);
            return make_float2(fast_silu(gate.x) * up.x * scalar, fast_silu(gate.y) * up.y * scalar);
        },
        lane);
    PlaneItem& planes = s.planes[threadIdx.x / 32];
    store_planes<slab_mask(S)>(planes, Planes(h), lane);
    __syncwarp();
    take_planes(x, planes, lane);
    barrier_wait(&s.shared_full, 0);
    SlabSums sums{};
    slab_item_one<S>(weights + item * SlabOf<S>::item, x, factor, sums, lane);
    store_sums<1>(sums, s.shared_red, p.shared_items, item, lane);
}

// Kernel     moe_down_slab: 80 registers
template <SlabKind F, SlabKind S>
__global__ void __launch_bounds__(kDownWarps * 32, 3) moe_down_slab(const __grid_constant__ MoeDownSlab p) {
    constexpr int kItem = SlabOf<F>::item;
    extern __shared__ __align__(128) std::byte shared[];
    const MoeDownAdd& o = p.op;
    DownShared& s = *reinterpret_cast<DownShared*>(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slab = blockIdx.x, r = blockIdx.y;
    const int count = o.router.top_k * p.items;
    float* h = reinterpret_cast<float*>(&s + 1);
    std::byte* items = reinterpret_cast<std::byte*>(h + count * kSlabColumns);
    std::byte* shared_items = items + count * kItem;
    float* red = reinterpret_cast<float*>(shared_items + p.shared_items * SlabOf<S>::item);  // store_sums
    let_successor_start();
    const bool present = live_row(o.step, o.slots, r).present;
    if (threadIdx.x == 0)
        down_begin(p, s, shared_items, present ? count * kItem : 0, p.shared_items * SlabOf<S>::item);
    const float2 factor = __ldg(p.factor);
    __syncthreads();
    // Settled: the router's logits, the shared expert's gate, up and scalar, and x before this op.
    if (warp == 0 && present && !p.routes.id) down_route(p, s, items, r, kItem);
    if (kDownWarps - 1 - warp < p.shared_items)
        shared_item<S>(p, s, shared_items, r, kDownWarps - 1 - warp, __ldg(p.shared_factor));
    const float before = warp == 1 && lane < 16 ? load_l2(o.x.row(r) + slab * 16 + lane) : 0.0f;
    wait_for_predecessor();
    if (!present) return;
    if (warp == 0 && p.routes.id) down_route(p, s, items, r, kItem);
    if (threadIdx.x == 0) bulk_copy_kept(h, o.h.row(r), count * kSlabColumns * 4, &s.h_full);
    __syncwarp();
    barrier_wait(&s.h_full, 0);
    barrier_wait(&s.experts_full, 0);
#pragma unroll 1
    for (int i = warp; i < count; i += kDownWarps) {
        Fragments<slab_mask(F), 1> x;
        make_planes<slab_mask(F)>(h + i * kSlabColumns, nullptr, s.planes[warp], nullptr, lane);
        __syncwarp();
        take_planes(x, s.planes[warp], lane);
        SlabSums sums{};
        slab_item_one<F>(items + i * kItem, x, factor, sums, lane);
        store_sums<1>(sums, red, count, i, lane);
    }
    __syncthreads();
    if (warp != 1) return;
    // Row lane % 16: the experts' sums, each with its weight, by halves of the warp.
    float total = 0;
    const float* sums = red + lane % 16 * red_stride(count);
#pragma unroll 2
    for (int i = lane / 16; i < count; i += 2) total = fmaf(sums[i], s.weight[i * p.inverse >> 16], total);
    total += __shfl_xor_sync(kWholeWarp, total, 16);
    if (p.shared_items) total += slab_sum(s.shared_red, p.shared_items, lane);
    if (lane < 16) o.x.row(r)[slab * 16 + lane] = before + total;
}

}  // namespace sparkinfer::cuda
