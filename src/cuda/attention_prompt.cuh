// attention_prompt.cuh — causal attention of many rows over the paged KV on 16-bit tensor cores.
// Computes   of ops.h: Attention what comes after attention_prompt_plan.cuh
// Shapes     q [T, H, d∈{64,128,256}]   pages [n, 2, G, 64, d] BF16|FP8, and F32 for d ≤ 128   y [T, H, d]
// Mapping    as many blocks as multiprocessors; each takes tiles of rows of one segment with one query head
//            (PromptItems), four warps filling a ring with keys and values (attention_prompt_source.cuh), the
//            others 32 rows each, or 32 rows a pair (PromptShape). S = Q · Kᵀ, softmax online in base 2,
//            y += P · V on mma.m16n8k16, queries in shared memory, P in registers, or, in a pair, shared.
//            BF16 pages: 2^e of a value's token is added to the score, so that P carries it, and taken back
//            in the sum. F32 pages: three products of BF16 in place of one of FP16.
// Memory     reads K and V once per tile and query head, out of L2. Floor: 4·H·d·keys of every row / FLOP/s.
// Early      nothing before the wait; no trigger: a block fills its multiprocessor.
// Limits     none on length. 384 threads, of which setmaxnreg gives the attending ones more registers: sm_90a
//            only; 256 threads and 99 KB: everywhere.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/attention_prompt.cpp against float64: 3e-4 (BF16), 2e-5 (F32); causal bit for bit.
#pragma once
#include "cuda/attention_prompt_source.cuh"
#include "cuda/lib/math.cuh"

namespace sparkinfer::cuda {

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}
template <class S>
__device__ __forceinline__ void prompt_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (S::kExact)
        mma_bf16(d, a, b0, b1);
    else
        mma_f16(d, a, b0, b1);
}

// One attending warp's 32 rows: lane 4g + c holds rows 16m + 8h + g, and of eights of keys or columns, 2c and
// 2c + 1.
template <class S>
struct PromptRows {
    static constexpr int kScores = S::kStep / 8, kOut = S::kColumns / 8;
    static constexpr int kTerms = S::kPair == 2 ? 1 : S::kStep / 16;
    static constexpr float kRaise = 8;
    static constexpr int kUnroll = S::kExact ? 1 : S::kWidth / 16;
    using Scores = float[2][kScores][4];
    float y[2][kOut][4];
    float most[2][2], sum[2][2];
    uint32_t p[S::kPlanes][2][kTerms][4];  // probabilities as left operands, where they do not lie in `share`
    const float* factors;                  // of the tile's rows, H apart; null where all are 1
    int lane, pair, half, first_row, index;  // of the tile; index: of the warp's first row

