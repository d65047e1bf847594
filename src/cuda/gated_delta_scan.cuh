// gated_delta_scan.cuh — the gated delta rule from chunk to chunk of long segments.
// Computes   per chunk, S before it:  X = β (v − e^G K S);  V = T X;  O = e^G Q S + P V;
//            S ← e^{G_last} S + Kᵀ (e^{G_last−G} V);  y = O / sqrt(mean(O²) + eps) · norm ⊙ silu(z)
// Shapes     as gated_delta_prepare.cuh; S [n_v, 128 (k), 128 (v)] F32|BF16
// Mapping    a cluster of 4 blocks per (value head, long segments), 32 columns of v each, 8 warps. S lies in
//            registers, warp w rows 16·w … + 15, and for the products in shared memory as two BF16 planes. Warps
//            0 … 3 make K·S and X, 4 … 7 Q·S and O, 16 rows of the chunk each; every product is three of BF16.
//            The blocks tell each other Σo² of their columns; y follows in the next chunk.
// Memory     K, T and P come as bulk copies that each block makes a quarter of for all four, a chunk ahead
//            where two stages fit. Q comes as fragments. v channels and z once.
// Order      S in a state is read before anything is written; the ring is delta_ring's, behind this kernel.
// Limits     heads of 128. Shared memory 97 KB with one stage, 149 KB with two. sm_90+ (clusters).
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
    static constexpr int kStages = kBarriers + 128;
    static constexpr int kStage = kChunkKeys + kChunkHead;
    HD static constexpr int bytes(int stages) { return kStages + stages * kStage; }
};
static_assert(ScanShared::bytes(1) <= 99 << 10);

