#include "cuda/expert_order.h"

#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

// A warp per row: K times the best of what is left, ties to the lower expert.
// Kernel     route: 48 registers
__global__ void __launch_bounds__(32) route(const RouteCall p) {
    extern __shared__ float score[];
    wait_for_predecessor();
    const int r = blockIdx.x, lane = threadIdx.x, k = p.router.top_k;
    if (!live_row(p.step, p.slots, r).present) {
        for (int j = lane; j < k; j += 32) p.to.id[r * k + j] = -1, p.to.weight[r * k + j] = 0;
        if (p.zeros)
            for (int i = lane; i < p.zero_width; i += 32) p.zeros[r * p.zero_stride + i] = 0;
        return;
    }
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
}

Routed add_route(Lowering& l, const StepView& step, const SlotsView& slots, const Tensor& logits,
                 const Router& router, const Tensor* zeros) {
    const int32_t rows = logits.rows(), experts = int32_t(logits.cols());
    const Routed to{l.scratch<int32_t>(int64_t(rows) * router.top_k),
                    l.scratch<float>(int64_t(rows) * router.top_k)};
    l.add(route, dim3(rows), dim3(32), experts * 4,
          {step, slots, static_cast<const float*>(logits.data), logits.stride, router, experts, to,
           zeros ? static_cast<float*>(zeros->data) : nullptr, zeros ? zeros->stride : 0,
           zeros ? int32_t(zeros->cols()) : 0},
          "route");
    return to;
}

constexpr int32_t kOrderThreads = 1024;

struct OrderCall {
    const int32_t* id;
    int32_t pairs, experts;
    ExpertOrder to;
};

// One block: counts the pairs of each expert, gives each a run of places, writes tiles, hands out places. Which of
// an expert's places a pair gets is left to chance; no result depends on it.
// Kernel     order_experts: 32 registers, 256 bytes
__global__ void __launch_bounds__(kOrderThreads) order_experts(const OrderCall p) {
    extern __shared__ int32_t count[];  // [E], then where each expert's next pair goes
    __shared__ int32_t warp_places[32], warp_tiles[32];
    wait_for_predecessor();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int e = threadIdx.x; e < p.experts; e += kOrderThreads) count[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < p.pairs; i += kOrderThreads) {
        if (p.id[i] >= 0) atomicAdd(&count[p.id[i]], 1);
        else p.to.place[i] = -1;
    }
    __syncthreads();
    // Thread e: an expert. Inclusive sums of places and tiles over the threads before it.
    const int e = threadIdx.x, own = e < p.experts ? count[e] : 0;
    const int own_places = (own + kPackRows - 1) / kPackRows * kPackRows;
    const int own_tiles = (own + p.to.tile_rows - 1) / p.to.tile_rows;
    int places = own_places, tiles = own_tiles;
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
    if (e < p.experts) {
        const int rows = own_tiles ? ((own + own_tiles - 1) / own_tiles + 15) / 16 * 16 : 0;
        for (int i = 0; i < own_tiles; ++i)
            p.to.tile[tiles - own_tiles + i] = make_int4(e, first + i * rows, min(rows, own - i * rows), 0);
        count[e] = first;
        for (int i = own; i < own_places; ++i) p.to.pair[first + i] = -1;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.pairs; i += kOrderThreads) {
        const int id = p.id[i];
        if (id < 0) continue;
        const int place = atomicAdd(&count[id], 1);
        p.to.place[i] = place;
        p.to.pair[place] = i;
    }
}

ExpertOrder add_expert_order(Lowering& l, const int32_t* id, int32_t pairs, int32_t experts, int32_t tile_rows) {
    CHECK(experts <= kOrderThreads, "{} experts, at most {} can be ordered", experts, kOrderThreads);
    ExpertOrder o{};
    const int32_t used = std::min(pairs, experts);  // experts that have pairs at all
    o.places = pairs + used * (kPackRows - 1);
    o.most_tiles = used + pairs / tile_rows;
    o.tile_rows = tile_rows;
    o.place = l.scratch<int32_t>(pairs);
    o.pair = l.scratch<int32_t>(o.places + 16);
    o.tile = l.scratch<int4>(o.most_tiles);
    o.tiles = l.scratch<int32_t>(1);
    l.add(order_experts, dim3(1), dim3(kOrderThreads), uint32_t(experts) * 4, {id, pairs, experts, o}, "order");
    return o;
}

}  // namespace sparkinfer::cuda
