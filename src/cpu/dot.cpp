// Compiled with -ffp-contract=fast: every product here feeds exactly one sum, so where the machine fuses them
// it fuses all of them.
#include "cpu/dot.h"

#include <algorithm>

#include "cpu/lanes.h"

namespace sparkinfer {
namespace {

constexpr int64_t kBlock = 1024;

struct Args {
    const float* w;
    int64_t w_stride;
    int rows;
    const float* const* x;
    int columns;
    int64_t k;
    float* out;
    int64_t out_stride;
};

// R rows of w from `r` on times C rows of x from `c` on.
template <class Lanes, int R, int C>
INLINE void tile(const Args& a, int r, int c) {
    const float* w = a.w + r * a.w_stride;
    const float* x[C];
    for (int j = 0; j < C; ++j) x[j] = a.x[c + j];
    double sum[R][C] = {};
    for (int64_t begin = 0; begin < a.k; begin += kBlock) {
        const int64_t end = std::min(begin + kBlock, a.k);
        Lanes acc[R][C];
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j) acc[i][j].zero();
        int64_t at = begin;
        for (; at + kLanes <= end; at += kLanes) {
            Lanes wv[R];
#pragma GCC unroll 16
            for (int i = 0; i < R; ++i) wv[i].load(w + i * a.w_stride + at);
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j) {
                Lanes xv;
                xv.load(x[j] + at);
#pragma GCC unroll 16
                for (int i = 0; i < R; ++i) acc[i][j].add_product(wv[i], xv);
            }
        }
        if (at < end) {  // fewer than 16 columns left: the others are zero
            float wt[R][kLanes] = {}, xt[kLanes];
            for (int i = 0; i < R; ++i) memcpy(wt[i], w + i * a.w_stride + at, size_t(end - at) * 4);
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j) {
                memset(xt, 0, sizeof xt);
                memcpy(xt, x[j] + at, size_t(end - at) * 4);
                Lanes xv, wv;
                xv.load(xt);
#pragma GCC unroll 16
                for (int i = 0; i < R; ++i) {
                    wv.load(wt[i]);
                    acc[i][j].add_product(wv, xv);
                }
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j) sum[i][j] += double(sum_of(acc[i][j]));
    }
    for (int i = 0; i < R; ++i)
        for (int j = 0; j < C; ++j) a.out[(c + j) * a.out_stride + r + i] = float(sum[i][j]);
}

template <class Lanes, int R, int C>
INLINE void row_tiles(const Args& a, int c) {
    int r = 0;
    for (; r + R <= a.rows; r += R) tile<Lanes, R, C>(a, r, c);
    for (; r < a.rows; ++r) tile<Lanes, 1, C>(a, r, c);
}

// Tiles of R × C results fit the registers; a single row of x takes R1 rows of w at once to have enough sums
// in flight.
template <class Lanes, int R, int C, int R1>
INLINE void all_tiles(const Args& a) {
    int c = 0;
    for (; c + C <= a.columns; c += C) row_tiles<Lanes, R, C>(a, c);
    if (C > 3 && c + 3 <= a.columns) row_tiles<Lanes, R, 3>(a, c), c += 3;
    if (C > 2 && c + 2 <= a.columns) row_tiles<Lanes, R, 2>(a, c), c += 2;
    for (; c < a.columns; ++c) row_tiles<Lanes, R1, 1>(a, c);
}

struct StateArgs {
    float* s;
    int width;
    float scale;
    const float *k, *d, *q;
    float* out;
};

// N·16 columns of a state from `at` on.
template <class Lanes, int N, bool kUpdate>
INLINE void state_columns(const StateArgs& a, int at) {
    Lanes acc[N], d[N], scale;
    scale.fill(a.scale);
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) {
        acc[i].zero();
        if (kUpdate) d[i].load(a.d + at + i * kLanes);
    }
    for (int row = 0; row < a.width; ++row) {
        float* s = a.s + int64_t(row) * a.width + at;
        Lanes k, by;
        k.fill(a.k[row]);
        by.fill(kUpdate ? a.q[row] : a.k[row]);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
            Lanes v;
            v.load(s + i * kLanes);
            if (kUpdate)
                v.add_product(k, d[i]);
            else
                v.multiply(scale);
            v.store(s + i * kLanes);
            acc[i].add_product(v, by);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) acc[i].store(a.out + at + i * kLanes);
}

template <class Lanes, bool kUpdate>
INLINE void all_state_columns(const StateArgs& a) {
    int at = 0;
    for (; at + 4 * kLanes <= a.width; at += 4 * kLanes) state_columns<Lanes, 4, kUpdate>(a, at);
    for (; at < a.width; at += kLanes) state_columns<Lanes, 1, kUpdate>(a, at);
}

template <class Lanes>
INLINE void state_sweep(const StateArgs& a) {
    if (a.d)
        all_state_columns<Lanes, true>(a);
    else
        all_state_columns<Lanes, false>(a);
}

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v4"))) void state_v4(const StateArgs& a) { state_sweep<Lanes512>(a); }
__attribute__((target("arch=x86-64-v3"))) void state_v3(const StateArgs& a) { state_sweep<Lanes256>(a); }
__attribute__((target("arch=x86-64-v4"))) void dot_v4(const Args& a) { all_tiles<Lanes512, 4, 6, 8>(a); }
__attribute__((target("arch=x86-64-v3"))) void dot_v3(const Args& a) { all_tiles<Lanes256, 2, 3, 4>(a); }
#endif
void state_any(const StateArgs& a) { state_sweep<Lanes128>(a); }
void dot_any(const Args& a) { all_tiles<Lanes128, 1, 2, 2>(a); }

struct Functions {
    void (*dot)(const Args&);
    void (*state)(const StateArgs&);
};
Functions choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return {dot_v4, state_v4};
    if (__builtin_cpu_supports("x86-64-v3")) return {dot_v3, state_v3};
#endif
    return {dot_any, state_any};
}
const Functions& functions() {
    static const Functions chosen = choose();
    return chosen;
}

}  // namespace

void dot_rows(const float* w, int64_t w_stride, int rows, const float* const* x, int columns, int64_t k,
              float* out, int64_t out_stride) {
    functions().dot(Args{w, w_stride, rows, x, columns, k, out, out_stride});
}

void decay_and_read(float* s, int width, float scale, const float* k, float* out) {
    functions().state(StateArgs{s, width, scale, k, nullptr, nullptr, out});
}

void update_and_read(float* s, int width, const float* k, const float* d, const float* q, float* out) {
    functions().state(StateArgs{s, width, 0, k, d, q, out});
}

}  // namespace sparkinfer
