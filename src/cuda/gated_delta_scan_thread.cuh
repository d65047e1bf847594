// gated_delta_scan_thread.cuh — what the two halves of a block of delta_scan share: its memory, its barriers,
// its products.
// Computes   pieces of a chunk into shared memory; fragments of S, X and V
// Shapes     as gated_delta_scan.cuh
// Mapping    warps 0 … 7 and 8 … 15 of a block, each half numbered from 0.
// Memory     none of its own.
// Limits     one block's shared memory is within 99 KB.
// Tested     tests/ops/gated_delta_chunks.cpp against float64.
#pragma once
#include "core/half.h"
#include "cuda/gated_delta_chunks.cuh"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/mma_bf16.cuh"

namespace sparkinfer::cuda {

constexpr int kScanBlocks = 4;  // of a value head
constexpr int kScanColumns = kDeltaWidth / kScanBlocks;
constexpr int kScanThreads = 512, kScanHalf = 256;  // of a block; of those that carry S, and of the others
constexpr int kScanPlane = kChunkRows * kScanColumns * 2;  // BF16 [64, 32]

// Dynamic shared memory. X holds v before it is X: a pair's first value where its high words go.
struct ScanShared {
    static constexpr int kCellsHigh = 0, kCellsLow = 2 * kScanPlane;  // S
    static constexpr int kX = 4 * kScanPlane;                         // high, low
    static constexpr int kV = 6 * kScanPlane, kDecayed = 8 * kScanPlane;
    static constexpr int kBarriers = 10 * kScanPlane;
    static constexpr int kKeys = kBarriers + 128, kSolved = kKeys + kChunkKeys,
                         kWithin = kSolved + kChunkTriangle, kGates = kWithin + kChunkTriangle;  // [2]
    static constexpr int kBytes = kGates + 2 * kChunkGates;
};
static_assert(ScanShared::kBytes <= 99 << 10);
// What comes by bulk copies: each has a barrier that says it is here, and one that all who read it have.
enum ScanPiece { kScanKeys, kScanSolved, kScanWithin };

// Barriers of the block. Those that carry S meet at kScanCarry; at each other one half waits and the other
// goes on.
enum ScanMeeting {
    kScanCarry = 1,
    kScanCells,       // S of the turn is in shared memory: the others may read it
    kScanValues,      // v of the turn is
    kScanChange,      // V of the turn is
    kScanChangeRead,  // … and O is made of it
    kScanCellsRead,   // Q·S of the turn is made
};
__device__ __forceinline__ void scan_meet() { named_barrier(kScanCarry, kScanHalf); }
__device__ __forceinline__ void scan_await(ScanMeeting m) { named_barrier(m, kScanThreads); }
__device__ __forceinline__ void scan_tell(ScanMeeting m) {
    __syncwarp();
    asm volatile("bar.arrive %0,%1;" ::"r"(int(m)), "r"(kScanThreads) : "memory");
}

// d [16, 16] += a · b: low parts first.
__device__ __forceinline__ void scan_multiply(float (&d0)[4], float (&d1)[4], const uint32_t (&high)[4],
                                              const uint32_t (&low)[4], const uint32_t (&b)[4],
                                              const uint32_t (&b_low)[4]) {
    mma_bf16(d0, low, b[0], b[1]);
    mma_bf16(d1, low, b[2], b[3]);
    mma_bf16(d0, high, b_low[0], b_low[1]);
    mma_bf16(d1, high, b_low[2], b_low[3]);
    mma_bf16(d0, high, b[0], b[1]);
    mma_bf16(d1, high, b[2], b[3]);
}
// Fragments B of 16 rows (from 16·k) and 16 columns (from 16·n) of S, X or V.
__device__ __forceinline__ void scan_right(uint32_t (&high)[4], uint32_t (&low)[4], uint32_t plane,
                                           int low_at, int k, int n) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = plane + delta_cell_at(lane % 16, n * 2 + lane / 16) + uint32_t(k) * 1024;
    load_matrices_transposed(high, at);
    load_matrices_transposed(low, at + uint32_t(low_at));
}
__device__ __forceinline__ void scan_left(uint32_t (&high)[4], uint32_t (&low)[4], const uint4* fragment) {
    const uint4 h = fragment[0], l = fragment[32];
    high[0] = h.x, high[1] = h.y, high[2] = h.z, high[3] = h.w;
    low[0] = l.x, low[1] = l.y, low[2] = l.z, low[3] = l.w;
}

