// linear_slab.cuh — y = [norm](x) · Wᵀ for up to four rows, weights in slabs, on the integer tensor cores.
// Computes   ops.h: NormLinear, LinearAdd, LinearGlu, the head of Output
// Shapes     x [T ≤ 4, K], K a multiple of 256   parts [out_i, K], out_i a multiple of 16, slabs or plain floats   y [T, out_i] F32
// Mapping    16 warps and a producer. A slab is shared by 2…16 warps, each with every n-th item of 256 columns; partial sums meet in
//            shared memory and are added as a fixed tree. Plain-float parts have blocks of their own at the end of the grid.
// Memory     weights once, by bulk copies that start before the dependency wait; x from L2 by every block, quantised there to two
//            int8 planes. Floor = weight bytes / bandwidth.
// Limits     T = 1: 56 registers, two blocks a multiprocessor; T = 2…4: one block. More rows: launched four at a time. Shared memory as the host finds room.
// Tested     tests/ops/linear.cpp against float64, rel. L2 < 2e-5.
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
    const float* norm;         // [K] or null: x as it is
    StepView step;             // gather: row i of y comes from the row of x that is Step's output first + i
    int32_t gather_first;      // -1: rows of y are rows of x
    SlabPart part[kMaxParts];
    DensePart dense[kMaxParts];
    float eps;
    int32_t rows, columns;     // T, K
    int32_t parts, slabs;      // slab parts, their slabs in all
    int32_t denses, dense_rows;
    int32_t slab_blocks;       // blocks that do slabs; the others do dense rows
    int32_t warps;             // a slab: 2, 4, 8 or 16
    int32_t stages;
    SlabMode mode;
    bool late_trigger;         // let the successor start only after the own wait
};

constexpr int kDenseRows = 8;  // rows of one dense block: two warps each

template <int kMask, int C>
struct SlabShared {
    static constexpr int red_floats(int) { return kSlabWarps * 2 * 16 * C; }
    static int bytes(const SlabLinear& p, int stage_bytes) {
        const ActivationLayout<kMask, C> at{p.columns};
        return p.stages * stage_bytes + at.bytes() + red_floats(0) * 4 + kMaxStages * 16 + 1024;
    }
};

__device__ __forceinline__ int slab_item_bytes(SlabKind k) {
    return k == SlabKind::k4 ? SlabOf<SlabKind::k4>::item : k == SlabKind::k5 ? SlabOf<SlabKind::k5>::item
           : k == SlabKind::k6 ? SlabOf<SlabKind::k6>::item : SlabOf<SlabKind::q8>::item;
}
template <int kMask>
HD constexpr int largest_item() {
    return (kMask & kMask8) ? 4352 : (kMask & kMask6) ? 3360 : (kMask & kMask5) ? 2816 : 2304;
}
__device__ __forceinline__ const SlabPart& part_of(const SlabLinear& p, int slab, int* first) {
    int i = 0;
    *first = 0;
    while (i + 1 < p.parts && slab >= *first + p.part[i].slabs) *first += p.part[i++].slabs;
    return p.part[i];
}

// Rows of x: quantised (when `to` is given), and 1/rms of each in `rms` [8] (1 without a norm). All consumer warps.
template <int kMask, int C>
__device__ __forceinline__ void take_rows(const SlabLinear& p, std::byte* to, float* part, float* rms) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = p.columns / 32;
    const ActivationLayout<kMask, C> at{p.columns};
    constexpr int kTokens = C / 2;
#pragma unroll 1
    for (int r = 0; r < kTokens; ++r) {
        const bool there = r < p.rows;
        int from = r;
        if (p.gather_first >= 0)
            from = p.gather_first + r < p.step.header().outputs ? p.step.outputs()[p.gather_first + r] : 0;
        const float* x = p.x + int64_t(there ? from : 0) * p.x_stride;
        float squares = 0;
#pragma unroll 4
        for (int g = warp; g < groups; g += kSlabWarps) {
            float v = there ? load_l2(x + g * 32 + lane) : 0.0f;
            squares = fmaf(v, v, squares);
            if (p.norm) v *= p.norm[g * 32 + lane];
            if (to) quantise_group<kMask, C>(v, g, r, to, at, lane);
        }
        squares = warp_sum(squares);
        if (lane == 0) part[r * kSlabWarps + warp] = squares;
    }
    named_barrier(1, kSlabWarps * 32);
    if (threadIdx.x < kTokens) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kSlabWarps; ++w) sum += part[threadIdx.x * kSlabWarps + w];
        rms[threadIdx.x] = p.norm ? rsqrtf(sum / float(p.columns) + p.eps) : 1.0f;
    }
}

