// output_select.cuh — one token out of one row of logits, without sorting the vocabulary.
// Computes   ops.h: Output, kinds select and logprobs; the order of cpu/sampler.h
// Shapes     logits [R ≤ 64, V] F32   results [R] Selected or TokenLogprob
// Mapping    a block per row. Every cut of the descending order (top-k, top-p, the draw) is found by a radix descent over the
//            logits' ordered bits: four passes with a histogram of counts or of fixed-point probability, so that sums do
//            not depend on their order. Equal logits go by ascending id.
// Memory     greedy: V floats twice. Sampling: up to 14 passes over V floats, from L2.
// Limits     V < 2^31. sm_80+.
// Tested     tests/ops/output.cpp against cpu/.
#pragma once
#include <cstdint>

#include "cuda/launch.h"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"
#include "ops/philox.h"

namespace sparkinfer::cuda {

constexpr int kSelectThreads = 1024;

struct SelectCall {
    Output op;
    int32_t vocabulary;
    float* adjusted;  // [R, V] logits after penalties, bias and mask
    int32_t* counts;  // [R, V]
};

// Orders floats as unsigned integers; NaN does not occur. 0 is below every float.
__device__ __forceinline__ uint32_t ordered(float f) {
    const uint32_t u = __float_as_uint(f);
    return u >> 31 ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float unordered(uint32_t u) { return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u); }

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

__device__ inline double row_log_sum_exp(const float* x, int n, SelectShared& s) {
    float most = -INFINITY;
    for (int i = threadIdx.x; i < n; i += kSelectThreads) most = x[i] > most ? x[i] : most;
    most = block_max(most, s.part, -INFINITY);
    if (isinf(most)) return most;
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += kSelectThreads)
        if (x[i] == x[i]) sum += double(expf(x[i] - most));
    return double(most) + log(block_sum(sum, s.wide));
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

// Where, in descending order inside `cut`, the running measure first reaches `target` (≥ 1): the element's key, and its id.
// REQUIRES: total(cut) ≥ target.
template <class Measure>
__device__ Cut descend(const float* x, int n, const Cut& cut, Measure measure, unsigned long long target, SelectShared& s) {
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
        if (threadIdx.x == 0) {
            unsigned long long left = target;
            int b = 255;
            while (b > 0 && s.bin[b] < left) left -= s.bin[b--];
            s.below = left;
            s.key = prefix | uint32_t(b) << shift;
        }
        __syncthreads();
        prefix = s.key;
        target = s.below;
    }
    // Among equal keys the measure is the same for each: the id is that of the ceil(target / measure)-th.
    const unsigned long long each = max(measure(unordered(prefix)), 1ull);
    long long wanted = (long long)((target + each - 1) / each);
    int32_t low = -1;  // ids up to here are passed
    for (; wanted > 0; --wanted) {
        int32_t id = 0x7fffffff;
        for (int i = threadIdx.x; i < n; i += kSelectThreads)
            if (i > low && i < id && x[i] > -INFINITY && ordered(x[i]) == prefix && cut.keeps(prefix, i)) id = i;
        id = __reduce_min_sync(kWholeWarp, id);
        __syncthreads();
        if (threadIdx.x % 32 == 0) s.index[threadIdx.x / 32] = id;
        __syncthreads();
        id = __reduce_min_sync(kWholeWarp, s.index[threadIdx.x % 32]);
        if (id == 0x7fffffff) break;
        low = id;
    }
    return {prefix, low};
}

// Raw logits -> adjusted: NaN is -inf; then penalties, bias, mask.
__device__ inline void adjust(const SelectCall& p, const float* raw, float* x, int32_t* counts, const Slot& slot,
                              const int32_t* history, int length) {
    const int n = p.vocabulary;
    const Sampling& s = slot.sampling;
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
        x[i] = raw[i] == raw[i] ? raw[i] : -INFINITY;
        counts[i] = 0;
    }
    __syncthreads();
    if (s.repeat_penalty != 1.0f && s.repeat_last_n != 0) {
        const int first = s.repeat_last_n < 0 ? 0 : max(0, length - s.repeat_last_n);
        for (int i = first + threadIdx.x; i < length; i += kSelectThreads) {
            const int t = history[i];
            if (t >= 0 && t < n && atomicAdd(&counts[t], 1) == 0) x[t] = x[t] > 0 ? x[t] / s.repeat_penalty : x[t] * s.repeat_penalty;
        }
        __syncthreads();
        for (int i = first + threadIdx.x; i < length; i += kSelectThreads)
            if (history[i] >= 0 && history[i] < n) counts[history[i]] = 0;
        __syncthreads();
    }
    if (s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f) {
        const int first = min(length, max(slot.cursor.prompt, 0));
        for (int i = first + threadIdx.x; i < length; i += kSelectThreads)
            if (history[i] >= 0 && history[i] < n) atomicAdd(&counts[history[i]], 1);
        __syncthreads();
        for (int i = first + threadIdx.x; i < length; i += kSelectThreads) {
            const int t = history[i];
            const int count = t >= 0 && t < n ? atomicExch(&counts[t], 0) : 0;
            if (count) x[t] -= s.presence_penalty + float(count) * s.frequency_penalty;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < min(max(s.biases, 0), kMaxBias); ++i)
            if (slot.bias[i].token >= 0 && slot.bias[i].token < n) x[slot.bias[i].token] += slot.bias[i].value;
    __syncthreads();
    const uint32_t* mask = s.mask < 0 ? nullptr : p.op.slots.masks + int64_t(s.mask) * p.op.slots.mask_words;
    for (int i = threadIdx.x; i < n; i += kSelectThreads)
        if (x[i] != x[i] || (mask && !(mask[i / 32] >> (i % 32) & 1))) x[i] = -INFINITY;
    __syncthreads();
}