// One thread of a block, at one segment. Accumulators are those of mma.m16n8k16: rows lane / 4 and + 8 of 16,
// columns 2·(lane % 4) and + 1 of each 8.
struct ScanThread {
    const DeltaChunks& p;
    const GatedDelta& o;
    std::byte* shared;
    uint32_t base;   // its address
    int head, part;  // part of the head's columns
    int warp, lane;  // warp 0 … 7 of its half
    int turn;        // chunks of this block before the current one
    const Segment* segment;
    int first_row, rows, saves;  // the segment's

    __device__ __forceinline__ ScanThread(const DeltaChunks& chunks, std::byte* memory)
        : p(chunks), o(chunks.call.op), shared(memory), turn(0) {
        base = shared_address(memory);
        head = blockIdx.x / kScanBlocks;
        part = blockIdx.x % kScanBlocks;
        warp = threadIdx.x / 32 % 8;
        lane = threadIdx.x % 32;
    }
    __device__ __forceinline__ int key_head() const {
        const int n_k = o.state.key_heads;
        return o.order == HeadOrder::block ? head / (o.state.value_heads / n_k) : head % n_k;
    }
    __device__ __forceinline__ uint64_t* barrier(int i) const {
        return reinterpret_cast<uint64_t*>(shared + ScanShared::kBarriers) + i;
    }
    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < 6; ++i) barrier_init(barrier(i), i < 3 ? 1 : 8);
        barrier_init_fence();
    }
    __device__ __forceinline__ void wait_for(ScanPiece piece) const {
        barrier_wait(barrier(piece), uint32_t(turn) & 1);
    }
    // The warp, one of 8, has read the piece.
    __device__ __forceinline__ void done_with(ScanPiece piece) const {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier(3 + piece));
    }
    // One thread: the piece of `chunk`, which will be turn `when`.
    __device__ __forceinline__ void fetch(ScanPiece piece, int chunk, int when) const {
        if (when > 0) barrier_wait_alone(barrier(3 + piece), uint32_t(when - 1) & 1);
        uint64_t* arrived = barrier(piece);
        const std::byte* of_head = p.head_of(chunk, head);
        if (piece == kScanKeys) {
            barrier_expect(arrived, kChunkKeys);
            bulk_copy_kept(shared + ScanShared::kKeys, p.keys_of(chunk, key_head()), kChunkKeys, arrived);
        } else if (piece == kScanSolved) {
            barrier_expect(arrived, kChunkTriangle + kChunkGates);
            bulk_copy_kept(shared + ScanShared::kSolved, of_head, kChunkTriangle, arrived);
            bulk_copy_kept(shared + ScanShared::kGates + when % 2 * kChunkGates, of_head + 2 * kChunkTriangle,
                           kChunkGates, arrived);
        } else {
            barrier_expect(arrived, kChunkTriangle);
            bulk_copy_kept(shared + ScanShared::kWithin, of_head + kChunkTriangle, kChunkTriangle, arrived);
        }
    }
    __device__ __forceinline__ const float* gates() const {
        return reinterpret_cast<const float*>(shared + ScanShared::kGates + turn % 2 * kChunkGates);
    }
    __device__ __forceinline__ int side() const { return warp / 4; }  // 16 columns of the 32
    // Two values of a row into both planes.
    __device__ __forceinline__ void put(int plane, int low_at, int row, int n, float x, float y) const {
        uint32_t high, low;
        split_bf16(x, y, high, low);
        std::byte* to = shared + plane + delta_cell_at(row, n) + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) = high;
        *reinterpret_cast<uint32_t*>(to + low_at) = low;
    }
    // acc [16, 16] += 16 columns of a fragment · 16 rows of S.
    __device__ __forceinline__ void read_step(float (&acc)[2][4], int k, const uint32_t (&high)[4],
                                              const uint32_t (&low)[4]) const {
        uint32_t b[4], b_low[4];
        scan_right(b, b_low, base + ScanShared::kCellsHigh, ScanShared::kCellsLow, k, side());
        scan_multiply(acc[0], acc[1], high, low, b, b_low);
    }
};
__device__ __forceinline__ void scan_clear(float (&acc)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
}

}  // namespace sparkinfer::cuda
