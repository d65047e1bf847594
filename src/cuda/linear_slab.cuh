// linear_slab.cuh — y = [norm](x) · Wᵀ for up to four rows, weights in slabs, on the integer tensor cores.
// Computes   ops.h: NormLinear, LinearAdd, LinearGlu, the head of Output
// Shapes     x [T ≤ 4, K], K a multiple of 256   parts [out_i, K], slabs (out_i a multiple of 16) or plain
//            floats   y [T, out_i] F32
// Mapping    16 warps and a producer. A slab is shared by 2…16 warps, each with every n-th item of 256
//            columns; partial sums meet in shared memory and are added in one order. Plain-float parts have
//            blocks of their own at the end of the grid.
// Memory     weights once, by bulk copies that start before the dependency wait; x from L2 by every block,
//            quantised there to two int8 planes. Floor = weight bytes / bandwidth.
// Limits     K ≤ 32,768. T = 1: 56 registers; T = 2…4: 96. More rows: launched four at a time.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/linear.cpp and from_tapes.cpp against float64, rel. L2 < 6e-5 (16-bit activations).
#pragma once
#include "cuda/launch.h"
#include "cuda/lib/activations.cuh"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

constexpr int kSlabWarps = 16, kSlabThreads = (kSlabWarps + 1) * 32, kMaxStages = 32;

enum class SlabMode : int32_t { store, add, glu };

struct SlabPart {
    const std::byte* data;
    const float* factor;  // {2^-power of D, power of M relative to D}
    float* y;
    int64_t y_stride;
    int32_t slabs;
    SlabKind kind;
};
struct DensePart {
    const void* data;  // [out, K]
    float* y;
    int64_t y_stride;
    int32_t out;
    Quant quant;  // f32, f16 or bf16
};
struct SlabLinear {
    const float* x;
    int64_t x_stride;
    const float* norm;     // [K] or null: x as it is
    StepView step;         // gather: row i of y comes from the row of x that is Step's output first + i
    int32_t gather_first;  // -1: rows of y are rows of x
    SlabPart part[kMaxParts];
    DensePart dense[kMaxParts];
    float eps;
    int32_t rows, columns;  // T, K
    int32_t parts, slabs;   // slab parts, their slabs in all
    int32_t denses, dense_rows;
    int32_t slab_blocks;  // blocks that do slabs; the others do dense rows
    int32_t warps;        // a slab: 2, 4, 8 or 16
    int32_t stages;
    SlabMode mode;
    bool late_trigger;  // let the successor start only after the own wait
};

constexpr int kMostItems = 128;  // columns up to 32,768
constexpr int kDenseRows = 4;    // rows of one dense block: four warps each

template <int kMask, int C>
struct SlabShared {
    static constexpr int red_floats(int) { return kSlabWarps * 2 * 16 * C; }
    static int bytes(const SlabLinear& p, int stage_bytes) {
        const ActivationLayout<kMask, C> at{p.columns};
        return p.stages * stage_bytes + at.bytes() + red_floats(0) * 4 + kMaxStages * 16 + 128 +
               C / 2 * kMostItems * 4;
    }
};

__device__ __forceinline__ int slab_item_bytes(SlabKind k) {
    switch (k) {
        case SlabKind::k4:
        case SlabKind::q4_0: return SlabOf<SlabKind::k4>::item;
        case SlabKind::k5: return SlabOf<SlabKind::k5>::item;
        case SlabKind::k6: return SlabOf<SlabKind::k6>::item;
        case SlabKind::q8: return SlabOf<SlabKind::q8>::item;
        case SlabKind::q4_1: return SlabOf<SlabKind::q4_1>::item;
        default: return SlabOf<SlabKind::iq4_xs>::item;  // and MXFP4's
    }
}
template <int kMask>
HD constexpr int largest_item() {
    return (kMask & kMask8)                                 ? 4352
           : (kMask & kMask6)                               ? 3360
           : (kMask & kMask5)                               ? 2816
           : (kMask & slab_mask(SlabKind::q4_1))            ? 2560
           : (kMask & (kMask4 | slab_mask(SlabKind::q4_0))) ? 2304
                                                            : 2176;
}
__device__ __forceinline__ const SlabPart& part_of(const SlabLinear& p, int slab, int* first) {
    int i = 0;
    *first = 0;
    while (i + 1 < p.parts && slab >= *first + p.part[i].slabs) *first += p.part[i++].slabs;
    return p.part[i];
}

