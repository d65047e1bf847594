// output_stages.cuh — one token, or one log-probability, out of the chunks of each row: the second launch.
// Computes   ops.h: Output, kinds select and logprobs; the order of cpu/sampler.h
// Shapes     chunks [R ≤ 64, ≤ 1024] Chunk   logits [R, V] F32   results [R] Selected or TokenLogprob
// Mapping    a block per row, a thread per chunk. The k ≤ 64 best logits of a row lie in the k chunks with
// the
//            greatest maxima, so that only these are read again: for top-k, for alternatives, and for top-p
//            and min-p without top-k where 64 tokens are enough. What needs more goes down output_select.cuh.
// Memory     greedy: the chunks, 32 bytes each. top-k: k more KB. From L2.
// Order      sums over chunks in double in a fixed tree, over listed tokens in descending order. Rows of one
//            slot are chosen by one block, in order, all by the cursor as the step found it.
// Limits     1024 threads, ≤ 64 registers, 25 KB. sm_80+. Trigger: top.
// Numbers    not measured yet
// Tested     tests/ops/output.cpp, output_select.cpp against float64 and cpu/.
#pragma once
#include "cuda/output_chunks.cuh"

namespace sparkinfer::cuda {

struct StageShared {
    SelectShared select;
    unsigned long long gathered[kGathered];  // ordered logit, then ~id: greater is better
    unsigned long long listed[kListed];      // the best of those, in order
    double mass[kListed], weight[kListed];   // running sums at temperature 1 and at the row's
    int32_t chunk[kMaxChunks];
    uint32_t key[2][32];
    int32_t chunks, count;
    int32_t slot[kMaxOutputs];  // of each output row
};

__device__ __forceinline__ uint32_t block_max_key(uint32_t v, uint32_t (&part)[32]) {
    v = __reduce_max_sync(kWholeWarp, v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return __reduce_max_sync(kWholeWarp, part[threadIdx.x % 32]);
}

// A key that at least k chunks reach, and not many more. REQUIRES: more than k have one at all, `some` of
// them.
__device__ inline uint32_t chunk_threshold(uint32_t mine, int k, int some, StageShared& s) {
    uint32_t high = block_max_key(mine, s.key[0]) + 1;           // nobody reaches it
    uint32_t low = ~block_max_key(mine ? ~mine : 0u, s.key[1]);  // all `some` do
    int reach = some;
    while (high - low > 1 && reach > k + k / 4) {
        const uint32_t middle = low + (high - low) / 2;
        const int count = __syncthreads_count(mine >= middle);
        if (count >= k)
            low = middle, reach = count;
        else
            high = middle;
    }
    return low;
}

// Puts the k best logits of x into s.listed, in order, and returns how many there are; -1: too many are near
// the k-th to tell. `mine`: the greatest key of this thread's chunk; `least`: smaller keys do not count.
__device__ inline int list_best(const StageCall& p, const float* x, uint32_t mine, uint32_t least, int k,
                                StageShared& s) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int some = __syncthreads_count(mine >= least);
    if (some == 0) return 0;
    if (mine < least) mine = 0;
    const uint32_t threshold = some > k ? chunk_threshold(mine, k, some, s) : least;
    if (threadIdx.x == 0) s.chunks = 0, s.count = 0;
    __syncthreads();
    if (mine >= threshold) s.chunk[atomicAdd(&s.chunks, 1)] = int32_t(threadIdx.x);
    __syncthreads();
    const int parts = s.chunks * p.tiles * 2;
#pragma unroll 4
    for (int a = warp; a < parts; a += kSelectThreads / 32) {
        const int chunk = s.chunk[a / 2 / p.tiles], tile = chunk / kChunkWarps * p.tiles + a / 2 % p.tiles;
        const int token = lane_token(tile, a % 2, chunk % kChunkWarps, lane);
        const float4 four = load_logits(x, token, p.vocabulary);
        const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t key = raw_key(v[j]);
            if (key < threshold) continue;
            const int at = atomicAdd(&s.count, 1);
            if (at < kGathered) s.gathered[at] = (unsigned long long)key << 32 | uint32_t(~(token + j));
        }
    }
    __syncthreads();
    const int count = s.count;
    if (count > kGathered) return -1;
    for (int i = threadIdx.x; i < count; i += kSelectThreads) {
        const unsigned long long candidate = s.gathered[i];
        int rank = 0;
        for (int j = 0; j < count; ++j) rank += s.gathered[j] > candidate;
        if (rank < k) s.listed[rank] = candidate;
    }
    __syncthreads();
    return min(count, k);
}
__device__ __forceinline__ float listed_logit(unsigned long long c) { return unordered(uint32_t(c >> 32)); }
__device__ __forceinline__ int32_t listed_token(unsigned long long c) { return int32_t(~uint32_t(c)); }

