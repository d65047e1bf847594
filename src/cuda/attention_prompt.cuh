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
// Limits     none on length. Registers are shared out by setmaxnreg where there are 384 threads.
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
    using Scores = float[2][kScores][4];
    float y[2][kOut][4];
    float most[2][2], sum[2][2], factor[2][2];
    bool scaled;  // some factor is not 1
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
                v = __ldcg(from + ((int64_t(item.tile.row + r) * heads + item.head) * S::kPlanes + plane) *
                                      kChunks +
                           chunk);
            store_shared16(queries + plane * S::kQueryPlane + r * S::kRowBytes + ((chunk ^ (row & 7)) << 4),
                           v);
        }
        scaled = false;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = first_row + m * 16 + h * 8 + lane / 4;
                most[m][h] = -INFINITY, sum[m][h] = 0, factor[m][h] = 1;
                if (!S::kExact && r < item.tile.rows)
                    factor[m][h] =
                        __ldcg(p.query_factor + int64_t(item.tile.row + r) * heads + item.head);
                scaled |= factor[m][h] != 1;
#pragma unroll
                for (int n = 0; n < kOut; ++n) y[m][n][2 * h] = y[m][n][2 * h + 1] = 0;
            }
        scaled = __any_sync(kWholeWarp, scaled);
        sync_pair();
    }
    // s = Q · Kᵀ for kStep keys from `key` of the part on.
    __device__ __forceinline__ void scores(Scores& s, uint32_t queries, uint32_t part, int key) const {
        const uint32_t turn = lane & 7;
        const uint32_t q_at = queries + (first_row + (lane & 15)) * S::kRowBytes + (((lane >> 4) ^ turn) << 4);
        const uint32_t k_at = part + (key + (lane & 7) + (lane >> 4) * 8) * S::kRowBytes +
                              (((lane >> 3 & 1) ^ turn) << 4);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < kScores; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
#pragma unroll 4
        for (int k = 0; k < S::kWidth / 16; ++k) {
            const uint32_t twist = (k & 3) << 5, ahead = (k >> 2) << 7;
            uint32_t q[S::kPlanes][2][4];
#pragma unroll
            for (int a = 0; a < S::kPlanes; ++a)
#pragma unroll
                for (int m = 0; m < 2; ++m)
                    load_matrices(q[a][m], (q_at ^ twist) + ahead + a * S::kQueryPlane + m * 16 * S::kRowBytes);
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
    // Factors and exponents of queries, keys and values; then keys behind a row's own leave. first: the
    // step's first key in the sequence; k, v: of its first key.
    __device__ __forceinline__ void weigh(Scores& s, const float2* k, const float2* v, int first) const {
        if (!S::kExact && scaled) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int n = 0; n < kScores; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) s[m][n][i] *= factor[m][i / 2];
        }
        if constexpr (S::kFactors) {
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
    // Scores become probabilities relative to the new maximum, and all sums with them. rows: of this warp;
    // other: of the pair's other.
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
                float t = fmaxf(most[m][h], top[m][h]);
                if (S::kPair == 2) t = fmaxf(t, other[m * 16 + h * 8 + lane / 4]);
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
        for (int n = 0; n < kScores; ++n) {
            float4 back = {0, 1, 0, 1};
            if constexpr (S::kFactors) back = *reinterpret_cast<const float4*>(v + n * 8 + lane % 4 * 2);
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float e = exp2_fast(s[m][n][i] - most[m][i / 2]);
                    s[m][n][i] = e;
                    sum[m][i / 2] = fmaf(e, i % 2 ? back.w : back.y, sum[m][i / 2]);
                }
        }
    }
    // y += p · V for the step's keys (a pair: all keys of the part).
    __device__ __forceinline__ void values(const Scores& s, uint32_t share, uint32_t part, int key) {
        const uint32_t turn = lane & 7;
        const uint32_t v_at = part + half * S::kColumns * 2 + (key + (lane & 15)) * S::kRowBytes +
                              (((lane >> 4) ^ turn) << 4);
        if constexpr (S::kPair == 2) {
            const uint32_t mine = share + lane / 4 * S::kShareRow + (half * S::kStep + lane % 4 * 2) * 2;
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int n = 0; n < kScores; ++n)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const __half2 w = __floats2half2_rn(s[m][n][2 * h], s[m][n][2 * h + 1]);
                        asm volatile("st.shared.b32 [%0],%1;" ::"r"(mine + (m * 16 + h * 8) * S::kShareRow +
                                                                    n * 16),
                                     "r"(reinterpret_cast<const uint32_t&>(w))
                                     : "memory");
                    }
            sync_pair();
        }
        constexpr int kTerms = S::kPair == 2 ? S::kKeys / 16 : S::kStep / 16;
