// attention_heads.cuh — what every form of attention does to a head before it attends: norm, rotation, place
// in the pages. One arithmetic for all of them, with its roundings written out, so that a key has the same
// bits whichever form appends it.   (ops.h: Attention)
#pragma once
#include <cuda_bf16.h>

#include "cuda/lib/reduce.cuh"
#include "ops/ops.h"

namespace sparkinfer::cuda {

// Where the key (part 0) or value (part 1) of `index` lies for kv head g.
template <class Stored>
__device__ __forceinline__ Stored* kv_at(const KvLayer& kv, const int32_t* pages, int index, int part,
                                         int g) {
    std::byte* page = kv.pages + pages[index / kPageTokens] * kv.page_bytes;
    return reinterpret_cast<Stored*>(page) +
           ((int64_t(part) * kv.heads + g) * kPageTokens + index % kPageTokens) * kv.width;
}

__device__ __forceinline__ int rope_axis(const Rope& rope, int pair) {
    if (pair % 3 == 1 && pair < 3 * rope.sections[1]) return 1;
    if (pair % 3 == 2 && pair < 3 * rope.sections[2]) return 2;
    return 0;
}

// The rotation of one row: lane l holds pairs l, l + 32, …
template <int kWidth>
struct Turn {
    static constexpr int kPairs = (kWidth + 63) / 64;
    float c[kPairs], s[kPairs];
};

// sin and cos of angle + rest, |angle| < 2^20, |rest| tiny, to 1e-7: the nearest multiple of π/2 taken off in
// two parts, then polynomials on [-π/4, π/4] (minimax; Cephes sinf, cosf). sincosf has a slow path in local
// memory.
__device__ __forceinline__ void sin_cos(float angle, float rest, float& s, float& c) {
    const float k = rintf(__fmul_rn(angle, 0.636619772f));
    const float r = __fadd_rn(__fmaf_rn(-k, -4.37113900e-8f, __fmaf_rn(-k, 1.57079637f, angle)), rest);
    const float z = __fmul_rn(r, r);
    const float sine =
        __fmaf_rn(__fmul_rn(z, r),
                  __fmaf_rn(__fmaf_rn(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f), r);
    const float high =
        __fmaf_rn(__fmaf_rn(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    const float cosine = __fmaf_rn(__fmul_rn(z, z), high, __fmaf_rn(-0.5f, z, 1.0f));
    const int quadrant = int(k) & 3;
    s = quadrant & 1 ? cosine : sine;
    c = quadrant & 1 ? sine : cosine;
    if (quadrant & 2) s = -s;
    if (quadrant == 1 || quadrant == 2) c = -c;
}

// position·frequency is kept to twice float32 (angle + rest): at position 30,000 the product alone is off by
// 1e-3 radians.
template <int kWidth>
__device__ __forceinline__ Turn<kWidth> turn_at(const Rope& rope, const int32_t (&position)[3], int lane) {
    const float* frequency = static_cast<const float*>(rope.frequency.data);
    Turn<kWidth> turn;
#pragma unroll
    for (int j = 0; j < Turn<kWidth>::kPairs; ++j) {
        const int pair = j * 32 + lane;
        turn.c[j] = 1, turn.s[j] = 0;
        if (pair >= rope.dims / 2) continue;
        const int axis = rope_axis(rope, pair);
        const float at = float(axis == 0   ? position[0]
                               : axis == 1 ? position[1]
                                           : position[2]),
                    f = frequency[pair];
        const float angle = __fmul_rn(at, f);
        float s, c;
        sin_cos(angle, __fmaf_rn(at, f, -angle), s, c);
        turn.c[j] = __fmul_rn(c, rope.magnitude);
        turn.s[j] = __fmul_rn(s, rope.magnitude);
    }
    return turn;
}

// x[j] = from[32·j + lane]
template <int kWidth>
__device__ __forceinline__ void load_head(float (&x)[kWidth / 32], const float* from, int lane) {
#pragma unroll
    for (int j = 0; j < kWidth / 32; ++j) x[j] = from[j * 32 + lane];
}

// head [kWidth] (shared) = x, RMS-normalised with `gain` when `normed`, then rotated. One warp; x and gain as
// load_head gives them. `head` is ready for the whole warp on return.
template <int kWidth>
__device__ __forceinline__ void prepare_head(const float (&x)[kWidth / 32], bool normed,
                                             const float (&gain)[kWidth / 32], float eps, const Rope& rope,
                                             const Turn<kWidth>& turn, float* head, int lane) {
    if (normed) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kWidth / 32; ++j) sum = __fmaf_rn(x[j], x[j], sum);
        const float scale = rsqrtf(__fadd_rn(__fdiv_rn(warp_sum(sum), float(kWidth)), eps));
#pragma unroll
        for (int j = 0; j < kWidth / 32; ++j)
            head[j * 32 + lane] = __fmul_rn(__fmul_rn(x[j], scale), gain[j]);
    } else {
#pragma unroll
        for (int j = 0; j < kWidth / 32; ++j) head[j * 32 + lane] = x[j];
    }
    __syncwarp();
    const bool halves = rope.pairs == RopePairs::halves;
#pragma unroll
    for (int j = 0; j < Turn<kWidth>::kPairs; ++j) {
        const int i = j * 32 + lane, a = halves ? i : 2 * i, b = halves ? i + rope.dims / 2 : 2 * i + 1;
        if (i >= rope.dims / 2) continue;
        const float u = head[a], v = head[b], c = turn.c[j], s = turn.s[j];
        head[a] = __fmaf_rn(u, c, -__fmul_rn(v, s));
        head[b] = __fmaf_rn(u, s, __fmul_rn(v, c));
    }
    __syncwarp();
}

}  // namespace sparkinfer::cuda