// The place of the first of n running sums for which `reaches` holds; n: none.
template <class Reaches>
__device__ __forceinline__ int first_of(int n, Reaches reaches) {
    const int lane = threadIdx.x % 32;
    const uint32_t low = __ballot_sync(kWholeWarp, lane < n && reaches(lane));
    const uint32_t high = __ballot_sync(kWholeWarp, lane + 32 < n && reaches(lane + 32));
    return low ? __ffs(int(low)) - 1 : high ? 31 + __ffs(int(high)) : n;
}

// One warp draws among the n listed. whole: no other token has passed the filters so far; else `mass` is that
// of all tokens at temperature 1. Returns -1 when tokens that are not listed stay in the draw.
__device__ inline int32_t draw_listed(int n, bool whole, double mass, const Sampling& sampling, int index,
                                      StageShared& s) {
    const int lane = threadIdx.x % 32;
    const double greatest = double(listed_logit(s.listed[0]));
    for (int i = lane; i < n; i += 32) {
        const double below = double(listed_logit(s.listed[i])) - greatest;
        s.mass[i] = exp(below);
        s.weight[i] = exp(below / double(sampling.temperature));
    }
    __syncwarp();
    if (lane < 2) {
        double* sums = lane ? s.weight : s.mass;
        double sum = 0;
        for (int i = 0; i < n; ++i) sums[i] = sum += sums[i];
    }
    __syncwarp();
    if (sampling.top_p < 1.0f) {
        const double target = double(sampling.top_p) * (whole ? s.mass[n - 1] : mass);
        const int first = first_of(n, [&](int i) { return s.mass[i] >= target; });
        if (first < n) n = first + 1, whole = true;
    }
    if (sampling.min_p > 0.0f) {
        const double least = greatest + log(double(sampling.min_p));
        const int first =
            max(first_of(n, [&](int i) { return double(listed_logit(s.listed[i])) < least; }), 1);
        if (first < n) n = first, whole = true;
    }
    if (!whole) return -1;
    const double target = double(philox_uniform(sampling.seed, uint32_t(index))) * s.weight[n - 1];
    const int at = first_of(n - 1, [&](int i) { return s.weight[i] > target; });
    return listed_token(s.listed[at]);
}

__device__ inline int32_t lowest_allowed(const StageCall& p, const Sampling& sampling, StageShared& s) {
    if (sampling.mask < 0) return 0;
    const uint32_t* mask = p.op.slots.masks + int64_t(sampling.mask) * p.op.slots.mask_words;
    uint32_t lowest = 0xffffffffu;
    for (int w = int(threadIdx.x); w * 32 < p.vocabulary && lowest == 0xffffffffu; w += kSelectThreads)
        if (const uint32_t bits = __ldcg(mask + w)) lowest = uint32_t(w * 32 + __ffs(int(bits)) - 1);
    lowest = ~block_max_key(~lowest, s.key[0]);
    return lowest < uint32_t(p.vocabulary) ? int32_t(lowest) : 0;
}

// The chunks of one row, merged.
struct Merged {
    Chunk mine;     // of this thread
    uint32_t best;  // greatest key after adjustment, 0: no token is left
    int32_t id;
    double log_sum;  // of the raw logits; known to warp 0
};

__device__ inline double block_double(double v, StageShared& s) { return block_sum(v, s.select.wide); }

