// gated_delta_scan.cuh — the gated delta rule from chunk to chunk of long segments.
// Computes   per chunk, S before it:  X = β (v − e^G K S);  V = T X;  O = e^G Q S + P V;
//            S ← e^{G_last} S + Kᵀ (e^{G_last−G} V);  y = O / sqrt(mean(O²) + eps) · norm ⊙ silu(z)
// Shapes     as gated_delta_prepare.cuh; S [n_v, 128 (k), 128 (v)] F32|BF16
// Mapping    4 blocks per (value head, long segments), 32 columns of v each. Warps 0 … 7 carry S from chunk to chunk: in registers (warp w rows 16·w … + 15), and for the products in shared
//            memory as two BF16 planes. Warps 8 … 15 follow with O, and convolve the next chunk's v. Every
//            product is three of BF16. y leaves without its norm; delta_norm follows with Σo² of all columns.
// Memory     K, T and P come as bulk copies, as soon as the chunk before is done with theirs. Q comes as fragments. v channels and z once; y again in delta_norm.
// Order      S in a state is read before anything is written; the ring is delta_ring's, behind this kernel.
// Limits     heads of 128. 512 threads, ≤ 128 registers, 95 KB. sm_90+.
// Numbers    docs/perf/h200.md
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
    kScanCells,      // S of the turn is in shared memory: the others may read it
    kScanValues,     // v of the turn is
    kScanChange,     // V of the turn is
    kScanChangeRead, // … and O is made of it
    kScanCellsRead,  // Q·S of the turn is made
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
__device__ __forceinline__ void scan_right(uint32_t (&high)[4], uint32_t (&low)[4], uint32_t plane, int low_at, int k,
                                           int n) {
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
    uint32_t base;  // its address
    int head, part;        // part of the head's columns
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
    __device__ __forceinline__ void wait_for(ScanPiece piece) const { barrier_wait(barrier(piece), uint32_t(turn) & 1); }
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

// Warps 0 … 7.
struct ScanCarrier : ScanThread {
    float cell[4][4];  // S: [8 columns][…]
    using ScanThread::ScanThread;

    __device__ __forceinline__ int cell_row(int half) const { return warp * 16 + half * 8 + lane / 4; }
    template <class Cell>
    __device__ __forceinline__ Cell* cells(int slot, int half) const {
        return reinterpret_cast<Cell*>(DeltaState(p.call, slot).s) +
               (int64_t(head) * kDeltaWidth + cell_row(half)) * kDeltaWidth + part * kScanColumns + lane % 4 * 2;
    }
    __device__ __forceinline__ void load_cells() {
        const int slot = segment->state_in;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                float2 v = make_float2(0, 0);
                if (slot >= 0 && o.state.dtype == DType::bf16) {
                    const uint32_t two = __ldcg(reinterpret_cast<const uint32_t*>(cells<uint16_t>(slot, half) + n * 8));
                    v = make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
                } else if (slot >= 0) {
                    v = __ldcg(reinterpret_cast<const float2*>(cells<float>(slot, half) + n * 8));
                }
                cell[n][half * 2] = v.x, cell[n][half * 2 + 1] = v.y;
            }
    }
    template <int kFirst, int kCount>
    __device__ __forceinline__ void store_cells(const float (&c)[kCount][4], int slot) const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < kCount; ++n) {
                const float x = c[n][half * 2], y = c[n][half * 2 + 1];
                const int at = (kFirst + n) * 8;
                if (o.state.dtype == DType::bf16)
                    *reinterpret_cast<uint32_t*>(cells<uint16_t>(slot, half) + at) =
                        f32_to_bf16(x) | uint32_t(f32_to_bf16(y)) << 16;
                else
                    *reinterpret_cast<float2*>(cells<float>(slot, half) + at) = make_float2(x, y);
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
                        in.log_d + entry * kDeltaWidth + part * kScanColumns + n * 8 + lane % 4 * 2));
                    float(&c)[4] = cell[n];
                    c[half * 2] = __fmaf_rn(k, d.x, __fmul_rn(keep, c[half * 2]));
                    c[half * 2 + 1] = __fmaf_rn(k, d.y, __fmul_rn(keep, c[half * 2 + 1]));
                }
            }
        }
    }
    __device__ __forceinline__ void share_cells() const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < 4; ++n)
                put(ScanShared::kCellsHigh, ScanShared::kCellsLow, cell_row(half), n, cell[n][half * 2],
                    cell[n][half * 2 + 1]);
    }
    __device__ __forceinline__ void make_x() const;
    __device__ __forceinline__ void make_v(float (&v)[2][4]) const;
    __device__ __forceinline__ void put_v(const float (&v)[2][4]) const;
    __device__ __forceinline__ void put_decayed(const float (&v)[2][4], int last) const;
    template <int kFirst, int kCount>
    __device__ __forceinline__ void update(float (&c)[kCount][4], int last) const;
    template <int kFirst>
    __device__ __forceinline__ void save_columns(int slot, int row) const;
    __device__ __forceinline__ void save(const float (&v)[2][4], const DeltaChunk& chunk) const;
    __device__ __forceinline__ void save_end(const DeltaChunk& chunk) const;
    __device__ __forceinline__ void run(const DeltaLong& along);
};

