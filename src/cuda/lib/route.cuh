// route.cuh — the experts of one row, by one warp: what cpu/router.h does.
#pragma once
#include "cuda/lib/copy.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

constexpr int kMostExperts = 256;

// id [top_k] and weight [top_k] (shared or global memory) of the row with these logits. REQUIRES: a whole
// warp, E ≤ kMostExperts, top_k ≤ 32. Lane j returns the j-th expert.
__device__ __forceinline__ int route_row(const Router& router, const float* logits, int experts, int32_t* id,
                                         float* weight) {
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
        score[i] = !there                               ? 0.0f
                   : router.scoring == Scoring::softmax ? expf(score[i] - most)
                                                        : sigmoid(score[i]);
        sum += score[i];
    }
    const float all = router.scoring == Scoring::softmax ? warp_sum(sum) : 1.0f;
    // Keys order by score (+ bias), then by lower expert: what is left has the greatest key. 0: taken or not
    // there.
    uint32_t key[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const float preference =
            score[i] / all + (bias && i * 32 + lane < experts ? bias[i * 32 + lane] : 0.0f);
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

// id [top_k] only, by all warps of a slab kernel's consumers: an expert's place is the number of better ones.
// `key`: shared [kMostExperts]. Scores grow with logits, so without a bias logits order as scores do.
__device__ __forceinline__ void rank_row(const Router& router, const float* logits, int experts,
                                         uint32_t* key, int32_t* id) {
    const int thread = threadIdx.x;  // 512 of them: two an expert
    const float* bias = static_cast<const float*>(router.bias.data);
    named_barrier(1, 512);  // the last row's keys have been read
    if (thread < kMostExperts) {
        float v = thread < experts ? load_l2(logits + thread) : -INFINITY;
        if (bias && thread < experts) v = sigmoid(v) + bias[thread];
        const uint32_t u = __float_as_uint(v == v ? v : -INFINITY);
        key[thread] = thread < experts ? (u >> 31 ? ~u : u | 0x80000000u) : 0u;
    }
    named_barrier(1, 512);
    const int expert = thread / 2;
    const uint32_t mine = key[expert];
    int better = 0;
#pragma unroll 8
    for (int i = 0; i < kMostExperts / 2; i += 4) {
        const int at = 2 * i + (thread & 1) * 4;  // the two threads of an expert read beside each other
        const uint4 four = *reinterpret_cast<const uint4*>(key + at);
        better += (four.x > mine || (four.x == mine && at < expert)) +
                  (four.y > mine || (four.y == mine && at + 1 < expert)) +
                  (four.z > mine || (four.z == mine && at + 2 < expert)) +
                  (four.w > mine || (four.w == mine && at + 3 < expert));
    }
    better += __shfl_xor_sync(kWholeWarp, better, 1);
    if (!(thread & 1) && better < router.top_k && expert < experts) id[better] = expert;
}

}  // namespace sparkinfer::cuda
