// output_select.cuh — cuts of the descending order of one row of logits, without sorting it.
// Computes   for ops.h: Output: top-k, top-p, min-p and the draw when more tokens stay than output_stages.cuh
//            lists; the order of cpu/sampler.h
// Shapes     logits [V] F32
// Mapping    one block. Every cut is found by a radix descent over the logits' ordered bits: four passes with
//            a histogram of counts or of fixed-point probability, so that sums do not depend on their order.
//            Equal logits go by ascending id.
// Memory     up to 14 passes over V floats, from L2.
// Limits     V < 2^31; 1024 threads. sm_80+.
// Numbers    not measured yet
// Tested     tests/ops/output.cpp against cpu/.
#pragma once
#include <cstdint>

#include "cuda/launch.h"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"
#include "ops/philox.h"

namespace sparkinfer::cuda {

constexpr int kSelectThreads = 1024;

// Orders floats as unsigned integers, -0 as 0; NaN does not occur. 0 is below every float.
__device__ __forceinline__ uint32_t ordered(float f) {
    const uint32_t u = __float_as_uint(f + 0.0f);
    return u >> 31 ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float unordered(uint32_t u) {
    return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

struct SelectShared {
    double wide[32];
    float part[32];
    int32_t index[32];
    unsigned long long bin[256];
    unsigned long long below;  // what the chosen bin has left to find
    uint32_t key;
    int32_t token;
};

// The greatest (value, lowest id) below (bound, bound_id) in that order.
struct Best {
    float value;
    int32_t id;  // -1: none
};
__device__ __forceinline__ bool better(float v, int32_t i, const Best& b) {
    return b.id < 0 || v > b.value || (v == b.value && i < b.id);
}
__device__ inline Best block_best(Best b, SelectShared& s) {
#pragma unroll
    for (int m = 16; m; m >>= 1) {
        const Best o{__shfl_xor_sync(kWholeWarp, b.value, m), __shfl_xor_sync(kWholeWarp, b.id, m)};
        if (o.id >= 0 && better(o.value, o.id, b)) b = o;
    }
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    if (lane == 0) s.part[warp] = b.value, s.index[warp] = b.id;
    __syncthreads();
    b = {s.part[lane], s.index[lane]};  // kSelectThreads / 32 = 32 warps
#pragma unroll
    for (int m = 16; m; m >>= 1) {
        const Best o{__shfl_xor_sync(kWholeWarp, b.value, m), __shfl_xor_sync(kWholeWarp, b.id, m)};
        if (o.id >= 0 && better(o.value, o.id, b)) b = o;
    }
    return b;
}
__device__ inline Best next_best(const float* x, int n, float bound, int32_t bound_id, SelectShared& s) {
    Best b{0, -1};
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
        const float v = x[i];
        if (v != v) continue;
        if (bound_id >= 0 && !(v < bound || (v == bound && i > bound_id))) continue;
        if (better(v, i, b)) b = {v, i};
    }
    return block_best(b, s);
}

__device__ inline float row_logprob(float logit, double log_sum) {
    return isfinite(log_sum) && logit == logit ? float(double(logit) - log_sum) : -INFINITY;
}
__device__ inline int row_tops(const float* x, int n, int tops, double log_sum, Bias* to, SelectShared& s) {
    Best b{0, -1};
    int found = 0;
    for (; found < min(max(tops, 0), kMaxTopLogprobs); ++found) {
        b = next_best(x, n, b.value, b.id, s);
        if (b.id < 0) break;
        if (threadIdx.x == 0) to[found] = {b.id, row_logprob(b.value, log_sum)};
    }
    return found;
}

// The kept part of the descending order: keys above `key`, and of those equal to it the ids up to `last`.
struct Cut {
    uint32_t key = 0;
    int32_t last = 0x7fffffff;
    __device__ bool keeps(uint32_t k, int32_t id) const { return k > key || (k == key && id <= last); }
};

// Probability in units of 2^-40 of the greatest: exact sums in any order.
struct Weigh {
    float most, inverse_temperature;
    __device__ unsigned long long operator()(float logit) const {
        return (unsigned long long)(double(expf((logit - most) * inverse_temperature)) * 1099511627776.0);
    }
};
struct Count {
    __device__ unsigned long long operator()(float) const { return 1; }
};

template <class Measure>
__device__ unsigned long long total(const float* x, int n, const Cut& cut, Measure measure, SelectShared& s) {
    __syncthreads();
    if (threadIdx.x == 0) s.bin[0] = 0;
    __syncthreads();
    unsigned long long sum = 0;
    for (int i = threadIdx.x; i < n; i += kSelectThreads)
        if (x[i] > -INFINITY && cut.keeps(ordered(x[i]), i)) sum += measure(x[i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) atomicAdd(&s.bin[0], sum);
    __syncthreads();
    return s.bin[0];
}

// The wanted-th (from 1) lowest id inside `cut` whose key is `key`; the last, when there are fewer; -1: there
// is none.
__device__ inline int32_t nth_equal(const float* x, int n, uint32_t key, const Cut& cut,
                                    unsigned long long wanted, SelectShared& s) {
    const int part = (n + kSelectThreads - 1) / kSelectThreads, lane = threadIdx.x % 32,
              warp = threadIdx.x / 32;
    const int begin = min(int(threadIdx.x) * part, n), end = min(begin + part, n);
    const auto equal = [&](int i) { return x[i] > -INFINITY && ordered(x[i]) == key && cut.keeps(key, i); };
    int count = 0;
    for (int i = begin; i < end; ++i) count += equal(i);
    int up_to = count;  // of the warp's threads, then of the block's
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int before = __shfl_up_sync(kWholeWarp, up_to, d);
        if (lane >= d) up_to += before;
    }
    __syncthreads();
    if (lane == 31) s.index[warp] = up_to;
    if (threadIdx.x == 0) s.token = -1;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < kSelectThreads / 32; ++w) {
        if (w == warp) up_to += all;
        all += s.index[w];
    }
    int left = int(min(wanted, (unsigned long long)all)) - (up_to - count);
    if (left > 0 && left <= count)
        for (int i = begin; left > 0; ++i)
            if (equal(i) && --left == 0) s.token = i;
    __syncthreads();
    return s.token;
}

// Where, in descending order inside `cut`, the running measure first reaches `target` (≥ 1): the element's
// key, and its id. REQUIRES: total(cut) ≥ target.
template <class Measure>
__device__ Cut descend(const float* x, int n, const Cut& cut, Measure measure, unsigned long long target,
                       SelectShared& s) {
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < 256) s.bin[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += kSelectThreads) {
            if (!(x[i] > -INFINITY)) continue;
            const uint32_t k = ordered(x[i]);
            if (!cut.keeps(k, i) || (shift < 24 && (k >> (shift + 8)) != (prefix >> (shift + 8)))) continue;
            atomicAdd(&s.bin[(k >> shift) & 255], measure(x[i]));
        }
        __syncthreads();
        if (threadIdx.x < 32) {  // lane l has bins 255 - 8·l … 248 - 8·l
            const int lane = threadIdx.x, first = 255 - 8 * lane;
            unsigned long long own = 0;
            for (int b = 0; b < 8; ++b) own += s.bin[first - b];
            unsigned long long up_to = own;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                const unsigned long long before = __shfl_up_sync(kWholeWarp, up_to, d);
                if (lane >= d) up_to += before;
            }
            const uint32_t reached = __ballot_sync(kWholeWarp, up_to >= target);
            if (lane == (reached ? __ffs(int(reached)) - 1 : 31)) {
                unsigned long long left = target - (up_to - own);
                int b = first;
                while (b > first - 7 && s.bin[b] < left) left -= s.bin[b--];
                s.below = left;
                s.key = prefix | uint32_t(b) << shift;
            }
        }
        __syncthreads();
        prefix = s.key;
        target = s.below;
    }
    // Among equal keys the measure is the same for each: the id is that of the ceil(target / measure)-th.
    const unsigned long long each = max(measure(unordered(prefix)), 1ull);
    return {prefix, nth_equal(x, n, prefix, cut, (target + each - 1) / each, s)};
}