__device__ inline Merged merge(const StageCall& p, int i, StageShared& s) {
    Merged m{};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (int(threadIdx.x) < p.chunk_count()) {
        const Chunk* from = p.chunks + int64_t(i) * p.chunk_count() + threadIdx.x;
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from));
        m.mine.raw = v.x, m.mine.sum = __uint_as_float(v.y), m.mine.best = v.z, m.mine.id = int32_t(v.w);
        m.mine.mass = __ldcg(&from->mass);
    }
    const uint32_t raw_warp = __reduce_max_sync(kWholeWarp, m.mine.raw),
                   best_warp = __reduce_max_sync(kWholeWarp, m.mine.best);
    __syncthreads();
    if (lane == 0) s.key[0][warp] = raw_warp, s.key[1][warp] = best_warp;
    __syncthreads();
    const uint32_t raw = __reduce_max_sync(kWholeWarp, s.key[0][lane]);
    m.best = __reduce_max_sync(kWholeWarp, s.key[1][lane]);
    const float most = unordered(raw);
    const bool counts = m.mine.raw != 0 && raw != 0 && !isinf(most);
    const double sum =
        warp_sum(counts ? double(m.mine.sum) * double(expf(unordered(m.mine.raw) - most)) : 0.0);
    const uint32_t id =
        __reduce_min_sync(kWholeWarp, m.mine.best == m.best ? uint32_t(m.mine.id) : 0xffffffffu);
    __syncthreads();
    if (lane == 0) s.select.wide[warp] = sum, s.key[0][warp] = id;
    __syncthreads();
    m.id = int32_t(__reduce_min_sync(kWholeWarp, s.key[0][lane]));
    const double all = warp_sum(s.select.wide[lane]);
    if (warp == 0) m.log_sum = raw == 0 ? -INFINITY : isinf(most) ? double(most) : double(most) + log(all);
    return m;
}

// Alternatives of the raw logits, best first; returns how many.
__device__ inline int put_tops(const StageCall& p, const float* raw, const Merged& m, int tops, Bias* to,
                               StageShared& s) {
    tops = min(max(tops, 0), kMaxTopLogprobs);
    if (tops == 0) return 0;
    const int found = list_best(p, raw, m.mine.raw, 1, tops, s);
    if (found < 0) return row_tops(raw, p.vocabulary, tops, m.log_sum, to, s.select);
    if (int(threadIdx.x) < found) {
        const unsigned long long c = s.listed[threadIdx.x];
        to[threadIdx.x] = {listed_token(c), row_logprob(listed_logit(c), m.log_sum)};
    }
    return found;
}

__device__ inline int32_t sample_token(const StageCall& p, const float* x, const Merged& m,
                                       const Sampling& sampling, int index, StageShared& s) {
    const float most = unordered(m.best);
    if (sampling.top_k <= kListed) {
        const int k = sampling.top_k > 0 ? sampling.top_k : kListed;
        const int n = list_best(p, x, m.mine.best, kLeastFinite, k, s);
        const bool whole = n >= 0 && (sampling.top_k > 0 || n < kListed),
                   cuts = sampling.top_p < 1.0f || sampling.min_p > 0.0f;
        if (whole || (n > 0 && cuts)) {
            double mass = 0;
            if (!whole)
                mass = block_double(
                    m.mine.best ? double(m.mine.mass) * double(expf(unordered(m.mine.best) - most)) : 0.0, s);
            if (threadIdx.x < 32) {
                const int32_t token = draw_listed(n, whole, mass, sampling, index, s);
                if (threadIdx.x == 0) s.select.token = token;
            }
            __syncthreads();
            const int32_t token = s.select.token;
            __syncthreads();
            if (token >= 0) return token;
        }
    }
    return draw(x, p.vocabulary, sampling, {most, m.id}, index, s.select);
}

// Moves the cursor behind a row that chose `token`; one thread.
__device__ inline void advance(Slot& slot, int index, int32_t token) {
    Cursor& c = slot.cursor;
    c.next_token = token;
    c.index = index + 1;
    c.generated += 1;
    c.accepted = 0;
    bool stop = false;
    for (int k = 0; k < min(max(slot.sampling.stop_ids, 0), kMaxStopIds); ++k)
        stop |= slot.stop_id[k] == token;
    if (stop)
        c.stopped = kStopToken;
    else if (c.generated >= c.limit)
        c.stopped = kStopLimit;
}