// Eight columns a lane of an item of 256.
struct Eight {
    float v[8];
};
__device__ __forceinline__ Eight load_eight(const float* p) {
    Eight e;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(e.v[0]), "=f"(e.v[1]), "=f"(e.v[2]), "=f"(e.v[3])
                 : "l"(p)
                 : "memory");
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3},[%4];"
                 : "=f"(e.v[4]), "=f"(e.v[5]), "=f"(e.v[6]), "=f"(e.v[7])
                 : "l"(p + 4)
                 : "memory");
    return e;
}
__device__ __forceinline__ Eight gains_of(const float* norm, int column, int columns) {
    Eight e;
#pragma unroll
    for (int i = 0; i < 8; ++i) e.v[i] = 1.0f;
    if (norm && column < columns) {
        const float4 a = __ldg(reinterpret_cast<const float4*>(norm + column)),
                     b = __ldg(reinterpret_cast<const float4*>(norm + column + 4));
        e = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    }
    return e;
}
// Of the item a warp takes first: they do not depend on anybody.
__device__ __forceinline__ Eight first_gains(const SlabLinear& p) {
    return gains_of(p.norm, threadIdx.x * 8, p.columns);
}
__device__ __forceinline__ const float* source_row(const SlabLinear& p, int r) {
    if (r >= p.rows) return nullptr;
    if (p.gather_first >= 0)
        r = p.gather_first + r < p.step.header().outputs ? p.step.outputs()[p.gather_first + r] : 0;
    return p.x + r * p.x_stride;
}

// Rows of x · gain, as give(values, item, row) stores them, and 1/rms of each in `rms` (1 without a norm).
// All consumer warps.
template <int kTokens, class Give>
__device__ __forceinline__ void take_rows(const SlabLinear& p, const Eight& gains, float* part, float* rms,
                                          Give give) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, items = p.columns / kSlabColumns;
#pragma unroll 1
    for (int item = warp; item < items; item += kSlabWarps) {
        const int column = item * kSlabColumns + lane * 8;
        const Eight gain = item == warp ? gains : gains_of(p.norm, column, p.columns);
        Eight x[kTokens];
#pragma unroll
        for (int r = 0; r < kTokens; ++r) {
            const float* row = source_row(p, r);
            if (row)
                x[r] = load_eight(row + column);
            else
#pragma unroll
                for (int i = 0; i < 8; ++i) x[r].v[i] = 0;
        }
#pragma unroll
        for (int r = 0; r < kTokens; ++r) {
            float squares = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                squares = fmaf(x[r].v[i], x[r].v[i], squares);
                x[r].v[i] *= gain.v[i];
            }
            squares = warp_sum(squares);
            if (lane == 0) part[r * kMostItems + item] = squares;
            give(x[r].v, item, r);
        }
    }
    named_barrier(1, kSlabWarps * 32);
    if (warp < kTokens) {
        float sum = 0;
        if (p.norm) {
            for (int i = lane; i < items; i += 32) sum += part[warp * kMostItems + i];
            sum = warp_sum(sum);
        }
        if (lane == 0) rms[warp] = p.norm ? rsqrtf(sum / float(p.columns) + p.eps) : 1.0f;
    }
}

