// gated_delta_scan.cuh — the gated delta rule from chunk to chunk of long segments.
// Computes   per chunk, S before it:  X = β (v − e^G K S);  V = T X;  O = e^G Q S + P V;
//            S ← e^{G_last} S + Kᵀ (e^{G_last−G} V);  y = O / sqrt(mean(O²) + eps) · norm ⊙ silu(z)
// Shapes     as gated_delta_prepare.cuh; S [n_v, 128 (k), 128 (v)] F32|BF16
// Mapping    a cluster of 4 blocks per (value head, long segments), 32 columns of v each, 8 warps. S lies in
//            registers, warp w rows 16·w … + 15, and for the products in shared memory as two BF16 planes. Warps
//            0 … 3 make K·S and X, 4 … 7 Q·S and O, 16 rows of the chunk each; every product is three of BF16.
//            The blocks tell each other Σo² of their columns.
// Memory     K, T and P come as bulk copies that each block makes a quarter of for all four, as soon as the
//            chunk before is done with theirs. Q comes as fragments. v channels and z once.
// Order      S in a state is read before anything is written; the ring is delta_ring's, behind this kernel. A
//            piece of the next chunk is copied when every warp of the cluster has told every block that it has
//            read the last one.
// Limits     heads of 128. 256 threads, ≤ 128 registers, 96 KB: two blocks of an H200's multiprocessor, as
//            not all of its clusters have four multiprocessors to themselves. sm_90+ (clusters).
// Numbers    docs/perf/h200.md
// Tested     tests/ops/gated_delta_chunks.cpp against float64.
#pragma once
#include "core/half.h"
#include "cuda/gated_delta_chunks.cuh"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/exchange.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/mma_bf16.cuh"

namespace sparkinfer::cuda {

constexpr int kScanBlocks = 4;  // of a cluster
constexpr int kScanColumns = kDeltaWidth / kScanBlocks;
constexpr int kScanThreads = 256;
constexpr int kScanPlane = kChunkRows * kScanColumns * 2;  // BF16 [64, 32]

// Dynamic shared memory. X holds v before it is X: a pair's first value where its high words go.
struct ScanShared {
    static constexpr int kCellsHigh = 0, kCellsLow = 2 * kScanPlane;  // S
    static constexpr int kX = 4 * kScanPlane;                         // high, low
    static constexpr int kV = 6 * kScanPlane, kDecayed = 8 * kScanPlane;
    static constexpr int kSquares = 10 * kScanPlane;  // [2][64 rows][4 blocks]
    static constexpr int kBarriers = kSquares + 2 * kChunkRows * kScanBlocks * 4;
    static constexpr int kKeys = kBarriers + 128, kSolved = kKeys + kChunkKeys,
                         kWithin = kSolved + kChunkTriangle, kGates = kWithin + kChunkTriangle;  // [2]
    static constexpr int kBytes = kGates + 2 * kChunkGates;
};
static_assert(ScanShared::kBytes <= 99 << 10);
// What comes by bulk copies: each has a barrier that says it is here, and one that all blocks have read it.
enum ScanPiece { kScanKeys, kScanSolved, kScanWithin };
constexpr int kScanSquares = 6;  // the first of two barriers behind those

// A quarter of the bytes, to the same place of every block of the cluster; completes on each one's barrier.
__device__ __forceinline__ void scan_share(uint32_t to, const std::byte* from, int bytes, int rank, uint32_t barrier) {
    const int quarter = bytes / kScanBlocks;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0],[%1],%2,[%3],%4;" ::"r"(
            to + uint32_t(rank * quarter)),
        "l"(from + rank * quarter), "r"(quarter), "r"(barrier), "h"(uint16_t((1 << kScanBlocks) - 1))
        : "memory");
}
__device__ __forceinline__ void scan_arrive(const uint64_t* barrier, int rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _,[%0];" ::"r"(peer_address(shared_address(barrier), rank))
                 : "memory");
}
__device__ __forceinline__ void scan_sync() { named_barrier(1, kScanThreads); }

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
__device__ __forceinline__ void scan_right(uint32_t (&high)[4], uint32_t (&low)[4], uint32_t plane, int low_at, int k,
                                           int n) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = plane + delta_cell_at(k * 16 + lane % 16, n * 2 + lane / 16);
    load_matrices_transposed(high, at);
    load_matrices_transposed(low, at + uint32_t(low_at));
}
__device__ __forceinline__ void scan_left(uint32_t (&high)[4], uint32_t (&low)[4], const uint4* fragment) {
    const uint4 h = fragment[0], l = fragment[32];
    high[0] = h.x, high[1] = h.y, high[2] = h.z, high[3] = h.w;
    low[0] = l.x, low[1] = l.y, low[2] = l.z, low[3] = l.w;
}