    __device__ __forceinline__ void sync_pair() const {
        if constexpr (S::kPair == 2)
            named_barrier(1 + pair, 64);
        else
            __syncwarp();
    }
    // The queries of the warp's or the pair's rows into shared memory; everything else to the beginning.
    __device__ __forceinline__ void begin(const PromptCall& p, const PromptItems& item, uint32_t queries) {
        constexpr int kChunks = S::kWidth / 8, kLoads = S::kPlanes * 32 * kChunks / 32 / S::kPair;
        const int heads = p.op.heads;
        const auto* from = reinterpret_cast<const uint4*>(p.queries);
        index = item.tile.index + first_row;
#pragma unroll 8
        for (int i = 0; i < kLoads; ++i) {
            const int at = (i * S::kPair + half) * 32 + lane, chunk = at % kChunks, row = at / kChunks % 32,
                      plane = at / kChunks / 32, r = first_row + row;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (r < item.tile.rows)
                v = __ldcg(from +
                           ((int64_t(item.tile.row + r) * heads + item.head) * S::kPlanes + plane) * kChunks +
                           chunk);
            store_shared16(queries + plane * S::kQueryPlane + r * S::kRowBytes + ((chunk ^ (row & 7)) << 4),
                           v);
        }
        factors = p.query_factor + int64_t(item.tile.row) * heads + item.head;
        bool scaled = false;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = first_row + m * 16 + h * 8 + lane / 4;
                most[m][h] = -INFINITY, sum[m][h] = 0;
                if (!S::kExact && r < item.tile.rows) scaled |= __ldcg(factors + r * heads) != 1;
#pragma unroll
                for (int n = 0; n < kOut; ++n) y[m][n][2 * h] = y[m][n][2 * h + 1] = 0;
            }
        if (!__any_sync(kWholeWarp, scaled)) factors = nullptr;
        sync_pair();
    }
    // The gates to L2.
    __device__ __forceinline__ void prefetch(const Attention& o, const PromptItems& item) const {
        constexpr int kLines = S::kColumns / 32;  // of 128 bytes
        const int r = first_row + lane;
        if (!o.gated || r >= item.tile.rows) return;
        const float* gate =
            o.q.row(item.tile.row + r) + (int64_t(item.head) * 2 + 1) * S::kWidth + half * S::kColumns;
#pragma unroll
        for (int i = 0; i < kLines; ++i) asm volatile("prefetch.global.L2 [%0];" ::"l"(gate + i * 32));
    }
    // s = Q · Kᵀ for kStep keys from `key` of the part on.
    __device__ __forceinline__ void scores(Scores& s, uint32_t queries, uint32_t part, int key) const {
        const uint32_t turn = lane & 7;
        const uint32_t q_at =
            queries + (first_row + (lane & 15)) * S::kRowBytes + (((lane >> 4) ^ turn) << 4);
        const uint32_t k_at =
            part + (key + (lane & 7) + (lane >> 4) * 8) * S::kRowBytes + (((lane >> 3 & 1) ^ turn) << 4);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < kScores; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
#pragma unroll kUnroll
        for (int k = 0; k < S::kWidth / 16; ++k) {
            const uint32_t twist = (k & 3) << 5, ahead = (k >> 2) << 7;
            uint32_t q[S::kPlanes][2][4];
#pragma unroll
            for (int a = 0; a < S::kPlanes; ++a)
#pragma unroll
                for (int m = 0; m < 2; ++m)
                    load_matrices(q[a][m],
                                  (q_at ^ twist) + ahead + a * S::kQueryPlane + m * 16 * S::kRowBytes);
#pragma unroll
            for (int n = 0; n < kScores / 2; ++n)
#pragma unroll
                for (int b = 0; b < S::kPlanes; ++b) {
                    uint32_t w[4];
                    load_matrices(w, (k_at ^ twist) + ahead + b * S::kPlaneBytes + n * 16 * S::kRowBytes);
#pragma unroll
                    for (int a = 0; a + b < S::kPlanes; ++a)
#pragma unroll
                        for (int m = 0; m < 2; ++m) {
                            prompt_mma<S>(s[m][2 * n], q[a][m], w[0], w[1]);
                            prompt_mma<S>(s[m][2 * n + 1], q[a][m], w[2], w[3]);
                        }
                }
        }
    }
    // Factors and exponents of queries, keys and values, where some are not 1; then keys behind a row's own
    // leave. first: the step's first key in the sequence; k, v: of its first key, null where all are 1.
    __device__ __forceinline__ void weigh(Scores& s, const float2* k, const float2* v, int first, int heads,
                                          int rows) const {
        if (!S::kExact && factors) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int r = first_row + m * 16 + h * 8 + lane / 4;
                    const float by = r < rows ? __ldcg(factors + r * heads) : 1;
#pragma unroll
                    for (int n = 0; n < kScores; ++n) s[m][n][2 * h] *= by, s[m][n][2 * h + 1] *= by;
                }
        }
        if (S::kFactors && k) {
#pragma unroll
            for (int n = 0; n < kScores; ++n) {
                const float4 by = *reinterpret_cast<const float4*>(k + n * 8 + lane % 4 * 2),
                             e = *reinterpret_cast<const float4*>(v + n * 8 + lane % 4 * 2);
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        s[m][n][i] = fmaf(s[m][n][i], i % 2 ? by.z : by.x, i % 2 ? e.z : e.x);
            }
        }
        if (first + S::kStep - 1 <= index) return;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < kScores; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (first + n * 8 + lane % 4 * 2 + i % 2 > index + m * 16 + i / 2 * 8 + lane / 4)
                        s[m][n][i] = -INFINITY;
    }
    // Scores become probabilities relative to `most`, and all sums with them. It follows the maximum in
    // leaps, as the sums are seldom to be changed: probabilities reach 2^kRaise. rows: of this warp; other:
    // of the pair's other.
    __device__ __forceinline__ void soften(Scores& s, const float2* v, float* rows, const float* other) {
        float top[2][2], keep[2][2];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float t = -INFINITY;
#pragma unroll
                for (int n = 0; n < kScores; ++n) t = fmaxf(t, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
                t = fmaxf(t, __shfl_xor_sync(kWholeWarp, t, 1));
                top[m][h] = fmaxf(t, __shfl_xor_sync(kWholeWarp, t, 2));
                if (S::kPair == 2 && lane % 4 == 0) rows[m * 16 + h * 8 + lane / 4] = top[m][h];
            }
        if constexpr (S::kPair == 2) sync_pair();
        bool changed = false;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float t = top[m][h];
                if (S::kPair == 2) t = fmaxf(t, other[m * 16 + h * 8 + lane / 4]);
                if (t <= most[m][h] + kRaise) t = most[m][h];
                keep[m][h] = exp2_fast(most[m][h] - t);
                changed |= most[m][h] != t;
                most[m][h] = t;
                sum[m][h] *= keep[m][h];
            }
        if (__any_sync(kWholeWarp, changed)) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int n = 0; n < kOut; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) y[m][n][i] *= keep[m][i / 2];
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < kScores; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = exp2_fast(s[m][n][i] - most[m][i / 2]);
        if (S::kFactors && v) {
#pragma unroll
            for (int n = 0; n < kScores; ++n) {
                const float4 back = *reinterpret_cast<const float4*>(v + n * 8 + lane % 4 * 2);
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        sum[m][i / 2] = fmaf(s[m][n][i], i % 2 ? back.w : back.y, sum[m][i / 2]);
            }
        } else {
#pragma unroll
            for (int n = 0; n < kScores; ++n)
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[m][i / 2] += s[m][n][i];
        }
    }
    // The step's probabilities as left operands: in registers, or, of a pair, in `share`.
    __device__ __forceinline__ void lay(const Scores& s, uint32_t share) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < kScores; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float a = s[m][n][2 * h], b = s[m][n][2 * h + 1];
                    uint32_t(&to)[4] = p[0][m][S::kPair == 2 ? 0 : n / 2];
                    if constexpr (S::kExact) {
                        split_bf16(a, b, to[n % 2 * 2 + h], p[S::kPlanes - 1][m][n / 2][n % 2 * 2 + h]);
                        continue;
                    }
                    const __half2 two = __floats2half2_rn(a, b);
                    const uint32_t w = reinterpret_cast<const uint32_t&>(two);
                    if constexpr (S::kPair == 2)
                        asm volatile("st.shared.b32 [%0],%1;" ::"r"(
                                         share + (m * 16 + h * 8 + lane / 4) * S::kShareRow +
                                         (half * S::kStep + n * 8 + lane % 4 * 2) * 2),
                                     "r"(w)
                                     : "memory");
                    else
                        to[n % 2 * 2 + h] = w;
                }
        if constexpr (S::kPair == 2) sync_pair();
    }
    // y += p · V for the keys of a step, or, in a pair, of a part.
    __device__ __forceinline__ void values(uint32_t share, uint32_t part, int key) {
        const uint32_t turn = lane & 7;
        const uint32_t v_at =
            part + half * S::kColumns * 2 + (key + (lane & 15)) * S::kRowBytes + (((lane >> 4) ^ turn) << 4);
        constexpr int kKeys = S::kPair == 2 ? S::kKeys : S::kStep;
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k) {
            if constexpr (S::kPair == 2)
#pragma unroll
                for (int m = 0; m < 2; ++m)
                    load_matrices(p[0][m][0],
                                  share + (m * 16 + (lane & 15)) * S::kShareRow + k * 32 + (lane >> 4) * 16);
            const uint32_t row = v_at + k * 16 * S::kRowBytes;
#pragma unroll
            for (int n = 0; n < kOut / 2; ++n)
#pragma unroll
                for (int b = 0; b < S::kPlanes; ++b) {
                    uint32_t w[4];
                    load_matrices_transposed(w,
                                             (row ^ ((n & 3) << 5)) + ((n >> 2) << 7) + b * S::kPlaneBytes);
#pragma unroll
                    for (int a = 0; a + b < S::kPlanes; ++a)
#pragma unroll
                        for (int m = 0; m < 2; ++m) {
                            const uint32_t(&left)[4] = p[a][m][S::kPair == 2 ? 0 : k];
                            prompt_mma<S>(y[m][2 * n], left, w[0], w[1]);
                            prompt_mma<S>(y[m][2 * n + 1], left, w[2], w[3]);
                        }
                }
        }
    }
    // y divided, gated and stored.
    __device__ __forceinline__ void finish(const Attention& o, const PromptItems& item, float* rows,
                                           const float* other) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                sum[m][h] += __shfl_xor_sync(kWholeWarp, sum[m][h], 1);
                sum[m][h] += __shfl_xor_sync(kWholeWarp, sum[m][h], 2);
                if (S::kPair == 2 && lane % 4 == 0) rows[m * 16 + h * 8 + lane / 4] = sum[m][h];
            }
        if constexpr (S::kPair == 2) sync_pair();
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = first_row + m * 16 + h * 8 + lane / 4, row = item.tile.row + r;
                if (r >= item.tile.rows) continue;
                float total = sum[m][h];
                if (S::kPair == 2) {  // in the same order in both
                    const float theirs = other[m * 16 + h * 8 + lane / 4];
                    total = half ? theirs + total : total + theirs;
                }
                const float by = 1.0f / total;
                const int column = half * S::kColumns + lane % 4 * 2;
                float* to = o.y.row(row) + int64_t(item.head) * S::kWidth + column;
                const float* gate = o.q.row(row) + (int64_t(item.head) * 2 + 1) * S::kWidth + column;
                constexpr int kBatch = 4;  // gates asked for at once
