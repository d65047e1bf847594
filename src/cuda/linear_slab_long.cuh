// linear_slab_long.cuh — linear_slab.cuh for rows of any length, and for up to eight of them.
// Computes   ops.h: NormLinear, LinearAdd, LinearGlu, the head of Output
// Shapes     as linear_slab.cuh, T ≤ 8, K ≤ 32,768
// Mapping    12 warps that multiply, one that requests, three that add up. K goes by in passes of up to 3072
//            columns; in a pass a warp has the same item of 256 columns of every slab of its block, its
//            activations in registers: made of x in shared memory for one row, read as slab_planes.cuh has
//            made them for more. A slab's sum over a pass meets in shared memory and is added to those of the
//            passes before. Few slabs with long rows: two blocks (a cluster) share slabs, half of K each, and
//            the first adds up what both have.
// Memory     as linear_slab.cuh; weights are copied by pieces: a slab's items of a pass.
// Limits     as linear_slab.cuh; 120 registers, so that slab_planes' blocks find room beside it.
// Numbers    docs/perf/h200.md
// Tested     as linear_slab.cuh
#pragma once
#include "cuda/lib/exchange.cuh"
#include "cuda/linear_slab.cuh"
#include "cuda/slab_planes.cuh"

namespace sparkinfer::cuda {

constexpr int kLongWarps = 12, kLongAdders = 3, kLongThreads = (kLongWarps + 1 + kLongAdders) * 32;

// Shared memory of linear_slab_long: this, then for one row x and its gains [items of a pass · 256] each, the
// sums of the passes so far [slabs of a round][T][16], those of the cluster's other blocks, sums of a pass,
// the ring.
template <int kTokens>
struct alignas(128) LongShared {
    alignas(16) float squares[kTokens][kMostItems];
    PlaneItem planes[kTokens == 1 ? kLongWarps : 1];
    float2 factors[kMaxParts];
    float rms[kTokens];
    uint64_t x_full, x_empty, full[kMaxStages], empty[kMaxStages];
    uint64_t sums_full[2], sums_empty[2];  // halves of `red`
};
// Floats of x and gains.
template <int kTokens>
HD constexpr int long_row_floats(const SlabLinear& p) {
    return kTokens == 1 ? (p.norm ? 2 : 1) * p.warps * kSlabColumns : 0;
}

// The part of K that a block has, in items.
struct LongRange {
    int first, count;
    __device__ __forceinline__ LongRange(const SlabLinear& p, int rank)
        : first(rank * p.range_items), count(min(p.range_items, p.columns / kSlabColumns - first)) {}
};
// Pieces in the order they are taken: rounds of slabs, passes, slabs.
struct LongPiece {
    int round = 0, pass = 0, slab = 0;  // first slab of the round; of the block's
    __device__ __forceinline__ void advance(const SlabLinear& p, int count) {
        if (++slab < min(round + p.round, count)) return;
        if (++pass == p.passes) pass = 0, round += p.round;
        slab = round;
    }
};
__device__ __forceinline__ int items_of_pass(const SlabLinear& p, const LongRange& range, int pass) {
    return min(p.warps, range.count - pass * p.warps);
}

template <int kMask>
__device__ __forceinline__ void request_piece(const SlabLinear& p, std::byte* ring, uint64_t* full,
                                              const SlabShare& share, const LongRange& range,
                                              const LongPiece& piece, int stage) {
    const int slab = share.first + piece.slab;
    const SlabPart& part = p.part[part_of(p, slab)];
    const int item = slab_item_bytes<kMask>(part.kind), bytes = items_of_pass(p, range, piece.pass) * item;
    const int64_t at = int64_t(slab) * (p.columns / kSlabColumns) + range.first + piece.pass * p.warps;
    barrier_expect(full + stage, bytes);
    bulk_copy(ring + stage * p.stage_bytes, part.data + at * item, bytes, full + stage);
}

// One thread, one row: a pass's columns of the gains (once before the wait), and then of x.
__device__ __forceinline__ void request_pass_gains(const SlabLinear& p, float* x, uint64_t* x_full,
                                                   const LongRange& range, int pass) {
    const int bytes = items_of_pass(p, range, pass) * kSlabColumns * 4,
              at = (range.first + pass * p.warps) * kSlabColumns;
    barrier_expect(x_full, (p.norm ? 2 : 1) * bytes);
    if (p.norm) bulk_copy_kept(x + p.warps * kSlabColumns, p.norm + at, bytes, x_full);
}
__device__ __forceinline__ void request_pass_row(const SlabLinear& p, float* x, uint64_t* x_full,
                                                 const LongRange& range, int pass) {
    const int bytes = items_of_pass(p, range, pass) * kSlabColumns * 4,
              at = (range.first + pass * p.warps) * kSlabColumns;
    bulk_copy_kept(x, source_row(p, 0) + at, bytes, x_full);
}

// The warp that requests. `x`: of a pass.
template <int kMask, int kTokens>
__device__ __forceinline__ void long_produce(const SlabLinear& p, LongShared<kTokens>& s, float* x,
                                             std::byte* ring, const SlabShare& share,
                                             const LongRange& range) {
    const int lane = threadIdx.x % 32, pieces = share.count * p.passes;
    init_ring(&s.x_full, s.full, s.empty, p.stages, kLongWarps);
    if (lane == 0) {
        barrier_init(&s.x_empty, kLongWarps);
        for (int i = 0; i < 2; ++i)
            barrier_init(s.sums_full + i, kLongWarps), barrier_init(s.sums_empty + i, kLongAdders);
        barrier_init_fence();
        if (kTokens == 1) request_pass_gains(p, x, &s.x_full, range, 0);
    }
    __syncwarp();
    LongPiece piece;
#pragma unroll 1
    for (int i = 0; i < lane; ++i) piece.advance(p, share.count);
    if (lane < min(p.stages, pieces)) request_piece<kMask>(p, ring, s.full, share, range, piece, lane);
    if (lane < kMaxParts && p.part[lane].factor) s.factors[lane] = __ldg(p.part[lane].factor);
    __syncthreads();
    wait_for_predecessor();
    if (lane != 0) return;
    if (kTokens == 1) request_pass_row(p, x, &s.x_full, range, 0);
#pragma unroll 1
    for (int i = 0; i < p.stages; ++i) piece.advance(p, share.count);
    const int rounds = (share.count + p.round - 1) / p.round;
    int asked = 0;  // passes of all rounds whose x has been requested
    const auto ask_until = [&](int pass) {
#pragma unroll 1
        while (kTokens == 1 && asked < pass) {
            barrier_wait_alone(&s.x_empty, asked & 1);
            const int next = ++asked % p.passes;
            request_pass_gains(p, x, &s.x_full, range, next);
            request_pass_row(p, x, &s.x_full, range, next);
        }
    };
    Slot slot{0};
#pragma unroll 1
    for (int n = p.stages; n < pieces; ++n) {
        ask_until(piece.round / p.round * p.passes + piece.pass);
        barrier_wait_alone(s.empty + slot.stage, slot.turn & 1);
        request_piece<kMask>(p, ring, s.full, share, range, piece, slot.stage);
        slot.advance(1, p.stages);
        piece.advance(p, share.count);
    }
    ask_until(rounds * p.passes - 1);
}

// A warp's work on the block's slabs.
template <int kMask, int kTokens, int kBlocks>
struct LongConsumer {
    static constexpr int kTiles = tiles_of(kTokens), kSums = red_floats(kTokens, kLongWarps);
    using Of = Fragments<kMask, kTokens == 1 ? 1 : kTileTokens>;
    const SlabLinear& p;
    LongShared<kTokens>& s;
    float *x, *acc, *remote, *red;  // red: [2][batch][kSums]
    std::byte* ring;
    const SlabShare share;
    const LongRange range;
    int rank, warp, lane;
    Slot slot{0};
    int used = 0, batches = 0;  // half of red; batches before this one