// One thread of a block, at one segment. Its accumulators are those of mma.m16n8k16: rows lane / 4 and + 8 of
// its 16, columns 2·(lane % 4) and + 1 of each 8.
struct ScanThread {
    const DeltaChunks& p;
    const GatedDelta& o;
    std::byte* shared;
    uint32_t base;  // its address
    int head, key_head, rank, warp, lane;
    int channel;  // of qkv: v of column `lane`
    int turn;     // chunks of this cluster before the current one
    const Segment* segment;
    int first_row, rows;  // the segment's
    float cell[4][4];  // S: [8 columns][…]
    float next_v[11];  // inputs of the next chunk's 8 rows, and of the 3 before

    __device__ __forceinline__ ScanThread(const DeltaChunks& chunks, std::byte* memory)
        : p(chunks), o(chunks.call.op), shared(memory), turn(0) {
        base = shared_address(memory);
        head = blockIdx.x / kScanBlocks;
        rank = cluster_rank();
        warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        const int n_k = o.state.key_heads;
        key_head = o.order == HeadOrder::block ? head / (o.state.value_heads / n_k) : head % n_k;
        channel = (2 * n_k + head) * kDeltaWidth + rank * kScanColumns + lane;
    }
    __device__ __forceinline__ uint64_t* barrier(int i) const {
        return reinterpret_cast<uint64_t*>(shared + ScanShared::kBarriers) + i;
    }
    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < 3; ++i) barrier_init(barrier(i), 1);
        barrier_init(barrier(3 + kScanKeys), 8 * kScanBlocks);
        barrier_init(barrier(3 + kScanSolved), 8 * kScanBlocks);
        barrier_init(barrier(3 + kScanWithin), 4 * kScanBlocks);
        for (int i = 0; i < 2; ++i) barrier_init(barrier(kScanSquares + i), 1);
        barrier_init_fence();
    }
    __device__ __forceinline__ void wait_for(ScanPiece piece) const { barrier_wait(barrier(piece), uint32_t(turn) & 1); }
    // The warp has read the piece.
    __device__ __forceinline__ void done_with(ScanPiece piece) const {
        __syncwarp();
        if (lane < kScanBlocks) scan_arrive(barrier(3 + piece), lane);
    }
    // One thread: the piece of `chunk`, which will be turn `when`.
    __device__ __forceinline__ void fetch(ScanPiece piece, int chunk, int when) const {
        if (when > 0) barrier_wait_alone(barrier(3 + piece), uint32_t(when - 1) & 1);
        const uint32_t b = shared_address(barrier(piece));
        const std::byte* of_head = p.head_of(chunk, head);
        if (piece == kScanKeys) {
            barrier_expect(barrier(piece), kChunkKeys);
            scan_share(base + ScanShared::kKeys, p.keys_of(chunk, key_head), kChunkKeys, rank, b);
        } else if (piece == kScanSolved) {
            barrier_expect(barrier(piece), kChunkTriangle + kChunkGates);
            scan_share(base + ScanShared::kSolved, of_head, kChunkTriangle, rank, b);
            scan_share(base + uint32_t(ScanShared::kGates + when % 2 * kChunkGates), of_head + 2 * kChunkTriangle,
                       kChunkGates, rank, b);
        } else {
            barrier_expect(barrier(piece), kChunkTriangle);
            scan_share(base + ScanShared::kWithin, of_head + kChunkTriangle, kChunkTriangle, rank, b);
        }
    }
    __device__ __forceinline__ const float* gates() const {
        return reinterpret_cast<const float*>(shared + ScanShared::kGates + turn % 2 * kChunkGates);
    }
    // Rows of a chunk that the warp has in K·S, Q·S and O. P's longer rows where T's are short.
    __device__ __forceinline__ int row_block() const { return warp < 4 ? warp : 7 - warp; }

    // A warp 8 rows, a lane a column.
    __device__ __forceinline__ void load_values(const DeltaChunk& chunk) {
        const int first = chunk.before + warp * 8 - 3, count = chunk.rows - warp * 8 + 3;
        const float* from = o.qkv.row(first_row + first) + channel;
#pragma unroll
        for (int i = 0; i < 11; ++i) {
            next_v[i] = 0;
            if (first + i >= 0 && i < count) next_v[i] = __ldcg(from + i * o.qkv.stride);
        }
        if (first >= 0 || segment->state_in < 0) return;
        const int start = delta_start(p.call, *segment);
#pragma unroll
        for (int i = 0; i < 3; ++i)
            if (first + i < 0) next_v[i] = __ldcg(delta_input_row(p.call, *segment, start, first + i) + channel);
    }
    __device__ __forceinline__ void store_values() {
        const float4 tap = __ldg(static_cast<const float4*>(o.conv.data) + channel);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float m = __fmul_rn(next_v[i], tap.x);
            m = __fmaf_rn(next_v[i + 1], tap.y, m);
            m = __fmaf_rn(next_v[i + 2], tap.z, m);
            m = fast_silu(__fmaf_rn(next_v[i + 3], tap.w, m));
            *reinterpret_cast<float*>(shared + ScanShared::kX + lane % 2 * kScanPlane +
                                      delta_cell_at(warp * 8 + i, lane / 8) + lane % 8 / 2 * 4) = m;
        }
    }
    __device__ __forceinline__ int cell_row(int half) const { return warp * 16 + half * 8 + lane / 4; }
    template <class Cell>
    __device__ __forceinline__ Cell* cells(int slot, int half) const {
        return reinterpret_cast<Cell*>(DeltaState(p.call, slot).s) +
               (int64_t(head) * kDeltaWidth + cell_row(half)) * kDeltaWidth + rank * kScanColumns + lane % 4 * 2;
    }
    __device__ __forceinline__ void load_cells() {
        const int slot = segment->state_in;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                float2 v = make_float2(0, 0);
                if (slot >= 0 && o.state.dtype == DType::bf16) {
                    const uint32_t two =
                        __ldcg(reinterpret_cast<const uint32_t*>(cells<uint16_t>(slot, half) + n * 8));
                    v = make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
                } else if (slot >= 0) {
                    v = __ldcg(reinterpret_cast<const float2*>(cells<float>(slot, half) + n * 8));
                }
                cell[n][half * 2] = v.x, cell[n][half * 2 + 1] = v.y;
            }
    }
    __device__ __forceinline__ void store_cells(const float (&c)[4][4], int slot) const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float x = c[n][half * 2], y = c[n][half * 2 + 1];
                if (o.state.dtype == DType::bf16)
                    *reinterpret_cast<uint32_t*>(cells<uint16_t>(slot, half) + n * 8) =
                        f32_to_bf16(x) | uint32_t(f32_to_bf16(y)) << 16;
                else
                    *reinterpret_cast<float2*>(cells<float>(slot, half) + n * 8) = make_float2(x, y);
            }
    }
    // Logged rows of state_in, with the roundings that they would have had as rows.
    __device__ __forceinline__ void fold(int accepted) {
        if (accepted <= 0) return;
        const DeltaState in(p.call, segment->state_in);
#pragma unroll 1
        for (int i = 0; i < accepted; ++i) {
            const int64_t entry = int64_t(i) * o.state.value_heads + head;
            const float keep = expf(__ldcg(in.log_g + entry));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float k = __ldcg(in.log_k + entry * kDeltaWidth + cell_row(half));
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const float2 d = __ldcg(reinterpret_cast<const float2*>(
                        in.log_d + entry * kDeltaWidth + rank * kScanColumns + n * 8 + lane % 4 * 2));
                    float(&c)[4] = cell[n];
                    c[half * 2] = __fmaf_rn(k, d.x, __fmul_rn(keep, c[half * 2]));
                    c[half * 2 + 1] = __fmaf_rn(k, d.y, __fmul_rn(keep, c[half * 2 + 1]));
                }
            }
        }
    }
    // Two values of a row into both planes.
    __device__ __forceinline__ void put(int plane, int low_at, int row, int n, float x, float y) const {
        uint32_t high, low;
        split_bf16(x, y, high, low);
        std::byte* to = shared + plane + delta_cell_at(row, n) + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) = high;
        *reinterpret_cast<uint32_t*>(to + low_at) = low;
    }
    __device__ __forceinline__ void share_cells() const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < 4; ++n)
                put(ScanShared::kCellsHigh, ScanShared::kCellsLow, cell_row(half), n, cell[n][half * 2],
                    cell[n][half * 2 + 1]);
    }
    __device__ __forceinline__ void read_step(float (&acc)[4][4], int k, const uint32_t (&high)[4],
                                              const uint32_t (&low)[4]) const {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint32_t b[4], b_low[4];
            scan_right(b, b_low, base + ScanShared::kCellsHigh, ScanShared::kCellsLow, k, n);
            scan_multiply(acc[2 * n], acc[2 * n + 1], high, low, b, b_low);
        }
    }
    __device__ __forceinline__ const uint4* queries(int chunk) const {
        return reinterpret_cast<const uint4*>(p.queries_of(chunk, key_head)) + row_block() * 8 * 64 + lane;
    }
    __device__ __forceinline__ void read_by_key(float (&acc)[4][4]) const;
    __device__ __forceinline__ void read_by_query(float (&acc)[4][4], uint4 (&q)[8], const uint4* from) const;
    __device__ __forceinline__ void make_x(const float (&acc)[4][4]) const;
    __device__ __forceinline__ void make_v(float (&v)[2][4]) const;
    __device__ __forceinline__ void put_decayed(const float (&v)[2][4], int last) const;
    __device__ __forceinline__ void update(float (&c)[4][4], int last) const;
    __device__ __forceinline__ void make_out(float (&acc)[4][4]) const;
    __device__ __forceinline__ void load_gate(float2 (&z)[2][4], const DeltaChunk& chunk) const;
    __device__ __forceinline__ void apply_gate(float (&out)[4][4], const float2 (&z)[2][4]) const;
    __device__ __forceinline__ void finish(const float (&out)[4][4], const DeltaChunk& chunk, int when) const;
    __device__ __forceinline__ void save(const float (&v)[2][4], const DeltaChunk& chunk) const;
};