// v, where it lies, becomes X: rows of block warp % 4, 16 columns.
__device__ __forceinline__ void ScanCarrier::make_x() const {
    const int block = warp % 4;
    float acc[2][4];
    scan_clear(acc);
    wait_for(kScanKeys);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        uint32_t high[4], low[4];
        const uint32_t at = base + ScanShared::kKeys + delta_key_at(block * 16 + lane % 16, 2 * k + lane / 16);
        load_matrices(high, at);
        load_matrices(low, at + kChunkPlane);
        read_step(acc, k, high, low);
    }
    wait_for(kScanSolved);
    scan_await(kScanValues);
    const float* gate = gates();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = block * 16 + half * 8 + lane / 4;
        const float beta = gate[kChunkRows + row], keep = __expf(gate[row]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int n = side() * 2 + i;
            std::byte* at = shared + ScanShared::kX + delta_cell_at(row, n) + lane % 4 * 4;
            const float x = *reinterpret_cast<const float*>(at), y = *reinterpret_cast<const float*>(at + kScanPlane);
            put(ScanShared::kX, kScanPlane, row, n, beta * (x - keep * acc[i][half * 2]),
                beta * (y - keep * acc[i][half * 2 + 1]));
        }
    }
}

// V = T X: rows of block warp % 4, 16 columns.
__device__ __forceinline__ void ScanCarrier::make_v(float (&v)[2][4]) const {
    const int block = warp % 4;
    const uint4* triangle = reinterpret_cast<const uint4*>(shared + ScanShared::kSolved);
    float other[2][4];
    scan_clear(v);
    scan_clear(other);
#pragma unroll 1
    for (int k = 0; k <= block; ++k) {
        uint32_t high[4], low[4], b[4], b_low[4];
        scan_left(high, low, triangle + delta_triangle(block, k) * 64 + lane);
        scan_right(b, b_low, base + ScanShared::kX, kScanPlane, k, side());
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
}
__device__ __forceinline__ void ScanCarrier::put_v(const float (&v)[2][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < 2; ++n)
            put(ScanShared::kV, kScanPlane, warp % 4 * 16 + half * 8 + lane / 4, side() * 2 + n, v[n][half * 2],
                v[n][half * 2 + 1]);
}
// What rows up to `last` still weigh in S after it.
__device__ __forceinline__ void ScanCarrier::put_decayed(const float (&v)[2][4], int last) const {
    const float* gate = gates();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp % 4 * 16 + half * 8 + lane / 4;
        const float weight = row <= last ? __expf(gate[last] - gate[row]) : 0.0f;
#pragma unroll
        for (int n = 0; n < 2; ++n)
            put(ScanShared::kDecayed, kScanPlane, row, side() * 2 + n, weight * v[n][half * 2],
                weight * v[n][half * 2 + 1]);
    }
}
// S of kCount · 8 columns from kFirst · 8 on.
template <int kFirst, int kCount>
__device__ __forceinline__ void ScanCarrier::update(float (&c)[kCount][4], int last) const {
    const float keep = __expf(gates()[last]);
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) c[n][e] *= keep;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        uint32_t high[4], low[4];  // Kᵀ: rows are keys' columns
        const uint32_t at = base + ScanShared::kKeys +
                            delta_key_at(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2) + k * 4096;
        load_matrices_transposed(high, at);
        load_matrices_transposed(low, at + kChunkPlane);