template <int kMask, int C>
__device__ __forceinline__ void item_of(SlabKind kind, const std::byte* item, const std::byte* act, int kb, float m_factor,
                                        SlabSums<C>& sums, int lane, int columns) {
    const ActivationLayout<kMask, C> at{columns};
    const auto run = [&](auto tag) {
        constexpr SlabKind F = decltype(tag)::value;
        slab_item<F, C>(item, act + kb * 8 * C * 32, act + at.template helpers<F>(kb * 8), m_factor, sums, lane);
    };
    using std::integral_constant;
    if constexpr (kMask == kMask4) run(integral_constant<SlabKind, SlabKind::k4>{});
    else if constexpr (kMask == kMask5) run(integral_constant<SlabKind, SlabKind::k5>{});
    else if constexpr (kMask == kMask6) run(integral_constant<SlabKind, SlabKind::k6>{});
    else if constexpr (kMask == kMask8) run(integral_constant<SlabKind, SlabKind::q8>{});
    else {
        if ((kMask & kMask4) && kind == SlabKind::k4) run(integral_constant<SlabKind, SlabKind::k4>{});
        if ((kMask & kMask5) && kind == SlabKind::k5) run(integral_constant<SlabKind, SlabKind::k5>{});
        if ((kMask & kMask6) && kind == SlabKind::k6) run(integral_constant<SlabKind, SlabKind::k6>{});
        if ((kMask & kMask8) && kind == SlabKind::q8) run(integral_constant<SlabKind, SlabKind::q8>{});
    }
}

// One finished slab: red [warps][C][16] -> y. `first`: first slab of the part.
template <int C>
__device__ __forceinline__ void finish_slab(const SlabLinear& p, const SlabPart& part, int slab, const float* red, const float* rms,
                                            int thread, int threads) {
    const float factor = part.factor[0];
    const auto sum = [&](int r, int row) {
        const float* v = red + r * 32 + row;
        float total[2] = {0, 0};  // even and odd warps
        for (int w = 0; w < p.warps; w += 2) {
            total[0] += v[w * C * 16] + v[w * C * 16 + 16];
            total[1] += v[(w + 1) * C * 16] + v[(w + 1) * C * 16 + 16];
        }
        return (total[0] + total[1]) * factor * rms[r];
    };
    if (p.mode == SlabMode::glu) {
        for (int o = thread; o < 8 * p.rows; o += threads) {
            const int r = o / 8, row = o % 8;
            part.y[r * part.y_stride + slab * 8 + row] = silu(sum(r, row)) * sum(r, row + 8);
        }
        return;
    }
    for (int o = thread; o < 16 * p.rows; o += threads) {
        const int r = o / 16, row = o % 16;
        float* y = part.y + r * part.y_stride + slab * 16 + row;
        const float v = sum(r, row);
        *y = p.mode == SlabMode::add ? load_l2(y) + v : v;
    }
}

template <int kMask>
__device__ __forceinline__ void produce_slabs(const SlabLinear& p, std::byte* ring, uint64_t* full, uint64_t* empty, int first, int last) {
    const int items = p.columns / kSlabColumns, steps = (items + p.warps - 1) / p.warps, count = (last - first) * steps;
    const int stage_bytes = p.warps * largest_item<kMask>();
    const auto issue = [&](int n) {
        const int slab = first + n / steps, q = n % steps, stage = n % p.stages;
        int start;
        const SlabPart& part = part_of(p, slab, &start);
        const int item = slab_item_bytes(part.kind), held = min(p.warps, items - q * p.warps);
        barrier_expect(full + stage, held * item);
        bulk_copy(ring + stage * stage_bytes, part.data + (int64_t(slab - start) * items + q * p.warps) * item, held * item, full + stage);
    };
    for (int n = 0; n < p.stages && n < count; ++n) issue(n);
    for (int n = p.stages; n < count; ++n) {
        const uint32_t a = (n / p.stages - 1) & 1;
        uint32_t ok;
        do {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p; }"
                         : "=r"(ok)
                         : "r"(shared_address(empty + n % p.stages)), "r"(a)
                         : "memory");
        } while (!ok);
        issue(n);
    }
}