// Warps 0 … 3: K·S.
__device__ __forceinline__ void ScanThread::read_by_key(float (&acc)[4][4]) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        uint32_t high[4], low[4];
        const uint32_t at = base + ScanShared::kKeys + delta_key_at(row_block() * 16 + lane % 16, 2 * k + lane / 16);
        load_matrices(high, at);
        load_matrices(low, at + kChunkPlane);
        read_step(acc, k, high, low);
    }
}
// Warps 4 … 7: Q·S. q: the first half of Q's fragments.
__device__ __forceinline__ void ScanThread::read_by_query(float (&acc)[4][4], uint4 (&q)[8], const uint4* from) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const int at = k % 4 * 2;
        const uint32_t high[4] = {q[at].x, q[at].y, q[at].z, q[at].w};
        const uint32_t low[4] = {q[at + 1].x, q[at + 1].y, q[at + 1].z, q[at + 1].w};
        read_step(acc, k, high, low);
        if (k >= 4) continue;
        q[at] = __ldcg(from + (k + 4) * 64);
        q[at + 1] = __ldcg(from + (k + 4) * 64 + 32);
    }
}

// Warps 0 … 3: v, where it lies, becomes X.
__device__ __forceinline__ void ScanThread::make_x(const float (&acc)[4][4]) const {
    const float* gate = gates();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + half * 8 + lane / 4;
        const float beta = gate[kChunkRows + row], keep = __expf(gate[row]);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            std::byte* at = shared + ScanShared::kX + delta_cell_at(row, n) + lane % 4 * 4;
            const float x = *reinterpret_cast<const float*>(at), y = *reinterpret_cast<const float*>(at + kScanPlane);
            put(ScanShared::kX, kScanPlane, row, n, beta * (x - keep * acc[n][half * 2]),
                beta * (y - keep * acc[n][half * 2 + 1]));
        }
    }
}