#pragma unroll
        for (int k = 0; k < kTerms; ++k) {
            uint32_t p[S::kPlanes][2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m)
                if constexpr (S::kPair == 2)
                    load_matrices(p[0][m],
                                  share + (m * 16 + (lane & 15)) * S::kShareRow + k * 32 + (lane >> 4) * 16);
                else
                    probabilities(p, s, m, k);
            const uint32_t row = v_at + k * 16 * S::kRowBytes;
#pragma unroll
            for (int n = 0; n < kOut / 2; ++n)
#pragma unroll
                for (int b = 0; b < S::kPlanes; ++b) {
                    uint32_t w[4];
                    load_matrices_transposed(
                        w, (row ^ ((n & 3) << 5)) + ((n >> 2) << 7) + b * S::kPlaneBytes);
#pragma unroll
                    for (int a = 0; a + b < S::kPlanes; ++a)
#pragma unroll
                        for (int m = 0; m < 2; ++m) {
                            prompt_mma<S>(y[m][2 * n], p[a][m], w[0], w[1]);
                            prompt_mma<S>(y[m][2 * n + 1], p[a][m], w[2], w[3]);
                        }
                }
        }
    }
    // The 16 keys k of the step as the left operand of 16 rows.
    static __device__ __forceinline__ void probabilities(uint32_t (&p)[S::kPlanes][2][4], const Scores& s,
                                                         int m, int k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float a = s[m][2 * k + i / 2][i % 2 * 2], b = s[m][2 * k + i / 2][i % 2 * 2 + 1];
            if constexpr (S::kExact) {
                split_bf16(a, b, p[0][m][i], p[S::kPlanes - 1][m][i]);
            } else {
                const __half2 w = __floats2half2_rn(a, b);
                p[0][m][i] = reinterpret_cast<const uint32_t&>(w);
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
#pragma unroll
                for (int n = 0; n < kOut; ++n) {
                    float2 v = {y[m][n][2 * h] * by, y[m][n][2 * h + 1] * by};
                    if (o.gated) {
                        const float2 g = *reinterpret_cast<const float2*>(gate + n * 8);
                        v.x *= fast_sigmoid(g.x), v.y *= fast_sigmoid(g.y);
                    }
                    *reinterpret_cast<float2*>(to + n * 8) = v;
                }
            }
    }
};

// An attending warp. Parts wholly behind its rows are let go unread.
template <class S>
__device__ __forceinline__ void prompt_attend(const PromptCall& p, const PromptShared<S>& shared, int warp,
                                              int lane) {
    PromptRows<S> rows;
    rows.lane = lane, rows.pair = warp / S::kPair, rows.half = warp % S::kPair;
    rows.first_row = rows.pair * 32;
    float* mine = shared.rows(warp);
    const float* other = shared.rows(warp ^ 1);
    const uint32_t share = shared.share(rows.pair);
    PromptRing<S> ring;
    PromptItems item(p);
    const auto give_back = [&](int stage) {
        __syncwarp();
        if (lane == 0) barrier_arrive(shared.empty(stage));
    };
    while (item.next(p)) {
        rows.begin(p, item, shared.queries());
        const int parts = item.parts<S>(), last = rows.first_row < item.tile.rows ? rows.index + 31 : -1;
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
            const PromptRing<S> k = ring;
            ring.advance();
            const PromptRing<S> v = ring;
            ring.advance();
            barrier_wait(shared.full(k.stage), k.phase);
            const bool wanted = part * S::kKeys <= last;
#pragma unroll 1
            for (int step = 0; step < S::kSteps; ++step) {
                const int key = (S::kPair == 2 ? rows.half : step) * S::kStep;
                typename PromptRows<S>::Scores s;
                if (wanted) rows.scores(s, shared.queries(), shared.part(k.stage), key);
                if (S::kSteps == 1 && !S::kFactors) give_back(k.stage);
                if (step == 0) barrier_wait(shared.full(v.stage), v.phase);
                if (!wanted) break;
                const float2 *k_factors = shared.factors(k.stage) + key,
                             *v_factors = shared.factors(v.stage) + key;
                rows.weigh(s, k_factors, v_factors, part * S::kKeys + key);
                if (S::kSteps == 1 && S::kFactors) give_back(k.stage);
                rows.soften(s, v_factors, mine, other);
                rows.values(s, share, shared.part(v.stage), S::kPair == 2 ? 0 : key);
            }
            if (S::kSteps > 1 || (S::kFactors && !wanted)) give_back(k.stage);
            give_back(v.stage);
        }
        rows.finish(p.op, item, mine, other);
    }
}

// Kernel     attention_prompt: 256 registers
template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) attention_prompt(const PromptCall p) {
    extern __shared__ __align__(1024) std::byte prompt_memory[];
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
        if constexpr (S::kThreads == 384) asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
        PromptProducer<S> producer;
        producer.warp = warp - S::kWarps, producer.lane = lane;
        producer.run(p, shared);
    } else {
        if constexpr (S::kThreads == 384) asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
        prompt_attend<S>(p, shared, warp, lane);
    }
}

}  // namespace sparkinfer::cuda