template <int kMask, int C>
__device__ __forceinline__ void item_of(SlabKind kind, const std::byte* item, const std::byte* act, int kb,
                                        float m_factor, SlabSums<C>& sums, int lane, int columns) {
    const ActivationLayout<kMask, C> at{columns};
    const auto run = [&](auto tag) {
        constexpr SlabKind F = decltype(tag)::value;
        slab_item<F, C>(item, act + kb * 8 * C * 32, act + at.template helpers<F>(kb * 8), m_factor, sums,
                        lane);
    };
    using std::integral_constant;
    if constexpr ((kMask & kMaskMore) && kMask != kMaskAll) {
        constexpr SlabKind kOnly = kMask == slab_mask(SlabKind::q4_0)     ? SlabKind::q4_0
                                   : kMask == slab_mask(SlabKind::q4_1)   ? SlabKind::q4_1
                                   : kMask == slab_mask(SlabKind::iq4_xs) ? SlabKind::iq4_xs
                                                                          : SlabKind::mxfp4;
        static_assert(kMask == slab_mask(kOnly), "these formats alone, or all of them");
        run(integral_constant<SlabKind, kOnly>{});
    } else if constexpr (kMask == kMask4)
        run(integral_constant<SlabKind, SlabKind::k4>{});
    else if constexpr (kMask == kMask5)
        run(integral_constant<SlabKind, SlabKind::k5>{});
    else if constexpr (kMask == kMask6)
        run(integral_constant<SlabKind, SlabKind::k6>{});
    else if constexpr (kMask == kMask8)
        run(integral_constant<SlabKind, SlabKind::q8>{});
    else {
        if ((kMask & kMask4) && kind == SlabKind::k4) run(integral_constant<SlabKind, SlabKind::k4>{});
        if ((kMask & kMask5) && kind == SlabKind::k5) run(integral_constant<SlabKind, SlabKind::k5>{});
        if ((kMask & kMask6) && kind == SlabKind::k6) run(integral_constant<SlabKind, SlabKind::k6>{});
        if ((kMask & kMask8) && kind == SlabKind::q8) run(integral_constant<SlabKind, SlabKind::q8>{});
        if constexpr (kMask == kMaskAll) {
            if (kind == SlabKind::q4_0) run(integral_constant<SlabKind, SlabKind::q4_0>{});
            if (kind == SlabKind::q4_1) run(integral_constant<SlabKind, SlabKind::q4_1>{});
            if (kind == SlabKind::iq4_xs) run(integral_constant<SlabKind, SlabKind::iq4_xs>{});
            if (kind == SlabKind::mxfp4) run(integral_constant<SlabKind, SlabKind::mxfp4>{});
        }
    }
}

// Sum of one finished slab's row `lane % 16` for token r: warps of one parity by each half of the warp, then
// the halves.
template <int C>
__device__ __forceinline__ float slab_sum(const float* red, int warps, int r, int lane) {
    const float* v = red + r * 32 + lane % 16;
    float sum = 0;
#pragma unroll 4
    for (int w = lane / 16; w < warps; w += 2) sum += v[w * C * 16] + v[w * C * 16 + 16];
    return sum + __shfl_xor_sync(kWholeWarp, sum, 16);
}

// red [warps][C][16] -> y, a warp of the group per token. `before`: what token `own` adds to, in mode add.
template <int C>
__device__ __forceinline__ void finish_slab(const SlabLinear& p, const SlabPart& part, int slab,
                                            const float* red, const float* rms, int own, float factor,
                                            float before) {
    const int lane = threadIdx.x % 32;
    for (int r = own; r < p.rows; r += p.warps) {
        const float v = slab_sum<C>(red, p.warps, r, lane) * factor * rms[r];
        float* y = part.y + r * part.y_stride;
        if (p.mode == SlabMode::glu) {
            const float up = __shfl_sync(kWholeWarp, v, lane % 8 + 8);
            if (lane < 8) y[slab * 8 + lane] = silu(v) * up;
        } else if (lane < 16) {
            float* to = y + slab * 16 + lane;
            *to = v + (p.mode == SlabMode::add ? (r == own ? before : load_l2(to)) : 0.0f);
        }
    }
}

// Requests step n of the block's slabs: the items of one slab that its warps take at once.
template <int kMask>
__device__ __forceinline__ void request(const SlabLinear& p, std::byte* ring, uint64_t* full, int first,
                                        int n) {
    const int items = p.columns / kSlabColumns, steps = (items + p.warps - 1) / p.warps;
    const int slab = first + n / steps, q = n % steps, stage = n % p.stages;
    int start;
    const SlabPart& part = part_of(p, slab, &start);
    const int item = slab_item_bytes(part.kind), bytes = min(p.warps, items - q * p.warps) * item;
    barrier_expect(full + stage, bytes);
    bulk_copy(ring + stage * p.warps * largest_item<kMask>(),
              part.data + (int64_t(slab - start) * items + q * p.warps) * item, bytes, full + stage);
}
__device__ __forceinline__ int steps_of(const SlabLinear& p, int slabs) {
    return slabs * ((p.columns / kSlabColumns + p.warps - 1) / p.warps);
}
// Fills the ring; returns how many steps that was.
template <int kMask>
__device__ __forceinline__ int produce_first(const SlabLinear& p, std::byte* ring, uint64_t* full, int first,
                                             int last) {
    const int count = min(p.stages, steps_of(p, last - first));
    for (int n = 0; n < count; ++n) request<kMask>(p, ring, full, first, n);
    return count;
}
template <int kMask>
__device__ __forceinline__ void produce_rest(const SlabLinear& p, std::byte* ring, uint64_t* full,
                                             uint64_t* empty, int first, int last) {
    for (int n = p.stages; n < steps_of(p, last - first); ++n) {
        barrier_wait_alone(empty + n % p.stages, (n / p.stages - 1) & 1);
        request<kMask>(p, ring, full, first, n);
    }
}

