// Compiled with -ffp-contract=fast: every product here feeds exactly one sum, so where the machine fuses them
// it fuses all of them.
#include "cpu/dot.h"

#include <algorithm>
#include <cstring>

// GCC takes a wide vector apart before it inlines into a function that has such registers, and then finds its
// parts uninitialised.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define INLINE __attribute__((always_inline)) inline

namespace sparkinfer {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kBlock = 1024;

// Sixteen lanes as one, two or four registers, with the same sums in the same order. Passed by reference
// only: vectors as values would have a calling convention that depends on the instruction set.
typedef float V4 __attribute__((vector_size(16)));
typedef float V8 __attribute__((vector_size(32)));
typedef float V16 __attribute__((vector_size(64)));

struct Lanes512 {
    V16 v;
    INLINE void zero() { v = V16{}; }
    INLINE void load(const float* p) { memcpy(&v, p, sizeof v); }
    INLINE void add_product(const Lanes512& a, const Lanes512& b) { v += a.v * b.v; }
    INLINE void fold(V8& to) const {
        to = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
             __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    }
};
struct Lanes256 {
    V8 v[2];
    INLINE void zero() { v[0] = v[1] = V8{}; }
    INLINE void load(const float* p) {
        memcpy(&v[0], p, sizeof v[0]);
        memcpy(&v[1], p + 8, sizeof v[1]);
    }
    INLINE void add_product(const Lanes256& a, const Lanes256& b) {
        v[0] += a.v[0] * b.v[0];
        v[1] += a.v[1] * b.v[1];
    }
    INLINE void fold(V8& to) const { to = v[0] + v[1]; }
};
struct Lanes128 {
    V4 v[4];
    INLINE void zero() { v[0] = v[1] = v[2] = v[3] = V4{}; }
    INLINE void load(const float* p) {
        for (int i = 0; i < 4; ++i) memcpy(&v[i], p + 4 * i, sizeof v[i]);
    }
    INLINE void add_product(const Lanes128& a, const Lanes128& b) {
        for (int i = 0; i < 4; ++i) v[i] += a.v[i] * b.v[i];
    }
    INLINE void fold(V8& to) const {
        const V4 low = v[0] + v[2], high = v[1] + v[3];
        to = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }
};

template <class Lanes>
INLINE float sum_of(const Lanes& lanes) {
    V8 eight;
    lanes.fold(eight);
    const V4 four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

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

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v4"))) void dot_v4(const Args& a) { all_tiles<Lanes512, 4, 6, 8>(a); }
__attribute__((target("arch=x86-64-v3"))) void dot_v3(const Args& a) { all_tiles<Lanes256, 2, 3, 4>(a); }
#endif
void dot_any(const Args& a) { all_tiles<Lanes128, 1, 2, 2>(a); }

using Dot = void (*)(const Args&);
Dot choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return dot_v4;
    if (__builtin_cpu_supports("x86-64-v3")) return dot_v3;
#endif
    return dot_any;
}

}  // namespace

void dot_rows(const float* w, int64_t w_stride, int rows, const float* const* x, int columns, int64_t k,
              float* out, int64_t out_stride) {
    static const Dot chosen = choose();
    chosen(Args{w, w_stride, rows, x, columns, k, out, out_stride});
}

}  // namespace sparkinfer