    __device__ __forceinline__ void take(Of (&f)[kTiles], int pass) {
        const int item = range.first + pass * p.warps + warp;
        if constexpr (kTokens == 1) {
            const float* own = x + warp * kSlabColumns;
            make_planes<kMask>(own, p.norm ? own + p.warps * kSlabColumns : nullptr, s.planes[warp],
                               &s.squares[0][item], lane);
            __syncwarp();
            take_planes(f[0], s.planes[warp], lane);
        } else {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                read_planes(f[tile], p.planes + (item * kTiles + tile) * kPlanePiece, lane);
        }
    }
    // 1/rms of the rows, by warp `own` of those who add up.
    __device__ __forceinline__ void find_rms(int own) {
        if (!p.norm) return;
        const int items = p.columns / kSlabColumns;
        for (int r = own; r < p.rows; r += kLongAdders) {
            if constexpr (kTokens > 1) {
                for (int i = lane; i < items; i += 32)
                    s.squares[r][i] = load_l2(p.squares + r * kMostItems + i);
                __syncwarp();
            }
            const float v = rms_of(s.squares[r], items, p.inverse_columns, p.eps, source_row(p, r));
            if (lane == 0) s.rms[r] = v;
        }
        named_barrier(3, kLongAdders * 32);
    }
    // Adds up slabs `last - waiting + 1` … `last` of the block over a pass: the share of warp `own`. Half a
    // warp has a row of x and a slab, each lane a row of the slab. Fours of items in one order, whatever the
    // passes.
    __device__ __forceinline__ void add_up(int round, int pass, int last, int waiting, int own) {
        const int rows = kTokens == 1 ? 1 : p.rows, all = waiting * rows, place = lane % 16,
                  fours = (items_of_pass(p, range, pass) + 3) / 4;
#pragma unroll 1
        for (int first = own * 2; first < all; first += kLongAdders * 2) {
            const int q = min(first + lane / 16, all - 1), b = kTokens == 1 ? q : q >= rows, r = q - b * rows,
                      i = last - waiting + 1 + b;
            const float4* v = reinterpret_cast<const float4*>(red + (used * p.batch + b) * kSums +
                                                              r * red_floats(1, kLongWarps) +
                                                              place * red_stride(kLongWarps));
            const int at = ((i - round) * kTokens + r) * 16 + place;
            float sum = pass ? acc[at] : 0;
#pragma unroll
            for (int j = 0; j < kLongWarps / 4; ++j) {
                const float4 x = v[j];
                if (j < fours) sum += (x.x + x.y) + (x.z + x.w);
            }
            const bool there = first + lane / 16 < all;
            if (pass + 1 < p.passes || (kBlocks > 1 && rank == 0)) {
                if (there) acc[at] = sum;
            } else if (kBlocks > 1) {
                float* to = remote + (rank - 1) * p.round * kTokens * 16 + at;
                if (there) peer_store(peer_address(shared_address(to), 0), sum);
            } else {
                give_long(share.first + i, r, sum, there);
            }
        }
    }
    // The finished sum of row `lane % 16` of a slab for row r of x, to y. All lanes.
    __device__ __forceinline__ void give_long(int slab, int r, float v, bool there) {
        const SlabPart& part = p.part[part_of(p, slab)];
        if (p.norm) v *= s.rms[r];
        float* y = part.y + r * part.y_stride;
        const int place = lane % 16;
        if (p.mode == SlabMode::glu) {
            v = fast_silu(v) * __shfl_sync(kWholeWarp, v, (lane & 16) + lane % 8 + 8);
            if (there && place < 8) y[slab * 8 + place] = v;
        } else if (there) {
            y += slab * 16 + place;
            *y = p.mode == SlabMode::add ? load_l2(y) + v : v;
        }
    }
    __device__ __forceinline__ void slabs_of_pass(const Of (&f)[kTiles], int round, int end, int pass) {
        const bool mine = warp < items_of_pass(p, range, pass);
        int waiting = 0;
#pragma unroll 1
        for (int i = round; i < end; ++i) {
            barrier_wait(s.full + slot.stage, slot.turn & 1);
            const int of = p.parts > 1 ? part_of(p, share.first + i) : 0;
            const SlabKind kind = p.part[of].kind;
            const std::byte* item = ring + slot.stage * p.stage_bytes + warp * slab_item_bytes<kMask>(kind);
            SlabSums sums[kTiles] = {};
            if (mine) item_of<kTokens>(kind, item, f, s.factors[of], sums, lane);
            __syncwarp();
            if (lane == 0) barrier_arrive(s.empty + slot.stage);
            slot.advance(1, p.stages);
            if (!waiting && batches > 1) barrier_wait(s.sums_empty + used, (batches / 2 - 1) & 1);
            float* to = red + (used * p.batch + waiting) * kSums;
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                store_sums<kTokens>(sums[tile], to + tile * red_floats(kTileTokens, kLongWarps), kLongWarps,
                                    warp, lane);
            if (++waiting < p.batch && i + 1 < end) continue;
            __syncwarp();
            if (lane == 0) barrier_arrive(s.sums_full + used);
            used ^= 1, ++batches, waiting = 0;
        }
    }
    // A warp that multiplies.
    __device__ __forceinline__ void run() {
        int done = 0;  // passes of all rounds
#pragma unroll 1
        for (int round = 0; round < share.count; round += p.round)
#pragma unroll 1
            for (int pass = 0; pass < p.passes; ++pass, ++done) {
                Of f[kTiles];
                if (kTokens == 1) barrier_wait(&s.x_full, done & 1);
                if (warp < items_of_pass(p, range, pass)) take(f, pass);
                if constexpr (kTokens == 1) {
                    __syncwarp();
                    if (lane == 0) barrier_arrive(&s.x_empty);
                }
                slabs_of_pass(f, round, min(round + p.round, share.count), pass);
            }
    }
    // A warp that adds up, `own` of kLongAdders.
    __device__ __forceinline__ void run_adder(int own) {
        if (kTokens > 1) find_rms(own);
#pragma unroll 1
        for (int round = 0; round < share.count; round += p.round)
#pragma unroll 1
            for (int pass = 0; pass < p.passes; ++pass) {
                const int end = min(round + p.round, share.count);
#pragma unroll 1
                for (int i = round; i < end; i += p.batch) {
                    const int waiting = min(p.batch, end - i);
                    barrier_wait(s.sums_full + used, (batches / 2) & 1);
                    if (kTokens == 1 && i == 0 && pass + 1 == p.passes) find_rms(own);
                    add_up(round, pass, i + waiting - 1, waiting, own);
                    __syncwarp();
                    if (lane == 0) barrier_arrive(s.sums_empty + used);
                    used ^= 1, ++batches;
                }
            }
    }
    // What all blocks of the cluster have, by its first: warp `own` of `warps`.
    __device__ __forceinline__ void merge(int own, int warps) {
        cluster_arrive();
        if (rank) return;
        cluster_wait();
#pragma unroll 1
        for (int first = own * 2; first < share.count * p.rows; first += warps * 2) {
            const bool there = first + lane / 16 < share.count * p.rows;
            const int q = there ? first + lane / 16 : first, i = q / p.rows, r = q - i * p.rows,
                      at = (i * kTokens + r) * 16 + lane % 16;
            float v = acc[at];
#pragma unroll
            for (int other = 1; other < kBlocks; ++other)
                v += remote[(other - 1) * p.round * kTokens * 16 + at];
            give_long(share.first + i, r, v, there);
        }
    }
};

// kBlocks: of a cluster, which share slabs.
// Kernel     linear_slab_long: 120 registers
template <int kMask, int kTokens, int kBlocks>
__global__ void __cluster_dims__(kBlocks, 1, 1) __maxnreg__(120)
    linear_slab_long(const __grid_constant__ SlabLinear p) {
    extern __shared__ __align__(128) std::byte shared[];
    const int rank = kBlocks > 1 ? cluster_rank() : 0, block = int(blockIdx.x) / kBlocks,
              lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (kBlocks > 1) cluster_arrive_initialised();
    let_successor_start();
    if (block >= p.slab_blocks) {
        if (kBlocks == 1 && block < p.slab_blocks + p.dense_blocks && warp < kSlabWarps)
            return dense_rows<kTokens>(p, block - p.slab_blocks, reinterpret_cast<float*>(shared));
        wait_for_predecessor();
        return;
    }
    LongShared<kTokens>& s = *reinterpret_cast<LongShared<kTokens>*>(shared);
    float* x = reinterpret_cast<float*>(&s + 1);
    float* acc = x + long_row_floats<kTokens>(p);
    float* remote = acc + p.round * kTokens * 16;
    float* red = remote + (kBlocks - 1) * p.round * kTokens * 16;
    std::byte* ring = shared + p.ring_at;
    const SlabShare share(p, block);
    const LongRange range(p, rank);
    if (warp == kLongWarps) return long_produce<kMask, kTokens>(p, s, x, ring, share, range);
    if (threadIdx.x < kTokens)  // what rms_of reads behind the items
        for (int i = p.columns / kSlabColumns; i % 4; ++i) s.squares[threadIdx.x][i] = 0;
    __syncthreads();
    wait_for_predecessor();
    LongConsumer<kMask, kTokens, kBlocks> c{p, s, x, acc, remote, red, ring, share, range, rank, warp, lane};
    if (kBlocks > 1) cluster_wait();
    // Those who add up follow the one who requests.
    const bool adds = warp > kLongWarps;
    if (adds)
        c.run_adder(warp - kLongWarps - 1);
    else
        c.run();
    if constexpr (kBlocks > 1) c.merge(adds ? warp - 1 : warp, kLongWarps + kLongAdders);
}

}  // namespace sparkinfer::cuda