#pragma unroll
        for (int n = 0; n < kCount / 2; ++n) {
            uint32_t b[4], b_low[4];
            scan_right(b, b_low, base + ScanShared::kDecayed, kScanPlane, k, kFirst / 2 + n);
            scan_multiply(c[2 * n], c[2 * n + 1], high, low, b, b_low);
        }
    }
}
// Keeps S after an inner row in `slot`, some columns at a time.
template <int kFirst>
__device__ __forceinline__ void ScanCarrier::save_columns(int slot, int row) const {
    float kept[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) kept[n][e] = cell[kFirst + n][e];
    update<kFirst, 2>(kept, row);
    store_cells<kFirst, 2>(kept, slot);
}
// States after rows inside the chunk.
__device__ __forceinline__ void ScanCarrier::save(const float (&v)[2][4], const DeltaChunk& chunk) const {
#pragma unroll 1
    for (int i = segment->first_save; i < segment->first_save + saves; ++i) {
        const Save want = o.step.saves()[i];
        const int row = want.row - first_row - chunk.before;
        if (row < 0 || row >= chunk.rows - 1) continue;
        put_decayed(v, row);
        scan_meet();
        save_columns<0>(want.state, row);
        save_columns<2>(want.state, row);
        scan_meet();
    }
}
// States after the chunk.
__device__ __forceinline__ void ScanCarrier::save_end(const DeltaChunk& chunk) const {
#pragma unroll 1
    for (int i = segment->first_save; i < segment->first_save + saves; ++i)
        if (o.step.saves()[i].row == first_row + chunk.before + chunk.rows - 1)
            store_cells<0, 4>(cell, o.step.saves()[i].state);
}

__device__ __forceinline__ void ScanCarrier::run(const DeltaLong& along) {
    const bool copier = threadIdx.x == 0;
    if (copier) fetch(kScanKeys, along.first_chunk, turn);
    load_cells();
    fold(segment->state_in < 0 ? 0 : delta_accepted(o, *segment));
    share_cells();
    scan_meet();
    scan_tell(kScanCells);
#pragma unroll 1
    for (int c = 0; c < along.chunks; ++c, ++turn) {
        const DeltaChunk chunk = delta_chunk(along, c, rows);
        make_x();
        scan_meet();
        float v[2][4];
        make_v(v);
        if (c > 0) scan_await(kScanChangeRead);
        done_with(kScanSolved);  // nor does O of the chunk before need its gates any more
        put_v(v);
        if (saves > 0) save(v, chunk);
        put_decayed(v, chunk.rows - 1);
        scan_meet();
        scan_tell(kScanChange);
        update<0, 4>(cell, chunk.rows - 1);
        done_with(kScanKeys);
        scan_await(kScanCellsRead);
        if (c + 1 < along.chunks) {
            share_cells();
            scan_meet();
            scan_tell(kScanCells);
            if (copier) fetch(kScanKeys, along.first_chunk + c + 1, turn + 1);
        }
        if (saves > 0) save_end(chunk);
    }
    if (segment->state_out >= 0) store_cells<0, 4>(cell, segment->state_out);
}

// Warps 8 … 15.
struct ScanReader : ScanThread {
    float out[2][4];   // O of rows of row_block(), 16 columns
    float next_v[11];  // inputs of the next chunk's 8 rows, and of the 3 before
    using ScanThread::ScanThread;

