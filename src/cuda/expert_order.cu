#include "cuda/expert_order.h"

#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"
#include "cuda/lib/route.cuh"

namespace sparkinfer::cuda {
namespace {

struct RouteCall {
    StepView step;
    SlotsView slots;
    const float* logits;  // [T, E]
    int64_t stride;
    Router router;
    int32_t rows, experts;
    Routed to;
    int32_t* count;  // [E] pairs of each expert, zero before; null without ranks
    float* zeros;    // or null
    int64_t zero_stride;
    int32_t zero_width;
};

__device__ __forceinline__ bool route_absent(const RouteCall& p, int r, int lane) {
    if (live_row(p.step, p.slots, r).present) return false;
    const int k = p.router.top_k;
    for (int j = lane; j < k; j += 32) p.to.id[r * k + j] = -1, p.to.weight[r * k + j] = 0;
    if (p.zeros)
        for (int i = lane; i < p.zero_width; i += 32) p.zeros[r * p.zero_stride + i] = 0;
    return true;
}

constexpr int kRouteWarps = 8;

// A warp a row, the experts' order in registers. REQUIRES: what routable() says.
// Kernel     route_many: 48 registers, 1024 bytes
__global__ void __launch_bounds__(kRouteWarps * 32) route_many(const RouteCall p) {
    __shared__ int32_t id[kRouteWarps][kMostTopK];
    __shared__ float best[kRouteWarps][kMostTopK];
    wait_for_predecessor();
    let_successor_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.x * kRouteWarps + warp;
    if (r >= p.rows || route_absent(p, r, lane)) return;
    const float* logits = p.logits + r * p.stride;
    const int k = p.router.top_k;
    ExpertRanking ranking;
    ranking.load(p.router, logits, p.experts);
    best_experts(ranking, k, id[warp], best[warp]);
    const float weight = expert_weight(p.router, logits, id[warp], best[warp], p.experts);
    if (lane >= k) return;
    const int chosen = id[warp][lane];
    p.to.id[r * k + lane] = chosen;
    p.to.weight[r * k + lane] = weight;
    if (p.count) p.to.rank[r * k + lane] = atomicAdd(p.count + chosen, 1);
}

// A warp per row: K times the best of what is left, ties to the lower expert.
// Kernel     route: 48 registers
__global__ void __launch_bounds__(32) route(const RouteCall p) {
    extern __shared__ float score[];
    wait_for_predecessor();
    const int r = blockIdx.x, lane = threadIdx.x, k = p.router.top_k;
    if (route_absent(p, r, lane)) return;
    const float* logits = p.logits + r * p.stride;
    const float* bias = static_cast<const float*>(p.router.bias.data);
    float most = -INFINITY;
    for (int e = lane; e < p.experts; e += 32) most = fmaxf(most, logits[e]);
    most = warp_max(most);
    double sum = 0;
    for (int e = lane; e < p.experts; e += 32) {
        score[e] = p.router.scoring == Scoring::softmax ? expf(logits[e] - most) : sigmoid(logits[e]);
        sum += score[e];
    }
    sum = warp_sum(sum);
    if (p.router.scoring == Scoring::softmax)
        for (int e = lane; e < p.experts; e += 32) score[e] = float(double(score[e]) / sum);
    double total = 0;
    for (int j = 0; j < k; ++j) {
        float best = -INFINITY;
        int id = p.experts;
        for (int e = lane; e < p.experts; e += 32) {
            float v = score[e] < 0 ? -INFINITY : score[e] + (bias ? bias[e] : 0.0f);  // < 0: taken
            if (v != v) v = -INFINITY;
            if (score[e] >= 0 && (id == p.experts || v > best)) best = v, id = e;
        }
#pragma unroll
        for (int m = 16; m; m >>= 1) {
            const float v = __shfl_xor_sync(kWholeWarp, best, m);
            const int o = __shfl_xor_sync(kWholeWarp, id, m);
            if (o < p.experts && (id >= p.experts || v > best || (v == best && o < id))) best = v, id = o;
        }
        id = id < p.experts ? id : 0;  // only when every score is NaN
        if (lane == id % 32) {
            p.to.id[r * k + j] = id;
            p.to.weight[r * k + j] = score[id];
        }
        total += double(__shfl_sync(kWholeWarp, lane == id % 32 ? score[id] : 0.0f, id % 32));
        __syncwarp();
        if (lane == id % 32) score[id] = -1;
        __syncwarp();
    }
    for (int j = lane; j < k; j += 32) {
        float w = p.to.weight[r * k + j];
        if (p.router.renormalise) w = float(double(w) / total);
        p.to.weight[r * k + j] = w * p.router.scale;
    }
    if (p.count)
        for (int j = lane; j < k; j += 32) p.to.rank[r * k + j] = atomicAdd(p.count + p.to.id[r * k + j], 1);
}

constexpr int32_t kOrderThreads = kMostOrderedExperts;

struct OrderCall {
    int32_t* count;  // [E], zero again afterwards
    Routed from;
    int32_t* first;  // [E] first place of each expert
    int32_t pairs, experts;
    bool places;  // hand them out here, too
    ExpertOrder to;
};

__device__ __forceinline__ void put_in_place(const OrderCall& p, const int32_t* first, int pair) {
    const int id = p.from.id[pair], place = id < 0 ? -1 : first[id] + p.from.rank[pair];
    p.to.place[pair] = place;
    if (place >= 0) p.to.pair[place] = pair;
}

// One block, a thread an expert: a run of places and tiles for each.
// Kernel     order_experts: 56 registers, 4352 bytes
__global__ void __launch_bounds__(kOrderThreads) order_experts(const OrderCall p) {
    __shared__ int32_t warp_places[32], warp_tiles[32], firsts[kOrderThreads];
    wait_for_predecessor();
    let_successor_start();
    const int e = threadIdx.x, lane = e % 32, warp = e / 32, own = e < p.experts ? p.count[e] : 0;
    const int own_places = (own + kPackRows - 1) / kPackRows * kPackRows;
    const int own_tiles = (own + p.to.tile_rows - 1) / p.to.tile_rows;
    int places = own_places, tiles = own_tiles;  // of the threads up to this one
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        const int a = __shfl_up_sync(kWholeWarp, places, m), b = __shfl_up_sync(kWholeWarp, tiles, m);
        if (lane >= m) places += a, tiles += b;
    }
    if (lane == 31) warp_places[warp] = places, warp_tiles[warp] = tiles;
    __syncthreads();
    for (int w = 0; w < warp; ++w) places += warp_places[w], tiles += warp_tiles[w];
    if (e == kOrderThreads - 1) *p.to.tiles = tiles;
    const int first = places - own_places;
    firsts[e] = first;
    if (e < p.experts) {
        const int granule = min(16, p.to.tile_rows);
        const int rows =
            own_tiles ? ((own + own_tiles - 1) / own_tiles + granule - 1) / granule * granule : 0;
        for (int i = 0; i < own_tiles; ++i)
            p.to.tile[tiles - own_tiles + i] = make_int4(e, first + i * rows, min(rows, own - i * rows), 0);
        for (int i = own; i < own_places; ++i) p.to.pair[first + i] = -1;
        p.first[e] = first;
        p.count[e] = 0;
    }
    if (!p.places) return;
    __syncthreads();
    for (int i = e; i < p.pairs; i += kOrderThreads) put_in_place(p, firsts, i);
}

// Kernel     order_places: 16 registers
__global__ void __launch_bounds__(256) order_places(const OrderCall p) {
    wait_for_predecessor();
    let_successor_start();
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < p.pairs) put_in_place(p, p.first, i);
}

