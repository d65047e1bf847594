// matrix_planes.cuh — matrix products of many rows with weights of any format, on tensor cores.
// Computes   y[r,:] (+)= x[r,:] · W[e(r)]ᵀ for up to kMaxParts matrices that read the same x
//            (ops.h: NormLinear, LinearAdd, LinearGlu, MoeGlu, MoeDownAdd, Output)
// Shapes     x: PackedRows of two planes   W [experts, out, K] any format   y [R, out] F32
// Mapping    persistent blocks take tiles of kM weight rows by kN packed rows. Eight warps fill a ring of
//            steps of 32 columns: groups of kM threads, a step each, decode the weights to BF16 high + low
//            and copy the packed rows. Eight warps multiply: mma.m16n8k16, high·high + high·low + low·high in
//            float32 (weights whose values are BF16: without the last). Sums of at most kPlanesRun steps are
//            added to y one after the other.
// Memory     a tile reads its weights once, decoded by whoever reads them, and 4·K bytes a row of x.
//            Neighbouring blocks share both through the second-level cache.
// Limits     2^-17 of each x and w; sums are float32 in an order that K alone sets: a row's bits are the same
//            in any company. Dynamic shared memory: stages · planes_stage_bytes. sm_80+.
// Numbers    H200, 4096 rows, W [4096, 4096]: BF16 680 µs = 202 TFLOP/s, F32 1,104, Q4_1 1,127, Q6_K 1,246;
//            W [256, 2048] F32: 44 µs
// Tested     tests/ops/linear_many.cpp
#pragma once
#include "cuda/lib/copy.cuh"
#include "cuda/matrix_planes_weights.cuh"