// Row i of the logits, with the cursor as the step found it.
__device__ inline void choose_row(const StageCall& p, int i, const Cursor& before, StageShared& s) {
    const Output& o = p.op;
    const int r = o.step.outputs()[p.first + i];
    const Row& row = o.step.rows()[r];
    const bool follows = row.flags & kRowFromCursor;
    Selected& result = static_cast<Selected*>(o.results)[p.first + i];
    Slot& slot = o.slots.slot(row.slot);
    if (follows && before.stopped != 0) {
        if (threadIdx.x == 0)
            result = {}, result.row = r, result.slot = row.slot, result.token = -1,
            result.stopped = slot.cursor.stopped;
        return;
    }
    const int index = follows ? before.index : row.index;
    const float* raw = o.scratch.row(i);
    const Sampling& sampling = slot.sampling;
    const Merged m = merge(p, i, s);
    int32_t token = m.id;
    if (m.best == 0) {
        token = lowest_allowed(p, sampling, s);
    } else if (sampling_draws(sampling) && !isinf(unordered(m.best))) {
        const float* x = sampling_adjusts(sampling) ? p.adjusted + i * p.adjusted_stride() : raw;
        token = sample_token(p, x, m, sampling, index + 1, s);
    }
    const int tops = put_tops(p, raw, m, sampling.top_logprobs, result.top, s);
    if (threadIdx.x) return;
    result.row = r;
    result.slot = row.slot;
    result.token = token;
    result.logprob = row_logprob(__ldcg(raw + token), m.log_sum);
    result.tops = tops;
    advance(slot, index, token);
    result.stopped = slot.cursor.stopped;
}

// Kernel     output_choose: 64 registers, 25112 bytes
__global__ void __launch_bounds__(kSelectThreads, 1) output_choose(const __grid_constant__ StageCall p) {
    __shared__ StageShared s;
    let_successor_start();
    const Output& o = p.op;
    const int outputs = min(o.step.header().outputs - p.first, int(gridDim.x)), mine = blockIdx.x;
    if (int(threadIdx.x) < outputs)
        s.slot[threadIdx.x] = o.step.rows()[o.step.outputs()[p.first + int(threadIdx.x)]].slot;
    __syncthreads();
    const int slot = mine < outputs ? s.slot[mine] : -1;
    const bool earlier = int(threadIdx.x) < min(mine, outputs) && s.slot[threadIdx.x] == slot;
    const bool behind = __syncthreads_or(earlier);  // an earlier block chooses for this slot
    wait_for_predecessor();
    if (slot < 0 || behind) return;
    const Cursor before = o.slots.slot(slot).cursor;
    __syncthreads();  // everybody has read it
    for (int i = mine; i < outputs; ++i)
        if (s.slot[i] == slot) choose_row(p, i, before, s);
}

// Kernel     output_score: 40 registers, 25112 bytes
__global__ void __launch_bounds__(kSelectThreads, 1) output_score(const __grid_constant__ StageCall p) {
    __shared__ StageShared s;
    let_successor_start();
    wait_for_predecessor();
    const Output& o = p.op;
    const int i = blockIdx.x;
    if (p.first + i >= o.step.header().outputs) return;
    const int r = o.step.outputs()[p.first + i];
    TokenLogprob& result = static_cast<TokenLogprob*>(o.results)[p.first + i];
    if (!live_row(o.step, o.slots, r).present) {
        if (threadIdx.x == 0) result = {}, result.row = r, result.target = -1;
        return;
    }
    const float* raw = o.scratch.row(i);
    const Merged m = merge(p, i, s);
    const int tops = put_tops(p, raw, m, o.top, result.top, s);
    if (threadIdx.x) return;
    const int target = o.step.rows()[r].target;
    result.row = r;
    result.target = target;
    result.log_sum_exp = float(m.log_sum);
    result.logprob =
        target >= 0 && target < p.vocabulary ? row_logprob(__ldcg(raw + target), m.log_sum) : 0.0f;
    result.tops = tops;
    result.reserved = 0;
}

}  // namespace sparkinfer::cuda