ExpertOrder add_order(Lowering& l, const Routed& routed, int32_t pairs, int32_t experts, int32_t tile_rows) {
    CHECK(experts <= kOrderThreads, "{} experts, at most {} can be ordered", experts, kOrderThreads);
    ExpertOrder o{};
    const int32_t used = std::min(pairs, experts);  // experts that have pairs at all
    o.pairs = pairs;
    o.places = pairs + used * (kPackRows - 1);
    o.most_tiles = used + pairs / tile_rows;
    o.tile_rows = tile_rows;
    o.place = l.scratch<int32_t>(pairs);
    o.pair = l.scratch<int32_t>(o.places + kPackSlack);
    o.tile = l.scratch<int4>(o.most_tiles);
    o.tiles = l.scratch<int32_t>(1);
    const bool few = pairs <= 2 * kOrderThreads;  // a launch costs more than a turn or two of one block
    const OrderCall p{l.arrivals(), routed, l.scratch<int32_t>(experts), pairs, experts, few, o};
    l.add(order_experts, dim3(1), dim3(kOrderThreads), 0, p, "order");
    if (!few) l.add(order_places, dim3(unsigned(pairs + 255) / 256), dim3(256), 0, p, "places");
    return o;
}

}  // namespace

Routed add_route(Lowering& l, const StepView& step, const SlotsView& slots, const Tensor& logits,
                 const Router& router, bool ordered, const Tensor* zeros) {
    const int32_t rows = logits.rows(), experts = int32_t(logits.cols());
    const int64_t pairs = int64_t(rows) * router.top_k;
    const Routed to{l.scratch<int32_t>(pairs), l.scratch<float>(pairs),
                    ordered ? l.scratch<int32_t>(pairs) : nullptr};
    const RouteCall p{step,
                      slots,
                      static_cast<const float*>(logits.data),
                      logits.stride,
                      router,
                      rows,
                      experts,
                      to,
                      ordered ? l.arrivals() : nullptr,
                      zeros ? static_cast<float*>(zeros->data) : nullptr,
                      zeros ? zeros->stride : 0,
                      zeros ? int32_t(zeros->cols()) : 0};
    if (routable(router, experts))
        l.add(route_many, dim3(unsigned(rows + kRouteWarps - 1) / kRouteWarps), dim3(kRouteWarps * 32), 0, p,
              "route");
    else
        l.add(route, dim3(rows), dim3(32), experts * 4, p, "route");
    return to;
}

OrderedRows add_ordered_rows(Lowering& l, const StepView& step, const SlotsView& slots, const Tensor& logits,
                             const Router& router, int32_t tile_rows, const Tensor* zeros) {
    OrderedRows rows{};
    if (l.kept(logits.data, rows) && rows.order.tile_rows == tile_rows) return rows;
    const int32_t pairs = logits.rows() * router.top_k;
    rows.routed = add_route(l, step, slots, logits, router, true, zeros);
    rows.order = add_order(l, rows.routed, pairs, int32_t(logits.cols()), tile_rows);
    l.keep(logits.data, rows);
    return rows;
}

}  // namespace sparkinfer::cuda