// V = T X: rows of block warp % 4, 16 columns.
__device__ __forceinline__ void ScanThread::make_v(float (&v)[2][4]) const {
    const int block = warp % 4, side = warp / 4;
    const uint4* triangle = reinterpret_cast<const uint4*>(shared + ScanShared::kSolved);
    float other[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) v[n][e] = other[n][e] = 0;
#pragma unroll 1
    for (int k = 0; k <= block; ++k) {
        uint32_t high[4], low[4], b[4], b_low[4];
        scan_left(high, low, triangle + delta_triangle(block, k) * 64 + lane);
        scan_right(b, b_low, base + ScanShared::kX, kScanPlane, k, side);
        mma_bf16(other[0], low, b[0], b[1]);
        mma_bf16(other[1], low, b[2], b[3]);
        mma_bf16(v[0], high, b[0], b[1]);
        mma_bf16(v[1], high, b[2], b[3]);
        mma_bf16(other[0], high, b_low[0], b_low[1]);
        mma_bf16(other[1], high, b_low[2], b_low[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) v[n][e] += other[n][e];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < 2; ++n)
            put(ScanShared::kV, kScanPlane, block * 16 + half * 8 + lane / 4, side * 2 + n, v[n][half * 2],
                v[n][half * 2 + 1]);
}
// What rows up to `last` still weigh in S after it.
__device__ __forceinline__ void ScanThread::put_decayed(const float (&v)[2][4], int last) const {
    const float* gate = gates();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp % 4 * 16 + half * 8 + lane / 4;
        const float weight = row <= last ? __expf(gate[last] - gate[row]) : 0.0f;
#pragma unroll
        for (int n = 0; n < 2; ++n)
            put(ScanShared::kDecayed, kScanPlane, row, warp / 4 * 2 + n, weight * v[n][half * 2],
                weight * v[n][half * 2 + 1]);
    }
}
__device__ __forceinline__ void ScanThread::update(float (&c)[4][4], int last) const {
    const float keep = __expf(gates()[last]);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) c[n][e] *= keep;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        uint32_t high[4], low[4];  // Kᵀ: rows are keys' columns
        const uint32_t at = base + ScanShared::kKeys +
                            delta_key_at(k * 16 + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
        load_matrices_transposed(high, at);
        load_matrices_transposed(low, at + kChunkPlane);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint32_t b[4], b_low[4];
            scan_right(b, b_low, base + ScanShared::kDecayed, kScanPlane, k, n);
            scan_multiply(c[2 * n], c[2 * n + 1], high, low, b, b_low);
        }
    }
}