// A quarter of the bytes, to the same place of every block of the cluster; completes on each one's barrier.
__device__ __forceinline__ void scan_share(uint32_t to, const std::byte* from, int bytes, int rank, uint32_t barrier) {
    const int quarter = bytes / kScanBlocks;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0],[%1],%2,[%3],%4;" ::"r"(
            to + uint32_t(rank * quarter)),
        "l"(from + rank * quarter), "r"(quarter), "r"(barrier), "h"(uint16_t((1 << kScanBlocks) - 1))
        : "memory");
}
__device__ __forceinline__ void scan_store_remote(const void* to, float value, int rank) {
    asm volatile("st.shared::cluster.f32 [%0],%1;" ::"r"(peer_address(shared_address(to), rank)), "f"(value) : "memory");
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

// One thread of a block, at one segment. kLower: of warps 0 … 3. Its accumulators are those of mma.m16n8k16:
// rows lane / 4 and + 8 of its 16, columns 2·(lane % 4) and + 1 of each 8.
template <int kStages>
struct ScanThread {
    const DeltaChunks& p;
    const GatedDelta& o;
    std::byte* shared;
    uint32_t base;  // its address
    int head, key_head, rank, warp, lane;
    int channel;     // of qkv: v of column `lane`
    float4 tap;      // its weights
    Segment g;
    int start;       // ring position of the segment's first row
    float cell[4][4];  // S: [8 columns][…]
    float out[4][4];   // warps 4 … 7: O of the chunk before, by [8 columns]
    float next_v[11];  // inputs of the next chunk's 8 rows, and of the 3 before

    __device__ __forceinline__ ScanThread(const DeltaChunks& chunks, std::byte* memory)
        : p(chunks), o(chunks.call.op), shared(memory) {
        base = shared_address(memory);
        head = blockIdx.x / kScanBlocks;
        rank = cluster_rank();
        warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        const int n_k = o.state.key_heads;
        key_head = o.order == HeadOrder::block ? head / (o.state.value_heads / n_k) : head % n_k;
        channel = (2 * n_k + head) * kDeltaWidth + rank * kScanColumns + lane;
        tap = __ldg(static_cast<const float4*>(o.conv.data) + channel);
    }
    __device__ __forceinline__ uint64_t* barrier(int stage) const {
        return reinterpret_cast<uint64_t*>(shared + ScanShared::kBarriers) + stage;
    }
    __device__ __forceinline__ int stage_at(int stage) const { return ScanShared::kStages + stage * ScanShared::kStage; }
    __device__ __forceinline__ const float* gates(int stage) const {
        return reinterpret_cast<const float*>(shared + stage_at(stage) + kChunkKeys + 2 * kChunkTriangle);
    }
    // Rows of a chunk that the warp has in K·S, Q·S and O. P's longer rows where T's are short.
    __device__ __forceinline__ int row_block() const { return warp < 4 ? warp : 7 - warp; }

    // One thread.
    __device__ __forceinline__ void fetch(int chunk, int stage) const {
        barrier_expect(barrier(stage), ScanShared::kStage);
        const uint32_t at = base + uint32_t(stage_at(stage)), b = shared_address(barrier(stage));
        scan_share(at, p.keys_of(chunk, key_head), kChunkKeys, rank, b);
        scan_share(at + kChunkKeys, p.head_of(chunk, head), kChunkHead, rank, b);
    }
    // A warp 8 rows, a lane a column.
    __device__ __forceinline__ void load_values(const DeltaChunk& chunk) {
#pragma unroll
        for (int i = 0; i < 11; ++i) {
            const int row = warp * 8 + i - 3;
            next_v[i] = 0;
            if (row >= chunk.rows) continue;
            const float* from = delta_input_row(p.call, g, start, chunk.before + row);
            if (from) next_v[i] = __ldcg(from + channel);
        }
    }
    __device__ __forceinline__ void store_values() {
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
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                float2 v = make_float2(0, 0);
                if (g.state_in >= 0 && o.state.dtype == DType::bf16) {
                    const uint32_t two =
                        __ldcg(reinterpret_cast<const uint32_t*>(cells<uint16_t>(g.state_in, half) + n * 8));
                    v = make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
                } else if (g.state_in >= 0) {
                    v = __ldcg(reinterpret_cast<const float2*>(cells<float>(g.state_in, half) + n * 8));
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
        const DeltaState in(p.call, g.state_in);
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
    __device__ __forceinline__ void read_cells(float (&acc)[4][4], int index, int stage) const;
    __device__ __forceinline__ void make_x(const float (&acc)[4][4], int stage) const;
    __device__ __forceinline__ void make_v(float (&v)[2][4], int stage) const;
    __device__ __forceinline__ void put_decayed(const float (&v)[2][4], int stage, int last) const;
    __device__ __forceinline__ void update(float (&c)[4][4], int stage, int last) const;
    __device__ __forceinline__ void make_out(const float (&acc)[4][4], int stage, int phase);
    __device__ __forceinline__ void finish(const DeltaChunk& chunk, int phase) const;
    __device__ __forceinline__ void save(const float (&v)[2][4], const DeltaChunk& chunk, int stage) const;
};

// K·S of warps 0 … 3, Q·S of warps 4 … 7.
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::read_cells(float (&acc)[4][4], int index, int stage) const {
    const int block = row_block();
#pragma unroll
    for (int n = 0; n < 4; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
    const auto step = [&](int k, const uint32_t(&high)[4], const uint32_t(&low)[4]) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint32_t b[4], b_low[4];
            scan_right(b, b_low, base + ScanShared::kCellsHigh, ScanShared::kCellsLow, k, n);
            scan_multiply(acc[2 * n], acc[2 * n + 1], high, low, b, b_low);
        }
    };
    if (warp < 4) {
        const uint32_t keys = base + uint32_t(stage_at(stage));
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            uint32_t high[4], low[4];
            const uint32_t at = keys + delta_key_at(block * 16 + lane % 16, 2 * k + lane / 16);
            load_matrices(high, at);
            load_matrices(low, at + kChunkPlane);
            step(k, high, low);
        }
        return;
    }
    constexpr int kAhead = kStages == 2 ? 4 : 2;  // column blocks of Q on their way
    const uint4* from = reinterpret_cast<const uint4*>(p.queries_of(index, key_head)) + block * 8 * 64 + lane;
#pragma unroll
    for (int part = 0; part < 8 / kAhead; ++part) {
        uint4 q[2 * kAhead];
#pragma unroll
        for (int i = 0; i < 2 * kAhead; ++i) q[i] = __ldcg(from + (part * 2 * kAhead + i) * 32);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
            const uint32_t high[4] = {q[2 * k].x, q[2 * k].y, q[2 * k].z, q[2 * k].w};
            const uint32_t low[4] = {q[2 * k + 1].x, q[2 * k + 1].y, q[2 * k + 1].z, q[2 * k + 1].w};
            step(part * kAhead + k, high, low);
        }
    }
}

