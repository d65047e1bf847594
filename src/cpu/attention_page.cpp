// Compiled with -ffp-contract=fast, as dot.cpp is.
#include "cpu/attention_page.h"

#include "cpu/lanes.h"

namespace sparkinfer {
namespace {

// to[i · 16 + l] = from[l · d + i]   l < 16, i < d
INLINE void turn(const float* from, int d, float* to) {
    int i = 0;
    for (; i + 4 <= d; i += 4)
#pragma GCC unroll 4
        for (int l = 0; l < kLanes; l += 4) {
            V4 a, b, c, e;
            memcpy(&a, from + (l + 0) * d + i, sizeof a);
            memcpy(&b, from + (l + 1) * d + i, sizeof a);
            memcpy(&c, from + (l + 2) * d + i, sizeof a);
            memcpy(&e, from + (l + 3) * d + i, sizeof a);
            const V4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5),
                     ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7),
                     ce_low = __builtin_shufflevector(c, e, 0, 4, 1, 5),
                     ce_high = __builtin_shufflevector(c, e, 2, 6, 3, 7);
            const V4 row[4] = {__builtin_shufflevector(ab_low, ce_low, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_low, ce_low, 2, 3, 6, 7),
                               __builtin_shufflevector(ab_high, ce_high, 0, 1, 4, 5),
                               __builtin_shufflevector(ab_high, ce_high, 2, 3, 6, 7)};
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) memcpy(to + (i + j) * kLanes + l, &row[j], sizeof a);
        }
    for (; i < d; ++i)
        for (int l = 0; l < kLanes; ++l) to[i * kLanes + l] = from[l * d + i];
}

// Sixteen keys, turned, times C queries from `c` on.
template <class Lanes, int C>
INLINE void score_columns(const PageScores& a, int c, int j) {
    Lanes sum[C];
#pragma GCC unroll 16
    for (int x = 0; x < C; ++x) sum[x].zero();
    for (int i = 0; i < a.d; ++i) {
        Lanes k;
        k.load(a.turned + i * kLanes);
#pragma GCC unroll 16
        for (int x = 0; x < C; ++x) {
            Lanes q;
            q.fill(a.q[c + x][i]);
            sum[x].add_product(q, k);
        }
    }
#pragma GCC unroll 16
    for (int x = 0; x < C; ++x) sum[x].store(a.scores + (c + x) * a.stride + j);
}

template <class Lanes, int C>
INLINE void all_scores(const PageScores& a) {
    for (int j = 0; j < a.count; j += kLanes) {
        turn(a.k + int64_t(j) * a.d, a.d, a.turned);
        int c = 0;
        for (; c + C <= a.columns; c += C) score_columns<Lanes, C>(a, c, j);
        if (C > 3 && c + 3 <= a.columns) score_columns<Lanes, 3>(a, c, j), c += 3;
        for (; c < a.columns; ++c) score_columns<Lanes, 1>(a, c, j);
    }
}

// N·16 columns of the sums of H queries from `c` on, from column `at` on.
template <class Lanes, int N, int H>
INLINE void sum_columns(const PageSums& a, int c, int at) {
    Lanes sum[H][N];
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) sum[h][i].zero();
    for (int j = 0; j < a.rows; ++j) {
        Lanes v[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) v[i].load(a.v + j * a.v_stride + at + i * kLanes);
#pragma GCC unroll 16
        for (int h = 0; h < H; ++h) {
            Lanes p;
            p.fill(a.p[c + h][j]);
#pragma GCC unroll 16
            for (int i = 0; i < N; ++i) sum[h][i].add_product(p, v[i]);
        }
    }
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) sum[h][i].store(a.out[c + h] + at + i * kLanes);
}

template <class Lanes, int N>
INLINE void sums_from(const PageSums& a, int at) {
    int c = 0;
    for (; c + 4 <= a.columns; c += 4) sum_columns<Lanes, N, 4>(a, c, at);
    if (c + 3 <= a.columns) sum_columns<Lanes, N, 3>(a, c, at), c += 3;
    for (; c < a.columns; ++c) sum_columns<Lanes, N, 1>(a, c, at);
}

template <class Lanes, int N>
INLINE void all_sums(const PageSums& a) {
    int at = 0;
    for (; at + N * kLanes <= a.width; at += N * kLanes) sums_from<Lanes, N>(a, at);
    for (; at + kLanes <= a.width; at += kLanes) sums_from<Lanes, 1>(a, at);
    for (; at < a.width; ++at)
        for (int c = 0; c < a.columns; ++c) {
            float sum = 0;
            for (int j = 0; j < a.rows; ++j) sum += a.p[c][j] * a.v[j * a.v_stride + at];
            a.out[c][at] = sum;
        }
}

#if defined(__x86_64__)
#define FOR_V4 __attribute__((target("arch=x86-64-v4")))
#define FOR_V3 __attribute__((target("arch=x86-64-v3")))
FOR_V4 void scores_v4(const PageScores& a) { all_scores<Lanes512, 12>(a); }
FOR_V3 void scores_v3(const PageScores& a) { all_scores<Lanes256, 4>(a); }
FOR_V4 void sums_v4(const PageSums& a) { all_sums<Lanes512, 4>(a); }
FOR_V3 void sums_v3(const PageSums& a) { all_sums<Lanes256, 1>(a); }
#endif
void scores_any(const PageScores& a) { all_scores<Lanes128, 1>(a); }
void sums_any(const PageSums& a) { all_sums<Lanes128, 1>(a); }

struct Functions {
    void (*scores)(const PageScores&);
    void (*sums)(const PageSums&);
};
Functions choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return {scores_v4, sums_v4};
    if (__builtin_cpu_supports("x86-64-v3")) return {scores_v3, sums_v3};
#endif
    return {scores_any, sums_any};
}
const Functions& functions() {
    static const Functions chosen = choose();
    return chosen;
}

}  // namespace

void page_scores(const PageScores& a) { functions().scores(a); }
void page_sums(const PageSums& a) { functions().sums(a); }

}  // namespace sparkinfer