__device__ inline int32_t draw(const float* x, int n, const Sampling& sampling, const Best& best, int index,
                               SelectShared& s) {
    Cut cut;
    if (sampling.top_k > 0) {
        if (total(x, n, cut, Count{}, s) > (unsigned long long)sampling.top_k)
            cut = descend(x, n, cut, Count{}, sampling.top_k, s);
    }
    if (sampling.top_p < 1.0f) {
        const Weigh weigh{best.value, 1.0f};
        const double target = double(sampling.top_p) * double(total(x, n, cut, weigh, s));
        cut = descend(x, n, cut, weigh, max((unsigned long long)ceil(target), 1ull), s);
    }
    if (sampling.min_p > 0.0f) {
        const double least = double(best.value) + log(double(sampling.min_p));
        float bound = float(least);
        if (double(bound) < least) bound = nextafterf(bound, INFINITY);
        const uint32_t key = ordered(bound);
        if (key > cut.key) cut = {key - 1, -1};  // keeps keys ≥ bound
    }
    const Weigh weigh{best.value, 1.0f / sampling.temperature};
    const unsigned long long mass = total(x, n, cut, weigh, s);
    const unsigned long long at =
        (unsigned long long)(double(philox_uniform(sampling.seed, uint32_t(index))) * double(mass));
    return descend(x, n, cut, weigh, min(at + 1, mass), s).last;
}

}  // namespace sparkinfer::cuda