template <int kMask, int C>
__device__ __forceinline__ void consume_slabs(const SlabLinear& p, const std::byte* ring,
                                              const std::byte* act, float* red, const float* rms,
                                              const float* factors, uint64_t* full, uint64_t* empty,
                                              int first, int last) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int items = p.columns / kSlabColumns, steps = (items + p.warps - 1) / p.warps,
              groups = kSlabWarps / p.warps;
    const int group = warp / p.warps, own = warp % p.warps, stage_bytes = p.warps * largest_item<kMask>();
    constexpr int kWarpRed = C * 16;
    int turn = 0;
    for (int i = group; i < last - first; i += groups, turn ^= 1) {
        int start;
        const SlabPart& part = part_of(p, first + i, &start);
        const int item = slab_item_bytes(part.kind);
        const float factor = factors[2 * (&part - p.part)], m_factor = factors[2 * (&part - p.part) + 1];
        SlabSums<C> sums;
        sums.clear();
        const int slab = first + i - start;
        float before = 0;
        if (p.mode == SlabMode::add && own < p.rows && lane < 16)
            before = load_l2(part.y + own * part.y_stride + slab * 16 + lane);
#pragma unroll 1
        for (int q = 0; q < steps; ++q) {
            const int n = i * steps + q, stage = n % p.stages, kb = q * p.warps + own;
            // A slot's parity aliases for a group that runs a whole phase ahead: see it emptied before
            // waiting for it full.
            if (n >= p.stages) barrier_wait(empty + stage, (n / p.stages - 1) & 1);
            barrier_wait(full + stage, (n / p.stages) & 1);
            if (kb < items)
                item_of<kMask, C>(part.kind, ring + stage * stage_bytes + own * item, act, kb, m_factor, sums,
                                  lane, p.columns);
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + stage);
        }
        float* mine = red + (group * 2 + turn) * p.warps * kWarpRed;
        store_sums<C>(sums, mine + own * kWarpRed, lane);
        named_barrier(2 + group, p.warps * 32);
        finish_slab<C>(p, part, slab, mine, rms, own, factor, before);
    }
}

// Four values from column k on of a plain-float row. REQUIRES: 4 divides k and the row's length.
__device__ __forceinline__ float4 dense_four(const DensePart& d, int64_t i) {
    if (d.quant == Quant::f32)
        return __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(d.data) + i));
    const uint2 bits = __ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(d.data) + i));
    const uint16_t v[4] = {uint16_t(bits.x), uint16_t(bits.x >> 16), uint16_t(bits.y),
                           uint16_t(bits.y >> 16)};
    float f[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) f[j] = d.quant == Quant::bf16 ? bf16_to_f32(v[j]) : f16_to_f32(v[j]);
    return make_float4(f[0], f[1], f[2], f[3]);
}

