// gated_delta_chunks.cuh — which segments of a step the chunk kernels take, their chunks, and what lies
// between those kernels in scratch.
// Computes   ops.h: GatedDelta, long segments: the list of their chunks
// Shapes     rank [T]   long segments [≤ 32]   chunks [T / 64 + 2 · long segments]
// Mapping    delta_plan: one block, a thread per segment.
// Memory     the step's segments; two rows of each.
// Limits     chunks of 64 rows, cut where a row's index is a multiple of 64, so that a sequence is cut alike
//            however its steps are. Beyond 32 long segments the others run row by row.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/gated_delta_chunks.cpp against float64.
#pragma once
#include "cuda/gated_delta_state.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

constexpr int kChunkRows = 64;
constexpr int kMostLong = 32;  // segments of a step in chunks

struct DeltaChunk {
    int32_t segment;
    int32_t before;  // rows of the segment before the chunk's
    int32_t rows;    // 1 … 64
};
struct DeltaLong {
    int32_t segment, first_chunk, chunks;
    int32_t first;  // index of the first row in its chunk: 0 … 63
};
// Chunk `c` of a long segment.
__device__ __forceinline__ DeltaChunk delta_chunk(const DeltaLong& part, int c, int rows) {
    const int from = c ? c * kChunkRows - part.first : 0;
    return {part.segment, from, min((c + 1) * kChunkRows - part.first, rows) - from};
}

// In scratch.
struct DeltaPlan {
    int32_t* counts;  // {chunks, long segments}
    int32_t* rank;    // [T] by segment: its place among the long ones, or -1
    DeltaLong* longs;
    DeltaChunk* chunks;
};

// Bytes of one chunk's parts in scratch. A block of 16 × 16 is a fragment A of mma.m16n8k16, 16 bytes a lane,
// as a BF16 part and what that leaves.
constexpr int kChunkPlane = kChunkRows * kDeltaWidth * 2;     // BF16
constexpr int kChunkKeys = 2 * kChunkPlane;                   // K as shared memory has it: high, low
constexpr int kChunkQueries = 2 * kChunkPlane;                // Q [row block 4][column block 8][high, low]
constexpr int kChunkTriangle = 10 * 2 * 512;                  // [block (i, j ≤ i)][high, low]
constexpr int kChunkGates = 2 * kChunkRows * 4;               // G, β
constexpr int kChunkHead = 2 * kChunkTriangle + kChunkGates;  // T, P, gates of one value head
static_assert(kChunkKeys % 64 == 0 && kChunkHead % 64 == 0, "blocks of a cluster copy a share each");

struct DeltaChunks {
    DeltaCall call;
    DeltaPlan plan;
    std::byte* keys;     // [chunk][key head] kChunkKeys
    std::byte* queries;  // [chunk][key head] kChunkQueries
    std::byte* heads;    // [chunk][value head] kChunkHead
    float* squares;      // [row][value head][8] Σo² of 16 columns each
    __device__ __forceinline__ float* squares_of(int row, int value_head) const {
        return squares + (int64_t(row) * call.op.state.value_heads + value_head) * 8;
    }
    __device__ __forceinline__ std::byte* keys_of(int chunk, int key_head) const {
        return keys + (int64_t(chunk) * call.op.state.key_heads + key_head) * kChunkKeys;
    }
    __device__ __forceinline__ std::byte* queries_of(int chunk, int key_head) const {
        return queries + (int64_t(chunk) * call.op.state.key_heads + key_head) * kChunkQueries;
    }
    __device__ __forceinline__ std::byte* head_of(int chunk, int value_head) const {
        return heads + (int64_t(chunk) * call.op.state.value_heads + value_head) * kChunkHead;
    }
};

HD constexpr int delta_triangle(int i, int j) { return i * (i + 1) / 2 + j; }

// 16 bytes `column8` (of 8 columns) of a row of K in shared memory, and of S, X or V [rows, 32 columns].
__device__ __forceinline__ uint32_t delta_key_at(int row, int column8) {
    return uint32_t(row * 256 + ((column8 ^ (row & 7)) << 4));
}
__device__ __forceinline__ uint32_t delta_cell_at(int row, int column8) {
    return uint32_t(row * 64 + ((column8 ^ ((row >> 1) & 3)) << 4));
}

// The inputs of a channel before the segment's first row, or null for zeros.
__device__ __forceinline__ const float* delta_input_row(const DeltaCall& p, const Segment& g, int start,
                                                        int r) {
    if (r >= 0) return p.op.qkv.row(g.first_row + r);
    if (g.state_in < 0) return nullptr;
    return DeltaState(p, g.state_in).ring + int64_t(delta_column(start, r)) * p.op.state.channels;
}
__device__ __forceinline__ int delta_start(const DeltaCall& p, const Segment& g) {
    return g.state_in < 0 ? 0 : __ldcg(&DeltaState(p, g.state_in).header->position) + delta_accepted(p.op, g);
}

// Prompt rows in number: they are neither logged nor ever absent.
__device__ inline bool delta_could_be_long(const GatedDelta& o, const Segment& g) {
    if (g.rows <= kMaxVerifyRows) return false;
    const uint32_t flags = o.step.rows()[g.first_row].flags | o.step.rows()[g.first_row + g.rows - 1].flags;
    return !(flags & (kRowVerify | kRowFromCursor));
}

// Kernel     delta_plan: 40 registers, 264 bytes
__global__ void __launch_bounds__(256) delta_plan(const __grid_constant__ DeltaChunks p) {
    __shared__ int longs[32], chunks[32];
    wait_for_predecessor();
    let_successor_start();
    const GatedDelta& o = p.call.op;
    const int segments = o.step.header().segments, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int long_base = 0, chunk_base = 0;
    for (int base = 0; base < segments; base += int(blockDim.x)) {
        const int index = base + int(threadIdx.x);
        Segment g{};
        int first = 0, count = 0;
        if (index < segments) {
            g = o.step.segments()[index];
            if (delta_could_be_long(o, g)) {
                first = o.step.rows()[g.first_row].index % kChunkRows;
                count = (first + g.rows + kChunkRows - 1) / kChunkRows;
            }
        }
        const unsigned ballot = __ballot_sync(kWholeWarp, count > 0);
        if (lane == 0) longs[warp] = __popc(ballot);
        __syncthreads();
        int rank = long_base + __popc(ballot & ((1u << lane) - 1));
        for (int w = 0; w < warp; ++w) rank += longs[w];
        if (rank >= kMostLong) count = 0;
        int sum = count;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(kWholeWarp, sum, d);
            if (lane >= d) sum += other;
        }
        if (lane == 31) chunks[warp] = sum;
        __syncthreads();
        int chunk = chunk_base + sum - count;
        for (int w = 0; w < warp; ++w) chunk += chunks[w];
        if (index < segments) p.plan.rank[index] = count ? rank : -1;
        const DeltaLong part{index, chunk, count, first};
        if (count) p.plan.longs[rank] = part;
        for (int c = 0; c < count; ++c) p.plan.chunks[chunk + c] = delta_chunk(part, c, g.rows);
        for (int w = 0; w < int(blockDim.x / 32); ++w) long_base += longs[w], chunk_base += chunks[w];
        __syncthreads();
    }
    if (threadIdx.x == 0) p.plan.counts[0] = chunk_base, p.plan.counts[1] = min(long_base, kMostLong);
}

}  // namespace sparkinfer::cuda