namespace sparkinfer::cuda {

constexpr int kPlanesHalf = 256, kPlanesThreads = 2 * kPlanesHalf, kPlanesStages = 16;
constexpr int kPlanesBand = 8;   // tiles of x that are gone through beside each other
constexpr int kPlanesRun = 128;  // steps most that a sum in tensor cores, which truncate, goes on

template <int kM, int kN>
constexpr int planes_stage_bytes() {
    return 2 * (kM + kN) * kPlanesStep * 2;
}

// kSingle: all parts are planes_single, else none is.
struct MatrixPlanes {
    PackedRows x;
    PlanesPart part[kMaxParts];
    int32_t m_end[kMaxParts];  // tiles of weight rows up to each part's end
    int32_t parts, stages;
    int32_t rows;       // dense
    ExpertOrder order;  // tile null: dense
    bool add, by_pair;
};

struct PlanesTile {
    const PlanesPart* part;
    int32_t expert, first_m, first_n, count;  // rows of x; ≤ 0: nothing to do
};

template <int kN>
__device__ __forceinline__ int planes_subs(const MatrixPlanes& p) {
    return (p.order.tile_rows + kN - 1) / kN;
}

template <int kN>
__device__ __forceinline__ int planes_tiles(const MatrixPlanes& p) {
    const int across = p.m_end[p.parts - 1];
    return across * (p.order.tile ? *p.order.tiles * planes_subs<kN>(p) : (p.rows + kN - 1) / kN);
}

template <int kM, int kN>
__device__ __forceinline__ PlanesTile planes_tile(const MatrixPlanes& p, int i) {
    const int across = p.m_end[p.parts - 1];
    PlanesTile t{p.part, 0, 0, 0, 0};
    int m;
    if (p.order.tile) {
        const int n = i / across, subs = planes_subs<kN>(p);
        const int4 tile = p.order.tile[n / subs];
        m = i % across;
        t.expert = tile.x;
        t.first_n = tile.y + n % subs * kN;
        t.count = min(tile.z - n % subs * kN, kN);
    } else {
        const int down = (p.rows + kN - 1) / kN, band = i / (across * kPlanesBand),
                  width = min(kPlanesBand, down - band * kPlanesBand), at = i - band * across * kPlanesBand;
        m = at / width;
        t.first_n = (band * kPlanesBand + at % width) * kN;
        t.count = min(p.rows - t.first_n, kN);
    }
    int before = 0;
    for (int part = 0; m >= p.m_end[part]; before = p.m_end[part++]) t.part = &p.part[part + 1];
    t.first_m = (m - before) * kM;
    return t;
}

__device__ __forceinline__ int planes_steps(const MatrixPlanes& p) {
    return (p.part[0].w.in + kPlanesStep - 1) / kPlanesStep;
}

// Where a warp is in the ring.
struct RingPlace {
    int32_t stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void advance(int steps, int stages) {
        for (stage += steps; stage >= stages; stage -= stages) parity ^= 1;
    }
};

struct PlanesRing {
    uint32_t data;  // shared address
    uint64_t *full, *empty;
};

// Arrives at `b` when the thread's copies so far have.
__device__ __forceinline__ void barrier_arrive_copies(uint64_t* b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// 32 columns of kN packed rows, both planes, by kThreads threads.
template <int kN, int kThreads>
__device__ __forceinline__ void fill_rows(const PackedRows& x, const PlanesTile& t, int column, uint32_t to,
                                          int thread) {
    const int chunk = thread % 4;
    // Rows of a thread are a multiple of 8 apart, as is the tile's first: all have one swizzle.
    static_assert(kThreads % 32 == 0);
    const std::byte* from = x.data + x.chunk_at(t.first_n + thread / 4, column / 8 + chunk);
#pragma unroll
    for (int plane = 0; plane < 2; ++plane) {
#pragma unroll
        for (int first = 0; first < kN; first += kThreads / 4) {
            const int row = first + thread / 4;
            const bool wanted = row < t.count;
            async_copy16(to + plane * kN * 64 + tile_chunk_at(row, chunk),
                         wanted ? from + plane * x.plane_bytes() + first * 128 : x.data, wanted);
        }
    }
}

template <int kM, int kN, bool kSingle>
__device__ __forceinline__ void planes_fill(const MatrixPlanes& p, const PlanesRing& ring, int tiles) {
    constexpr int kGroups = kPlanesHalf / kM;
    const int thread = threadIdx.x % kM, group = (threadIdx.x - kPlanesHalf) / kM;
    RingPlace at;
    at.advance(group, p.stages);
    int turn = group;  // steps until the group's next
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        const PlanesTile t = planes_tile<kM, kN>(p, i);
        if (t.count <= 0) continue;
        const Weight w = t.part->w;
        const int steps = planes_steps(p);
        for (; turn < steps; turn += kGroups) {
            const uint32_t to = ring.data + at.stage * planes_stage_bytes<kM, kN>();
            barrier_wait(&ring.empty[at.stage], at.parity ^ 1);
            fill_rows<kN, kM>(p.x, t, turn * kPlanesStep, to + 2 * kM * 64, thread);
            // Hidden, so that addresses of every format are not kept from step to step.
            int first_m = t.first_m;
            asm volatile("" : "+r"(first_m));
            fill_weights<kM, kSingle>({w, t.expert, first_m, turn * kPlanesStep, to, to + kM * 64}, thread);
            barrier_arrive_copies(&ring.full[at.stage]);
            barrier_arrive(&ring.full[at.stage]);
            at.advance(kGroups, p.stages);
        }
        turn -= steps;
    }
    async_commit();
    async_wait<0>();
}

// A warp's part of a tile: kM/2 by kN/4.
template <int kM, int kN>
struct PlanesSum {
    static constexpr int kRows16 = kM / 32, kRows8 = kN / 32;
    float v[kRows16][kRows8][4];
};

template <int kM, int kN, bool kSingle>
__device__ __forceinline__ void planes_multiply(PlanesSum<kM, kN>& sum, uint32_t stage) {
    using Sum = PlanesSum<kM, kN>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int m = warp / 4 * (kM / 2) + lane % 16, n = warp % 4 * (kN / 4) + lane % 8 + lane / 16 * 8;
    const uint32_t weights = stage + m * 64, rows = stage + 2 * kM * 64 + n * 64;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const int m_chunk = (2 * k + lane / 16 ^ (m >> 1 & 3)) * 16,
                  n_chunk = (2 * k + lane / 8 % 2 ^ (n >> 1 & 3)) * 16;
        uint32_t high[Sum::kRows8][2], low[Sum::kRows8][2];
#pragma unroll
        for (int j = 0; j < Sum::kRows8; j += 2) {
            uint32_t b[4];
            load_matrices(b, rows + j * 512 + n_chunk);
            high[j][0] = b[0], high[j][1] = b[1], high[j + 1][0] = b[2], high[j + 1][1] = b[3];
            load_matrices(b, rows + kN * 64 + j * 512 + n_chunk);
            low[j][0] = b[0], low[j][1] = b[1], low[j + 1][0] = b[2], low[j + 1][1] = b[3];
        }
#pragma unroll
        for (int i = 0; i < Sum::kRows16; ++i) {
            uint32_t a[4];
            load_matrices(a, weights + i * 1024 + m_chunk);
#pragma unroll
            for (int j = 0; j < Sum::kRows8; ++j) mma_bf16(sum.v[i][j], a, high[j][0], high[j][1]);
#pragma unroll
            for (int j = 0; j < Sum::kRows8; ++j) mma_bf16(sum.v[i][j], a, low[j][0], low[j][1]);
            if constexpr (!kSingle) {
                load_matrices(a, weights + kM * 64 + i * 1024 + m_chunk);
#pragma unroll
                for (int j = 0; j < Sum::kRows8; ++j) mma_bf16(sum.v[i][j], a, high[j][0], high[j][1]);
            }
        }
    }
}