// Warps 0 … 3: v, where it lies, becomes X.
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::make_x(const float (&acc)[4][4], int stage) const {
    const float* gate = gates(stage);
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
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::make_v(float (&v)[2][4], int stage) const {
    const int block = warp % 4, side = warp / 4;
    const uint4* triangle = reinterpret_cast<const uint4*>(shared + stage_at(stage) + kChunkKeys);
#pragma unroll
    for (int n = 0; n < 2; ++n) v[n][0] = v[n][1] = v[n][2] = v[n][3] = 0;
#pragma unroll 1
    for (int k = 0; k <= block; ++k) {
        uint32_t high[4], low[4], b[4], b_low[4];
        scan_left(high, low, triangle + delta_triangle(block, k) * 64 + lane);
        scan_right(b, b_low, base + ScanShared::kX, kScanPlane, k, side);
        scan_multiply(v[0], v[1], high, low, b, b_low);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < 2; ++n)
            put(ScanShared::kV, kScanPlane, block * 16 + half * 8 + lane / 4, side * 2 + n, v[n][half * 2],
                v[n][half * 2 + 1]);
}
// What rows up to `last` still weigh in S after it.
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::put_decayed(const float (&v)[2][4], int stage, int last) const {
    const float* gate = gates(stage);
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
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::update(float (&c)[4][4], int stage, int last) const {
    const float keep = __expf(gates(stage)[last]);
    const uint32_t keys = base + uint32_t(stage_at(stage));
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) c[n][e] *= keep;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        uint32_t high[4], low[4];  // Kᵀ: rows are keys' columns
        const uint32_t at = keys + delta_key_at(k * 16 + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
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

// Warps 4 … 7: O, and Σo² of the block's columns to all blocks.
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::make_out(const float (&acc)[4][4], int stage, int phase) {
    const int block = row_block();
    const float* gate = gates(stage);
    const uint4* triangle = reinterpret_cast<const uint4*>(shared + stage_at(stage) + kChunkKeys + kChunkTriangle);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float keep = __expf(gate[block * 16 + half * 8 + lane / 4]);
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) out[n][half * 2 + e] = keep * acc[n][half * 2 + e];
    }
#pragma unroll 1
    for (int k = 0; k <= block; ++k) {
        uint32_t high[4], low[4];
        scan_left(high, low, triangle + delta_triangle(block, k) * 64 + lane);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            uint32_t b[4], b_low[4];
            scan_right(b, b_low, base + ScanShared::kV, kScanPlane, k, n);
            scan_multiply(out[2 * n], out[2 * n + 1], high, low, b, b_low);
        }
    }
    float* squares = reinterpret_cast<float*>(shared + ScanShared::kSquares) + phase % 2 * kChunkRows * kScanBlocks;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) sum = fmaf(out[n][half * 2 + e], out[n][half * 2 + e], sum);
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        scan_store_remote(squares + (block * 16 + half * 8 + lane / 4) * kScanBlocks + rank, sum, lane % 4);
    }
}

// Warps 4 … 7: y of a chunk, once the other blocks' Σo² are here.
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::finish(const DeltaChunk& chunk, int phase) const {
    const float4* squares =
        reinterpret_cast<const float4*>(shared + ScanShared::kSquares) + phase % 2 * kChunkRows;
    const int column = rank * kScanColumns + lane % 4 * 2;
    const float* norm = static_cast<const float*>(o.norm.data) + column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_block() * 16 + half * 8 + lane / 4;
        if (row >= chunk.rows) continue;
        const float4 s = squares[row];
        const float scale = rsqrtf(((s.x + s.y) + (s.z + s.w)) / kDeltaWidth + o.eps);
        const int t = g.first_row + chunk.before + row;
        const float* z = o.z.row(t) + head * kDeltaWidth + column;
        float* y = o.y.row(t) + head * kDeltaWidth + column;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const float2 gate = __ldcg(reinterpret_cast<const float2*>(z + n * 8));
            const float2 gain = __ldg(reinterpret_cast<const float2*>(norm + n * 8));
            *reinterpret_cast<float2*>(y + n * 8) =
                make_float2(out[n][half * 2] * scale * (fast_silu(gate.x) * gain.x),
                            out[n][half * 2 + 1] * scale * (fast_silu(gate.y) * gain.y));
        }
    }
}