template <int kMask, int C>
__device__ __forceinline__ void consume_slabs(const SlabLinear& p, const std::byte* ring, const std::byte* act, float* red,
                                              const float* rms, uint64_t* full, uint64_t* empty, int first, int last) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int items = p.columns / kSlabColumns, steps = (items + p.warps - 1) / p.warps, groups = kSlabWarps / p.warps;
    const int group = warp / p.warps, own = warp % p.warps, stage_bytes = p.warps * largest_item<kMask>();
    constexpr int kWarpRed = C * 16;
    int turn = 0;
    for (int i = group; i < last - first; i += groups, turn ^= 1) {
        int start;
        const SlabPart& part = part_of(p, first + i, &start);
        const int item = slab_item_bytes(part.kind);
        const float m_factor = part.factor[1];
        SlabSums<C> sums;
        sums.clear();
#pragma unroll 1
        for (int q = 0; q < steps; ++q) {
            const int n = i * steps + q, stage = n % p.stages, kb = q * p.warps + own;
            // A slot's parity aliases for a group that runs a whole phase ahead: see it emptied before waiting for it full.
            if (n >= p.stages) barrier_wait(empty + stage, (n / p.stages - 1) & 1);
            barrier_wait(full + stage, (n / p.stages) & 1);
            if (kb < items)
                item_of<kMask, C>(part.kind, ring + stage * stage_bytes + own * item, act, kb, m_factor, sums, lane, p.columns);
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + stage);
        }
        float* mine = red + (group * 2 + turn) * p.warps * kWarpRed;
        store_sums<C>(sums, mine + own * kWarpRed, lane);
        named_barrier(2 + group, p.warps * 32);
        finish_slab<C>(p, part, first + i - start, mine, rms, own * 32 + lane, p.warps * 32);
    }
}

__device__ __forceinline__ float dense_value(const DensePart& d, int64_t i) {
    if (d.quant == Quant::f32) return static_cast<const float*>(d.data)[i];
    const uint16_t bits = static_cast<const uint16_t*>(d.data)[i];
    return d.quant == Quant::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// kDenseRows rows of the plain-float parts: warps 2i and 2i + 1 share row i.
template <int C>
__device__ __forceinline__ void dense_rows(const SlabLinear& p, int block, float* red, const float* rms) {
    constexpr int kRows = C / 2;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row = block * kDenseRows + warp / 2, i = 0;
    const bool there = row < p.dense_rows;
    while (there && row >= p.dense[i].out) row -= p.dense[i++].out;
    const DensePart& d = p.dense[i];
    float sum[kRows] = {};
    if (there) {
        const int64_t at = int64_t(row) * p.columns;
        for (int k = warp % 2 * 32 + lane; k < p.columns; k += 64) {
            const float w = dense_value(d, at + k) * (p.norm ? p.norm[k] : 1.0f);
#pragma unroll
            for (int r = 0; r < kRows; ++r)
                if (r < p.rows) sum[r] = fmaf(w, load_l2(p.x + r * p.x_stride + k), sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const float v = warp_sum(sum[r]);
        if (lane == 0) red[warp * kRows + r] = v;
    }
    named_barrier(1, kSlabWarps * 32);
    if (there && warp % 2 == 0 && lane < p.rows)
        d.y[lane * d.y_stride + row] = (red[warp * kRows + lane] + red[(warp + 1) * kRows + lane]) * rms[lane];
}

template <int kMask, int C>
__global__ void __launch_bounds__(kSlabThreads, C == 2 ? 2 : 1) linear_slab(const __grid_constant__ SlabLinear p) {
    extern __shared__ __align__(128) std::byte shared[];
    const int stage_bytes = p.warps * largest_item<kMask>();
    const ActivationLayout<kMask, C> at{p.columns};
    const bool slabs = int(blockIdx.x) < p.slab_blocks;
    std::byte* ring = shared;
    std::byte* act = ring + (slabs ? p.stages * stage_bytes : 0);
    float* red = reinterpret_cast<float*>(act + (slabs ? at.bytes() : 0));
    uint64_t* full = reinterpret_cast<uint64_t*>(red + SlabShared<kMask, C>::red_floats(0));
    uint64_t* empty = full + kMaxStages;
    float* rms = reinterpret_cast<float*>(empty + kMaxStages);  // [8]
    float* part = rms + 8;                                      // [8][16]
    const int first = int(int64_t(p.slabs) * blockIdx.x / p.slab_blocks), last = int(int64_t(p.slabs) * (blockIdx.x + 1) / p.slab_blocks);
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
        if (slabs && threadIdx.x == kSlabWarps * 32) produce_slabs<kMask>(p, ring, full, empty, first, last);
        return;
    }
    wait_for_predecessor();
    if (p.late_trigger) let_successor_start();
    take_rows<kMask, C>(p, slabs ? act : nullptr, part, rms);
    if (!slabs) {
        named_barrier(1, kSlabWarps * 32);
        return dense_rows<C>(p, int(blockIdx.x) - p.slab_blocks, red, rms);
    }
    asm volatile("bar.sync 15,%0;" ::"n"(kSlabThreads) : "memory");
    consume_slabs<kMask, C>(p, ring, act, red, rms, full, empty, first, last);
}

}  // namespace sparkinfer::cuda