    __device__ __forceinline__ int row_block() const { return warp % 4; }
    __device__ __forceinline__ int row(int half) const { return row_block() * 16 + half * 8 + lane / 4; }
    __device__ __forceinline__ int column() const {  // of y
        return head * kDeltaWidth + part * kScanColumns + side() * 16 + lane % 4 * 2;
    }
    __device__ __forceinline__ int channel() const {  // of qkv: v of column `lane`
        return (2 * o.state.key_heads + head) * kDeltaWidth + part * kScanColumns + lane;
    }
    // A warp 8 rows, a lane a column.
    __device__ __forceinline__ void load_values(const DeltaChunk& chunk) {
        const int first = chunk.before + warp * 8 - 3, count = chunk.rows - warp * 8 + 3;
        const float* from = o.qkv.row(first_row + first) + channel();
#pragma unroll
        for (int i = 0; i < 11; ++i) {
            next_v[i] = 0;
            if (first + i >= 0 && i < count) next_v[i] = __ldcg(from + i * o.qkv.stride);
        }
        if (first >= 0 || segment->state_in < 0) return;
        const int start = delta_start(p.call, *segment);
#pragma unroll
        for (int i = 0; i < 3; ++i)
            if (first + i < 0) next_v[i] = __ldcg(delta_input_row(p.call, *segment, start, first + i) + channel());
    }
    __device__ __forceinline__ void store_values() const {
        const float4 tap = __ldg(static_cast<const float4*>(o.conv.data) + channel());
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
    __device__ __forceinline__ const uint4* queries(int chunk) const {
        return reinterpret_cast<const uint4*>(p.queries_of(chunk, key_head())) + row_block() * 8 * 64 + lane;
    }
    __device__ __forceinline__ void read_cells(uint4 (&q)[8], const uint4* from);
    __device__ __forceinline__ void add_change();
    __device__ __forceinline__ void put_squares(const DeltaChunk& chunk) const;
    __device__ __forceinline__ void put_out(const float2 (&z)[2][2], const DeltaChunk& chunk) const;
    __device__ __forceinline__ void run(const DeltaLong& along);
};

// Q·S. q: the first half of Q's fragments.
__device__ __forceinline__ void ScanReader::read_cells(uint4 (&q)[8], const uint4* from) {
    scan_clear(out);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const int at = k % 4 * 2;
        const uint32_t high[4] = {q[at].x, q[at].y, q[at].z, q[at].w};
        const uint32_t low[4] = {q[at + 1].x, q[at + 1].y, q[at + 1].z, q[at + 1].w};
        read_step(out, k, high, low);
        if (k >= 4) continue;
        q[at] = __ldcg(from + (k + 4) * 64);
        q[at + 1] = __ldcg(from + (k + 4) * 64 + 32);
    }
}
// O = e^G Q S + P V
__device__ __forceinline__ void ScanReader::add_change() {
    const float* gate = gates();
    const uint4* triangle = reinterpret_cast<const uint4*>(shared + ScanShared::kWithin);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float keep = __expf(gate[row(half)]);
#pragma unroll
        for (int n = 0; n < 2; ++n) out[n][half * 2] *= keep, out[n][half * 2 + 1] *= keep;
    }
    wait_for(kScanWithin);
#pragma unroll 1
    for (int k = 0; k <= row_block(); ++k) {
        uint32_t high[4], low[4], b[4], b_low[4];
        scan_left(high, low, triangle + delta_triangle(row_block(), k) * 64 + lane);
        scan_right(b, b_low, base + ScanShared::kV, kScanPlane, k, side());
        scan_multiply(out[0], out[1], high, low, b, b_low);
    }
}
// Σo² of the warp's columns.
__device__ __forceinline__ void ScanReader::put_squares(const DeltaChunk& chunk) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) sum = fmaf(out[n][half * 2 + e], out[n][half * 2 + e], sum);
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        if (lane % 4 == 0 && row(half) < chunk.rows)
            p.squares_of(first_row + chunk.before + row(half), head)[part * 2 + side()] = sum;
    }
}
// y without its norm.
__device__ __forceinline__ void ScanReader::put_out(const float2 (&z)[2][2], const DeltaChunk& chunk) const {
    const float* norm = static_cast<const float*>(o.norm.data) + column() % kDeltaWidth;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row(half) >= chunk.rows) continue;
        float* y = o.y.row(first_row + chunk.before + row(half)) + column();
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float2 gain = __ldg(reinterpret_cast<const float2*>(norm + n * 8));
            *reinterpret_cast<float2*>(y + n * 8) =
                make_float2(out[n][half * 2] * (fast_silu(z[half][n].x) * gain.x),
                            out[n][half * 2 + 1] * (fast_silu(z[half][n].y) * gain.y));
        }
    }
    __syncwarp();
}

