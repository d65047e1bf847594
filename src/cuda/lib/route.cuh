// route.cuh — the experts of one row, by one warp: what cpu/router.h does.
#pragma once
#include "cuda/lib/copy.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

constexpr int kMostExperts = 256, kMostTopK = 16;

// With a bias the order is that of sigmoid scores plus bias; softmax with a bias has no form here.
inline bool routable(const Router& r, int32_t experts) {
    return r.top_k <= kMostTopK && experts <= kMostExperts && (!r.bias.data || r.scoring == Scoring::sigmoid);
}

// The order of a row's experts, expert 32·i + lane in entry i of a lane.
struct ExpertRanking {
    uint32_t key[kMostExperts / 32];  // orders as the score (+ bias) does, NaN last; 0: not there
    __device__ __forceinline__ ExpertRanking() {
#pragma unroll
        for (uint32_t& k : key) k = 0;
    }
    __device__ __forceinline__ void load(const Router& router, const float* logits, int experts) {
        const int lane = threadIdx.x % 32;
        const float* bias = static_cast<const float*>(router.bias.data);
        float score[kMostExperts / 32];
#pragma unroll
        for (int i = 0; i < kMostExperts / 32; ++i)
            score[i] = i * 32 + lane < experts ? load_l2(logits + i * 32 + lane) : 0.0f;
#pragma unroll
        for (int i = 0; i < kMostExperts / 32; ++i) {
            const bool there = i * 32 + lane < experts;
            float v = score[i];
            if (router.scoring == Scoring::sigmoid)
                v = fast_sigmoid(v) + (bias && there ? bias[i * 32 + lane] : 0.0f);
            const uint32_t u = __float_as_uint(v == v ? v : -INFINITY);
            key[i] = there ? (u >> 31 ? ~u : u | 0x80000000u) : 0u;
        }
    }
};

// id [top_k] and, unless null, score [top_k] (shared memory), best first, ties to the lower expert. Takes the
// best out of `s` one by one. REQUIRES: a whole warp, top_k ≤ E ≤ kMostExperts. Without a bias softmax orders
// as logits do.
__device__ __forceinline__ void best_experts(ExpertRanking& s, int top_k, int32_t* id, float* score) {
    constexpr int kEach = kMostExperts / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int j = 0; j < top_k; ++j) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) best = max(best, s.key[i]);
        const uint32_t top = __reduce_max_sync(kWholeWarp, best);
        uint32_t expert = ~0u;
#pragma unroll
        for (int i = kEach - 1; i >= 0; --i)
            if (s.key[i] == top) expert = i * 32 + lane;
        if (__reduce_min_sync(kWholeWarp, expert) != expert) continue;
        id[j] = int32_t(expert);
        if (score) score[j] = __uint_as_float(top >> 31 ? top & 0x7fffffffu : ~top);
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (i * 32 + lane == expert) s.key[i] = 0;
    }
    __syncwarp();
}

// The weight of the lane's expert (lane < top_k), from id and score as best_experts gives them.
__device__ __forceinline__ float expert_weight(const Router& router, const float* logits, const int32_t* id,
                                               const float* best, int experts) {
    const int lane = threadIdx.x % 32;
    const bool softmax = router.scoring == Scoring::softmax;
    float v = 0;
    if (lane < router.top_k) {
        v = softmax ? __expf(best[lane] - best[0]) : best[lane];
        if (router.bias.data) v = fast_sigmoid(load_l2(logits + id[lane]));  // the bias only chooses
    }
    float sum = 1.0f;
    if (router.renormalise) {
        sum = warp_sum(v);
    } else if (softmax) {
        sum = 0;
#pragma unroll 1
        for (int i = lane; i < experts; i += 32) sum += __expf(load_l2(logits + i) - best[0]);
        sum = warp_sum(sum);
    }
    return __fdividef(v, sum) * router.scale;
}

}  // namespace sparkinfer::cuda