// Warps 4 … 7: acc = Q·S becomes O, and Σo² of the block's columns go to all blocks.
__device__ __forceinline__ void ScanThread::make_out(float (&acc)[4][4]) const {
    const int block = row_block();
    const float* gate = gates();
    uint64_t* sent = barrier(kScanSquares + turn % 2);
    if (threadIdx.x == 128) barrier_expect(sent, kChunkRows * kScanBlocks * 4);
    const uint4* triangle = reinterpret_cast<const uint4*>(shared + ScanShared::kWithin);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float keep = __expf(gate[block * 16 + half * 8 + lane / 4]);
#pragma unroll
        for (int n = 0; n < 4; ++n) acc[n][half * 2] *= keep, acc[n][half * 2 + 1] *= keep;
    }
    wait_for(kScanWithin);
#pragma unroll 1
    for (int k = 0; k <= block; ++k) {
        uint32_t high[4], low[4];
        scan_left(high, low, triangle + delta_triangle(block, k) * 64 + lane);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint32_t b[4], b_low[4];
            scan_right(b, b_low, base + ScanShared::kV, kScanPlane, k, n);
            scan_multiply(acc[2 * n], acc[2 * n + 1], high, low, b, b_low);
        }
    }
    done_with(kScanWithin);
    float* squares = reinterpret_cast<float*>(shared + ScanShared::kSquares) + turn % 2 * kChunkRows * kScanBlocks;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) sum = fmaf(acc[n][half * 2 + e], acc[n][half * 2 + e], sum);
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        store_remote(squares + (block * 16 + half * 8 + lane / 4) * kScanBlocks + rank, sum, sent, lane % 4);
    }
}
__device__ __forceinline__ void ScanThread::load_gate(float2 (&z)[2][4], const DeltaChunk& chunk) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_block() * 16 + half * 8 + lane / 4;
        const float* from = o.z.row(first_row + chunk.before + row) + head * kDeltaWidth + rank * kScanColumns +
                            lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 4; ++n)
            z[half][n] = row < chunk.rows ? __ldcg(reinterpret_cast<const float2*>(from + n * 8)) : make_float2(0, 0);
    }
}
__device__ __forceinline__ void ScanThread::apply_gate(float (&out)[4][4], const float2 (&z)[2][4]) const {
    const float* norm = static_cast<const float*>(o.norm.data) + rank * kScanColumns + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float2 gain = __ldg(reinterpret_cast<const float2*>(norm + n * 8));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            out[n][half * 2] *= fast_silu(z[half][n].x) * gain.x;
            out[n][half * 2 + 1] *= fast_silu(z[half][n].y) * gain.y;
        }
    }
}
// Warps 4 … 7: y of a chunk, once the other blocks' Σo² are here.
__device__ __forceinline__ void ScanThread::finish(const float (&out)[4][4], const DeltaChunk& chunk, int when) const {
    barrier_wait_cluster(barrier(kScanSquares + when % 2), uint32_t(when / 2) & 1);
    const float4* squares = reinterpret_cast<const float4*>(shared + ScanShared::kSquares) + when % 2 * kChunkRows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_block() * 16 + half * 8 + lane / 4;
        const float4 s = squares[row];
        const float scale = rsqrtf(((s.x + s.y) + (s.z + s.w)) / kDeltaWidth + o.eps);
        if (row >= chunk.rows) continue;
        float* y = o.y.row(first_row + chunk.before + row) + head * kDeltaWidth + rank * kScanColumns + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 4; ++n)
            *reinterpret_cast<float2*>(y + n * 8) = make_float2(out[n][half * 2] * scale, out[n][half * 2 + 1] * scale);
    }
}