__device__ __forceinline__ void ScanReader::run(const DeltaLong& along) {
    const bool copier = threadIdx.x == kScanHalf;
    if (copier) {
        fetch(kScanSolved, along.first_chunk, turn);
        fetch(kScanWithin, along.first_chunk, turn);
    }
    load_values(delta_chunk(along, 0, rows));
    store_values();
    scan_tell(kScanValues);
#pragma unroll 1
    for (int c = 0; c < along.chunks; ++c, ++turn) {
        const int index = along.first_chunk + c;
        const bool more = c + 1 < along.chunks;
        const DeltaChunk chunk = delta_chunk(along, c, rows);
        const uint4* from = queries(index);
        uint4 q[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i] = __ldcg(from + i * 32);
        scan_await(kScanCells);
        read_cells(q, from);
        scan_tell(kScanCellsRead);
        if (more) load_values(delta_chunk(along, c + 1, rows));
        float2 z[2][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float* to_gate = o.z.row(first_row + chunk.before + row(half)) + column();
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                z[half][n] = make_float2(0, 0);
                if (row(half) < chunk.rows) z[half][n] = __ldcg(reinterpret_cast<const float2*>(to_gate + n * 8));
            }
        }
        scan_await(kScanChange);
        if (more) {
            store_values();
            scan_tell(kScanValues);
        }
        add_change();
        done_with(kScanWithin);
        if (more) scan_tell(kScanChangeRead);
        if (copier && more) {
            fetch(kScanSolved, index + 1, turn + 1);
            fetch(kScanWithin, index + 1, turn + 1);
        }
        put_squares(chunk);
        put_out(z, chunk);
    }
}

template <class Thread>
__device__ __forceinline__ void scan_all(const DeltaChunks& p, std::byte* shared) {
    Thread me(p, shared);
#pragma unroll 1
    for (int i = blockIdx.y; i < p.plan.counts[1]; i += gridDim.y) {
        const DeltaLong along = p.plan.longs[i];
        me.segment = p.call.op.step.segments() + along.segment;
        me.first_row = me.segment->first_row;
        me.rows = me.segment->rows;
        me.saves = me.segment->saves;
        me.run(along);
        named_barrier(kScanCarry + 8, kScanThreads);
    }
}

// Kernel     delta_scan: 128 registers
__global__ void __launch_bounds__(kScanThreads, 1)
    delta_scan(const __grid_constant__ DeltaChunks p) {
    extern __shared__ __align__(128) std::byte shared[];
    if (threadIdx.x == 0) ScanThread(p, shared).init_barriers();
    __syncthreads();
    wait_for_predecessor();
    if (threadIdx.x < kScanHalf)
        scan_all<ScanCarrier>(p, shared);
    else
        scan_all<ScanReader>(p, shared);
}

// Behind delta_scan: y / sqrt(mean(O²) + eps). A block 8 rows of a chunk, a warp a row.
// Kernel     delta_norm: 32 registers
__global__ void __launch_bounds__(256) delta_norm(const __grid_constant__ DeltaChunks p) {
    wait_for_predecessor();
    const GatedDelta& o = p.call.op;
    const int lane = threadIdx.x % 32, chunks = p.plan.counts[0];
    for (int index = blockIdx.y; index < chunks; index += gridDim.y) {
        const DeltaChunk chunk = p.plan.chunks[index];
        const int row = blockIdx.x * 8 + threadIdx.x / 32;
        if (row >= chunk.rows) continue;
        const int t = o.step.segments()[chunk.segment].first_row + chunk.before + row;
        float4* y = reinterpret_cast<float4*>(o.y.row(t)) + lane;
#pragma unroll 4
        for (int head = 0; head < o.state.value_heads; ++head) {
            const float4* squares = reinterpret_cast<const float4*>(p.squares_of(t, head));
            const float4 a = __ldcg(squares), b = __ldcg(squares + 1);
            float4 v = __ldcg(y + head * (kDeltaWidth / 4));
            const float sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
            const float scale = rsqrtf(sum / kDeltaWidth + o.eps);
            v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
            y[head * (kDeltaWidth / 4)] = v;
        }
    }
}

}  // namespace sparkinfer::cuda