__device__ inline int32_t lowest_allowed(const SelectCall& p, const Sampling& sampling) {
    if (sampling.mask < 0) return 0;
    const uint32_t* mask = p.op.slots.masks + int64_t(sampling.mask) * p.op.slots.mask_words;
    for (int i = 0; i < p.vocabulary; ++i)
        if (mask[i / 32] >> (i % 32) & 1) return i;
    return 0;
}

__device__ inline int32_t draw(const float* x, int n, const Sampling& sampling, const Best& best, int index, SelectShared& s) {
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
    const unsigned long long at = (unsigned long long)(double(philox_uniform(sampling.seed, uint32_t(index))) * double(mass));
    return descend(x, n, cut, weigh, min(at + 1, mass), s).last;
}

__global__ void __launch_bounds__(kSelectThreads) output_select(const SelectCall p) {
    __shared__ SelectShared s;
    wait_for_predecessor();
    const Output& o = p.op;
    const int i = blockIdx.x, n = p.vocabulary;
    if (i >= o.step.header().outputs) return;
    const int r = o.step.outputs()[i];
    const LiveRow row = live_row(o.step, o.slots, r);
    Selected& result = static_cast<Selected*>(o.results)[i];
    if (!row.present) {
        if (threadIdx.x == 0) result = {}, result.row = r, result.slot = o.step.rows()[r].slot, result.token = -1;
        return;
    }
    const Slot& slot = o.slots.slot(row.slot);
    const float* raw = o.scratch.row(i);
    float* x = p.adjusted + int64_t(i) * n;
    adjust(p, raw, x, p.counts + int64_t(i) * n, slot, o.slots.history(row.slot), row.index + 1);
    const Best best = next_best(x, n, 0, -1, s);
    int32_t token = best.id;
    if (best.id < 0 || best.value == -INFINITY) token = lowest_allowed(p, slot.sampling);
    else if (slot.sampling.temperature > 0 && slot.sampling.top_k != 1 && !isinf(best.value))
        token = draw(x, n, slot.sampling, best, row.index + 1, s);
    const double log_sum = row_log_sum_exp(raw, n, s);
    const int tops = row_tops(raw, n, slot.sampling.top_logprobs, log_sum, result.top, s);
    if (threadIdx.x != 0) return;
    result.row = r;
    result.slot = row.slot;
    result.token = token;
    result.stopped = 0;
    result.logprob = row_logprob(raw[token], log_sum);
    result.tops = tops;
}

// Cursors last and in order: rows of one slot see them as the step found them.
__global__ void output_advance(const SelectCall p) {
    wait_for_predecessor();
    if (threadIdx.x) return;
    const Output& o = p.op;
    for (int i = 0; i < o.step.header().outputs; ++i) {
        Selected& result = static_cast<Selected*>(o.results)[i];
        Slot& slot = o.slots.slot(result.slot);
        Cursor& c = slot.cursor;
        if (result.token >= 0) {
            c.next_token = result.token;
            c.index = o.step.rows()[result.row].flags & kRowFromCursor ? c.index + 1 : o.step.rows()[result.row].index + 1;
            c.generated += 1;
            c.accepted = 0;
            bool stop = false;
            for (int k = 0; k < min(max(slot.sampling.stop_ids, 0), kMaxStopIds); ++k) stop |= slot.stop_id[k] == result.token;
            if (stop) c.stopped = kStopToken;
            else if (c.generated >= c.limit) c.stopped = kStopLimit;
        }
        result.stopped = c.stopped;
    }
}

__global__ void __launch_bounds__(kSelectThreads) output_score(const SelectCall p) {
    __shared__ SelectShared s;
    wait_for_predecessor();
    const Output& o = p.op;
    const int i = blockIdx.x, n = p.vocabulary;
    if (i >= o.step.header().outputs) return;
    const int r = o.step.outputs()[i];
    const bool present = live_row(o.step, o.slots, r).present;
    TokenLogprob& result = static_cast<TokenLogprob*>(o.results)[i];
    if (!present) {
        if (threadIdx.x == 0) result = {}, result.row = r, result.target = -1;
        return;
    }
    const float* raw = o.scratch.row(i);
    const double log_sum = row_log_sum_exp(raw, n, s);
    const int tops = row_tops(raw, n, o.top, log_sum, result.top, s);
    if (threadIdx.x) return;
    const int target = o.step.rows()[r].target;
    result.row = r;
    result.target = target;
    result.log_sum_exp = float(log_sum);
    result.logprob = target >= 0 && target < n ? row_logprob(raw[target], log_sum) : 0.0f;
    result.tops = tops;
    result.reserved = 0;
}

}  // namespace sparkinfer::cuda