// kDenseRows rows of the plain-float parts: four warps share a row. Its first 2048 columns come before the
// wait.
template <int C>
__device__ __forceinline__ void dense_rows(const SlabLinear& p, int block, float* x, float* red, float* part,
                                           float* rms) {
    constexpr int kRows = C / 2, kFours = 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lane128 = warp % 4 * 32 + lane;
    int row = block * kDenseRows + warp / 4, i = 0;
    const bool there = row < p.dense_rows;
    while (there && row >= p.dense[i].out) row -= p.dense[i++].out;
    const DensePart& d = p.dense[i];
    const int64_t at = int64_t(row) * p.columns;
    const auto fetch = [&](int first, float4* w) {
#pragma unroll
        for (int j = 0; j < kFours; ++j) {
            const int k = first + (j * 128 + lane128) * 4;
            w[j] = there && k < p.columns ? dense_four(d, at + k) : make_float4(0, 0, 0, 0);
        }
    };
    float4 w[kFours];
    fetch(0, w);
    const Eight gains = first_gains(p);
    wait_for_predecessor();
    if (p.late_trigger) let_successor_start();
    take_rows<kRows>(p, gains, part, rms, [&](const float(&v)[8], int item, int r) {
        float4* to = reinterpret_cast<float4*>(x + r * p.columns + item * kSlabColumns + lane * 8);
        to[0] = make_float4(v[0], v[1], v[2], v[3]);
        to[1] = make_float4(v[4], v[5], v[6], v[7]);
    });
    named_barrier(1, kSlabWarps * 32);
    float sum[kRows] = {};
    for (int first = 0; first < p.columns; first += kFours * 512) {
        if (first) fetch(first, w);
#pragma unroll
        for (int j = 0; j < kFours; ++j) {
            const int k = first + (j * 128 + lane128) * 4;
            if (k >= p.columns) break;
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float4 v = *reinterpret_cast<const float4*>(x + r * p.columns + k);
                sum[r] = fmaf(w[j].x, v.x, fmaf(w[j].y, v.y, fmaf(w[j].z, v.z, fmaf(w[j].w, v.w, sum[r]))));
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const float v = warp_sum(sum[r]);
        if (lane == 0) red[warp * kRows + r] = v;
    }
    named_barrier(1, kSlabWarps * 32);
    if (!there || warp % 4 != 0 || lane >= p.rows) return;
    const float* four = red + warp * kRows + lane;
    d.y[lane * d.y_stride + row] =
        ((four[0] + four[kRows]) + (four[2 * kRows] + four[3 * kRows])) * rms[lane];
}

template <int kMask, int C>
__global__ void __launch_bounds__(kSlabThreads, C == 2 ? 2 : 1)
    linear_slab(const __grid_constant__ SlabLinear p) {
    extern __shared__ __align__(128) std::byte shared[];
    const int stage_bytes = p.warps * largest_item<kMask>();
    const ActivationLayout<kMask, C> at{p.columns};
    const bool slabs = int(blockIdx.x) < p.slab_blocks;
    std::byte* ring = shared;
    std::byte* act = ring + (slabs ? p.stages * stage_bytes : 0);
    float* red = reinterpret_cast<float*>(act + (slabs ? at.bytes() : C / 2 * p.columns * 4));
    uint64_t* full = reinterpret_cast<uint64_t*>(red + SlabShared<kMask, C>::red_floats(0));
    uint64_t* empty = full + kMaxStages;
    float* rms = reinterpret_cast<float*>(empty + kMaxStages);  // [8]
    float* factors = rms + 8;                                   // [kMaxParts][2]
    float* part = factors + 2 * kMaxParts;                      // [C/2][kMostItems]
    const int first = int(int64_t(p.slabs) * blockIdx.x / p.slab_blocks),
              last = int(int64_t(p.slabs) * (blockIdx.x + 1) / p.slab_blocks);
    if (!p.late_trigger) let_successor_start();
    if (threadIdx.x >= kSlabWarps * 32) {
        if (slabs && threadIdx.x == kSlabWarps * 32) {
            for (int i = 0; i < p.stages; ++i) {
                barrier_init(full + i, 1);
                barrier_init(empty + i, p.warps);
            }
            barrier_init_fence();
        }
        __syncwarp();
        if (slabs) asm volatile("bar.arrive 15,%0;" ::"n"(kSlabThreads) : "memory");
        // The trigger counts when every thread of the block has given it.
        const int issued =
            slabs && threadIdx.x == kSlabWarps * 32 ? produce_first<kMask>(p, ring, full, first, last) : 0;
        if (p.late_trigger) {
            wait_for_predecessor();
            let_successor_start();
        }
        if (issued) produce_rest<kMask>(p, ring, full, empty, first, last);
        return;
    }
    if (!slabs)
        return dense_rows<C>(p, int(blockIdx.x) - p.slab_blocks, reinterpret_cast<float*>(act), red, part,
                             rms);
    const Eight gains = first_gains(p);
    if (threadIdx.x < 2 * p.parts)
        factors[threadIdx.x] = __ldg(p.part[threadIdx.x / 2].factor + threadIdx.x % 2);
    wait_for_predecessor();
    if (p.late_trigger) let_successor_start();
    const int lane = threadIdx.x % 32;
    take_rows<C / 2>(p, gains, part, rms, [&](const float(&v)[8], int item, int r) {
        quantise_item<kMask, C>(v, item, r, act, at, lane);
    });
    asm volatile("bar.sync 15,%0;" ::"n"(kSlabThreads) : "memory");
    consume_slabs<kMask, C>(p, ring, act, red, rms, factors, full, empty, first, last);
}

}  // namespace sparkinfer::cuda
