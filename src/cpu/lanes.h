// lanes.h — sixteen float32 lanes as one, two or four registers, with the same sums in the same order.
//
// For files that are compiled with -ffp-contract=fast and choose among their forms at run time. Passed by
// reference only: vectors as values would have a calling convention that depends on the instruction set.
#pragma once
#include <cstring>

// GCC takes a wide vector apart before it inlines into a function that has such registers, and then finds its
// parts uninitialised.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define INLINE __attribute__((always_inline)) inline

namespace sparkinfer {

constexpr int kLanes = 16;

typedef float V4 __attribute__((vector_size(16)));
typedef float V8 __attribute__((vector_size(32)));
typedef float V16 __attribute__((vector_size(64)));

struct Lanes512 {
    V16 v;
    INLINE void zero() { v = V16{}; }
    INLINE void load(const float* p) { memcpy(&v, p, sizeof v); }
    INLINE void fill(float x) { v = x - V16{}; }
    INLINE void store(float* p) const { memcpy(p, &v, sizeof v); }
    INLINE void multiply(const Lanes512& a) { v *= a.v; }
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
    INLINE void fill(float x) {
        v[0] = V8{x, x, x, x, x, x, x, x};
        v[1] = V8{x, x, x, x, x, x, x, x};
    }
    INLINE void store(float* p) const { memcpy(p, v, sizeof v); }
    INLINE void multiply(const Lanes256& a) { v[0] *= a.v[0], v[1] *= a.v[1]; }
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
    INLINE void fill(float x) {
        for (int i = 0; i < 4; ++i) v[i] = V4{x, x, x, x};
    }
    INLINE void store(float* p) const { memcpy(p, v, sizeof v); }
    INLINE void multiply(const Lanes128& a) {
        for (int i = 0; i < 4; ++i) v[i] *= a.v[i];
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

}  // namespace sparkinfer