#pragma unroll
                for (int first = 0; first < kOut; first += kBatch) {
                    float2 g[kBatch];
#pragma unroll
                    for (int n = 0; n < kBatch; ++n)
                        if (o.gated) g[n] = __ldcg(reinterpret_cast<const float2*>(gate + (first + n) * 8));
#pragma unroll
                    for (int n = 0; n < kBatch; ++n) {
                        float2 v = {y[m][first + n][2 * h] * by, y[m][first + n][2 * h + 1] * by};
                        if (o.gated) v.x *= fast_sigmoid(g[n].x), v.y *= fast_sigmoid(g[n].y);
                        *reinterpret_cast<float2*>(to + (first + n) * 8) = v;
                    }
                    asm volatile("" ::: "memory");
                }
            }
    }
};

// An attending warp. Steps wholly behind its rows are passed over.
template <class S>
__device__ __forceinline__ void prompt_attend(const PromptCall& p, const PromptShared<S>& shared, int warp,
                                              int lane) {
    PromptRows<S> rows;
    rows.lane = lane, rows.pair = warp / S::kPair, rows.half = warp % S::kPair;
    rows.first_row = rows.pair * 32;
    const uint32_t share = shared.share(rows.pair);
    PromptRing<S> ring;
    PromptItems item(p);
    const auto give_back = [&](int stage) {
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.empty(stage));
    };
    const auto scaled = [&](int stage) {
        if (!S::kFactors) return false;
        const int4 any = *reinterpret_cast<const int4*>(shared.scaled(stage));
        return (any.x | any.y | any.z | any.w) != 0;
    };
    while (item.next(p)) {
        rows.prefetch(p.op, item);
        rows.begin(p, item, shared.queries());
        const int steps = item.parts<S>() * S::kSteps;
        const int last = rows.first_row < item.tile.rows ? rows.index + 31 : -1;
        const int wanted = (last + S::kStep * S::kPair) / (S::kStep * S::kPair);
        int k = 0, v = 0;  // stages
#pragma unroll 1
        for (int t = 0; t < steps; ++t) {
            const int step = t % S::kSteps, key = (S::kPair == 2 ? rows.half : step) * S::kStep;
            typename PromptRows<S>::Scores s;
            if (step == 0) {
                k = ring.stage;
                barrier_wait(shared.full(k), ring.phase);
                ring.advance();
            }
            if (t < wanted) rows.scores(s, shared.queries(), shared.part(k), key);
            if (step == 0) {
                v = ring.stage;
                barrier_wait(shared.full(v), ring.phase);
                ring.advance();
            }
            if (t < wanted) {
                const bool factors = scaled(k) || scaled(v);
                const float2 *by = factors ? shared.factors(k) + key : nullptr,
                             *e = factors ? shared.factors(v) + key : nullptr;
                rows.weigh(s, by, e, t / S::kSteps * S::kKeys + key, p.op.heads, item.tile.rows);
                if (step == S::kSteps - 1) give_back(k);
                rows.soften(s, e, shared.rows(warp), shared.rows(warp ^ 1));
                rows.lay(s, share);
                rows.values(share, shared.part(v), S::kPair == 2 ? 0 : key);
            } else if (step == S::kSteps - 1) {
                give_back(k);
            }
            if (step == S::kSteps - 1) give_back(v);
        }
        rows.finish(p.op, item, shared.rows(warp), shared.rows(warp ^ 1));
    }
}

// Kernel     attention_prompt: 256 registers
template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) attention_prompt(const PromptCall p) {
#if __CUDA_ARCH__ >= 1000
    if constexpr (S::kThreads == 384) return;  // registers are not shared out there: it would spill
#endif
    extern __shared__ __align__(128) std::byte prompt_memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const PromptShared<S> shared{prompt_memory};
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::kStages; ++i) {
            barrier_init(shared.full(i), 4);
            barrier_init(shared.empty(i), S::kWarps);
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_predecessor();
    if (warp >= S::kWarps) {
        if constexpr (S::kThreads == 384)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kFeedRegisters));
        PromptProducer<S> producer;
        producer.warp = warp - S::kWarps, producer.lane = lane;
        producer.run(p, shared);
    } else {
        if constexpr (S::kThreads == 384)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kAttendRegisters));
        prompt_attend<S>(p, shared, warp, lane);
    }
}

}  // namespace sparkinfer::cuda