template <int kM, int kN>
__device__ __forceinline__ void planes_store(const PlanesSum<kM, kN>& sum, const MatrixPlanes& p,
                                             const PlanesTile& t, bool add) {
    using Sum = PlanesSum<kM, kN>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int m = t.first_m + warp / 4 * (kM / 2) + lane / 4, n = warp % 4 * (kN / 4) + lane % 4 * 2;
    const Weight& w = t.part->w;
    const float factor = w.scale_count == 0 ? 1.0f : w.scale[w.scale_count == 1 ? 0 : t.expert];
#pragma unroll
    for (int j = 0; j < Sum::kRows8; ++j) {
        float* y[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            int row = n + j * 8 + c < t.count ? t.first_n + n + j * 8 + c : -1;
            if (row >= 0 && p.by_pair) row = p.order.pair[row];
            y[c] = row < 0 ? nullptr : t.part->y + row * t.part->y_stride;
        }
        float old[Sum::kRows16][4] = {};
        if (add) {
#pragma unroll
            for (int i = 0; i < Sum::kRows16; ++i)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    if (y[c % 2] && m + i * 16 + c / 2 * 8 < w.out)
                        old[i][c] = y[c % 2][m + i * 16 + c / 2 * 8];
        }
#pragma unroll
        for (int i = 0; i < Sum::kRows16; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                // Rounded here: a row must not depend on where the compiler fuses the product with the
                // addition.
                const float v = __fmul_rn(sum.v[i][j][c], factor);
                if (y[c % 2] && m + i * 16 + c / 2 * 8 < w.out)
                    y[c % 2][m + i * 16 + c / 2 * 8] = add ? __fadd_rn(old[i][c], v) : v;
            }
    }
}

// The tile's number only is kept while registers are full of sums.
template <int kM, int kN, bool kSingle>
__device__ __forceinline__ void planes_reduce(const MatrixPlanes& p, const PlanesRing& ring, RingPlace& at,
                                              int i) {
    if (planes_tile<kM, kN>(p, i).count <= 0) return;
    for (int s = 0; s < planes_steps(p);) {
        PlanesSum<kM, kN> sum = {};
        do {
            barrier_wait(&ring.full[at.stage], at.parity);
            planes_multiply<kM, kN, kSingle>(sum, ring.data + at.stage * planes_stage_bytes<kM, kN>());
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(&ring.empty[at.stage]);
            at.advance(1, p.stages);
        } while (++s % kPlanesRun && s < planes_steps(p));
        planes_store(sum, p, planes_tile<kM, kN>(p, i), p.add || s > kPlanesRun);
    }
}

// Kernel     matrix_planes: 128 registers, 256 bytes
template <int kM, int kN, bool kSingle>
__global__ void __launch_bounds__(kPlanesThreads, 1) matrix_planes(const __grid_constant__ MatrixPlanes p) {
    extern __shared__ __align__(128) std::byte planes[];
    __shared__ uint64_t full[kPlanesStages], empty[kPlanesStages];
    if (threadIdx.x == 0) {
        for (int s = 0; s < p.stages; ++s) {
            barrier_init(&full[s], 2 * kM);
            barrier_init(&empty[s], kPlanesHalf / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();
    wait_for_predecessor();
    const PlanesRing ring{shared_address(planes), full, empty};
    if (threadIdx.x >= kPlanesHalf) return planes_fill<kM, kN, kSingle>(p, ring, planes_tiles<kN>(p));
    RingPlace at;
    for (int i = blockIdx.x; i < planes_tiles<kN>(p); i += gridDim.x)
        planes_reduce<kM, kN, kSingle>(p, ring, at, i);
}

}  // namespace sparkinfer::cuda