// States after rows inside the chunk. All threads; what decays is put there before and after.
__device__ __forceinline__ void ScanThread::save(const float (&v)[2][4], const DeltaChunk& chunk) const {
#pragma unroll 1
    for (int i = segment->first_save; i < segment->first_save + segment->saves; ++i) {
        const Save want = o.step.saves()[i];
        const int row = want.row - first_row - chunk.before;
        if (row < 0 || row >= chunk.rows - 1) continue;
        put_decayed(v, row);
        scan_sync();
        wait_for(kScanKeys);
        float kept[4][4];
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) kept[n][e] = cell[n][e];
        update(kept, row);
        store_cells(kept, want.state);
        scan_sync();
    }
}

// States after the chunk.
__device__ __forceinline__ void scan_save_end(const ScanThread& me, const DeltaChunk& chunk) {
#pragma unroll 1
    for (int i = me.segment->first_save; i < me.segment->first_save + me.segment->saves; ++i)
        if (me.o.step.saves()[i].row == me.first_row + chunk.before + chunk.rows - 1)
            me.store_cells(me.cell, me.o.step.saves()[i].state);
}
// Starts a segment: its state and first chunk.
__device__ __forceinline__ void scan_open(ScanThread& me, const DeltaLong& part) {
    if (threadIdx.x == 0)
        for (const ScanPiece piece : {kScanSolved, kScanKeys, kScanWithin}) me.fetch(piece, part.first_chunk, me.turn);
    me.segment = me.o.step.segments() + part.segment;
    me.first_row = me.segment->first_row;
    me.rows = me.segment->rows;
    me.load_cells();
    me.load_values(delta_chunk(part, 0, me.rows));
    me.fold(me.segment->state_in < 0 ? 0 : delta_accepted(me.o, *me.segment));
    me.store_values();
    me.share_cells();
    scan_sync();
}
__device__ __forceinline__ void scan_segment(ScanThread& me, const DeltaLong& part) {
    const bool upper = me.warp >= 4, copier = threadIdx.x == 0;
    scan_open(me, part);
    float acc[4][4];
#pragma unroll 1
    for (int c = 0; c < part.chunks; ++c, ++me.turn) {
        const int index = part.first_chunk + c;
        const bool more = c + 1 < part.chunks;
        if (upper) {
            const uint4* from = me.queries(index);
            uint4 q[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) q[i] = __ldcg(from + i * 32);
            if (c > 0) me.finish(acc, delta_chunk(part, c - 1, me.rows), me.turn - 1);
            if (more) me.load_values(delta_chunk(part, c + 1, me.rows));
            me.read_by_query(acc, q, from);
            me.wait_for(kScanSolved);
        } else {
            if (more) me.load_values(delta_chunk(part, c + 1, me.rows));
            me.wait_for(kScanKeys);
            me.read_by_key(acc);
            me.wait_for(kScanSolved);
            me.make_x(acc);
            if (copier && c > 0) me.fetch(kScanWithin, index, me.turn);
        }
        scan_sync();
        const DeltaChunk chunk = delta_chunk(part, c, me.rows);
        float v[2][4];
        me.make_v(v);
        me.done_with(kScanSolved);
        if (me.segment->saves > 0) me.save(v, chunk);
        me.put_decayed(v, chunk.rows - 1);
        scan_sync();
        if (copier && more) me.fetch(kScanSolved, index + 1, me.turn + 1);
        me.wait_for(kScanKeys);
        me.update(me.cell, chunk.rows - 1);
        me.done_with(kScanKeys);
        if (more) {
            me.share_cells();
            me.store_values();
            if (copier) me.fetch(kScanKeys, index + 1, me.turn + 1);
        }
        if (upper) {
            float2 z[2][4];
            me.load_gate(z, chunk);
            me.make_out(acc);
            me.apply_gate(acc, z);
        }
        if (me.segment->saves > 0) scan_save_end(me, chunk);
        scan_sync();
    }
    if (me.segment->state_out >= 0) me.store_cells(me.cell, me.segment->state_out);
    if (upper) me.finish(acc, delta_chunk(part, part.chunks - 1, me.rows), me.turn - 1);
}

// Kernel     delta_scan: 128 registers
__global__ void __cluster_dims__(kScanBlocks, 1, 1) __launch_bounds__(kScanThreads, 2)
    delta_scan(const __grid_constant__ DeltaChunks p) {
    extern __shared__ __align__(128) std::byte shared[];
    ScanThread me(p, shared);
    if (threadIdx.x == 0) me.init_barriers();
    __syncthreads();
    cluster_arrive_initialised();
    wait_for_predecessor();
    cluster_wait();
#pragma unroll 1
    for (int i = blockIdx.y; i < p.plan.counts[1]; i += gridDim.y) {
        scan_segment(me, p.plan.longs[i]);
        __syncthreads();
    }
    cluster_arrive();  // the others' arrivals come into this block's shared memory
    cluster_wait();
}

}  // namespace sparkinfer::cuda
