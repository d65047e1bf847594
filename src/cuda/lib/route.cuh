// route.cuh — the experts of one row, by one warp: what cpu/router.h does.
#pragma once
#include "cuda/lib/math.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

constexpr int kMostExperts = 256;

// id [top_k] and weight [top_k] (shared or global memory) of the row with these logits. REQUIRES: a whole warp, E ≤ kMostExperts,
// top_k ≤ 32. Lane j returns the j-th expert.
__device__ __forceinline__ int route_row(const Router& router, const float* logits, int experts, int32_t* id, float* weight) {
    constexpr int kEach = kMostExperts / 32;
    const int lane = threadIdx.x % 32;
    const float* bias = static_cast<const float*>(router.bias.data);
    float score[kEach];
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        score[i] = i * 32 + lane < experts ? __ldcg(logits + i * 32 + lane) : -INFINITY;
        most = score[i] > most ? score[i] : most;
    }
    most = warp_max(most);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const bool there = i * 32 + lane < experts;
        score[i] = !there ? 0.0f : router.scoring == Scoring::softmax ? expf(score[i] - most) : sigmoid(score[i]);
        sum += score[i];
    }
    const float all = router.scoring == Scoring::softmax ? warp_sum(sum) : 1.0f;
    // Keys order by score (+ bias), then by lower expert: what is left has the greatest key. 0: taken or not there.
    uint32_t key[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const float preference = score[i] / all + (bias && i * 32 + lane < experts ? bias[i * 32 + lane] : 0.0f);
        const uint32_t u = __float_as_uint(preference == preference ? preference : -INFINITY);
        key[i] = i * 32 + lane < experts ? (u >> 31 ? ~u : u | 0x80000000u) : 0u;
    }
    int mine = 0;
    float own = 0, total = 0;
    for (int j = 0; j < router.top_k; ++j) {
        uint32_t best = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) best = key[i] > best ? key[i] : best;
        const uint32_t top = __reduce_max_sync(kWholeWarp, best);
        uint32_t lowest = 0xffffffffu;
#pragma unroll
        for (int i = kEach - 1; i >= 0; --i)
            if (key[i] == top) lowest = i * 32 + lane;
        const int expert = int(__reduce_min_sync(kWholeWarp, lowest));
        float s = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            if (i * 32 + lane == expert) s = score[i], key[i] = 0;
        s = __shfl_sync(kWholeWarp, s, expert % 32);
        if (lane == j) mine = expert, own = s;
        total += s;
    }
    if (lane < router.top_k) {
        id[lane] = mine;
        weight[lane] = (router.renormalise ? own / total : own / all) * router.scale;
    }
    return mine;
}

}  // namespace sparkinfer::cuda