// States after rows inside the chunk. All threads; V'' is free before and after.
template <int kStages>
__device__ __forceinline__ void ScanThread<kStages>::save(const float (&v)[2][4], const DeltaChunk& chunk,
                                                          int stage) const {
#pragma unroll 1
    for (int i = g.first_save; i < g.first_save + g.saves; ++i) {
        const Save want = o.step.saves()[i];
        const int row = want.row - g.first_row - chunk.before;
        if (row < 0 || row >= chunk.rows - 1) continue;
        put_decayed(v, stage, row);
        __syncthreads();
        float kept[4][4];
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) kept[n][e] = cell[n][e];
        update(kept, stage, row);
        store_cells(kept, want.state);
        __syncthreads();
    }
}

// The chunks of one segment; `turn` counts those of this cluster.
template <int kStages>
__device__ __forceinline__ void scan_segment(ScanThread<kStages>& me, const DeltaLong& part, int& turn) {
    const DeltaChunks& p = me.p;
    const bool upper = me.warp >= 4;
    me.g = me.o.step.segments()[part.segment];
    me.start = delta_start(p.call, me.g);
    if (kStages == 2 && threadIdx.x == 0) me.fetch(part.first_chunk, turn % 2);
    me.load_cells();
    DeltaChunk chunk = p.plan.chunks[part.first_chunk], before{};
    me.load_values(chunk);
    me.fold(me.g.state_in < 0 ? 0 : delta_accepted(me.o, me.g));
    me.store_values();
    me.share_cells();
    __syncthreads();
#pragma unroll 1
    for (int c = 0; c < part.chunks; ++c, ++turn) {
        const int index = part.first_chunk + c, stage = turn % kStages;
        const bool more = c + 1 < part.chunks;
        DeltaChunk next{};
        if (more) next = p.plan.chunks[index + 1];
        const auto settle = [&](int wanted, int slot) {  // the chunk before is everybody's past
            if (c > 0) {
                cluster_wait();
                if (upper) me.finish(before, turn - 1);
            }
            if (wanted >= 0 && threadIdx.x == 0) me.fetch(wanted, slot);
        };
        if (kStages == 1) settle(index, 0);
        if (more) me.load_values(next);
        barrier_wait(me.barrier(stage), uint32_t(turn / kStages) & 1);
        float acc[4][4], v[2][4];
        me.read_cells(acc, index, stage);
        if (!upper) me.make_x(acc, stage);
        if (kStages == 2) settle(more ? index + 1 : -1, (turn + 1) % 2);
        __syncthreads();
        me.make_v(v, stage);
        if (me.g.saves > 0) me.save(v, chunk, stage);
        me.put_decayed(v, stage, chunk.rows - 1);
        __syncthreads();
        if (more) me.store_values();
        me.update(me.cell, stage, chunk.rows - 1);
        if (more) me.share_cells();
        if (upper) me.make_out(acc, stage, turn);
        cluster_arrive();
        for (int i = me.g.first_save; i < me.g.first_save + me.g.saves; ++i)
            if (me.o.step.saves()[i].row == me.g.first_row + chunk.before + chunk.rows - 1)
                me.store_cells(me.cell, me.o.step.saves()[i].state);
        before = chunk;
        chunk = next;
        __syncthreads();
    }
    if (me.g.state_out >= 0) me.store_cells(me.cell, me.g.state_out);
    cluster_wait();
    if (upper) me.finish(before, turn - 1);
}

// Kernel     delta_scan: 168 registers
template <int kStages>
__global__ void __cluster_dims__(kScanBlocks, 1, 1) __launch_bounds__(kScanThreads, 3 - kStages)
    delta_scan(const __grid_constant__ DeltaChunks p) {
    extern __shared__ __align__(128) std::byte shared[];
    ScanThread<kStages> me(p, shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) barrier_init(me.barrier(i), 1);
        barrier_init_fence();
    }
    __syncthreads();
    cluster_arrive_initialised();
    wait_for_predecessor();
    cluster_wait();
    int turn = 0;
#pragma unroll 1
    for (int i = blockIdx.y; i < p.plan.counts[1]; i += gridDim.y) {
        scan_segment(me, p.plan.longs[i], turn);
        __syncthreads();
    }
}

}  // namespace sparkinfer::cuda
