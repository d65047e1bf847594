// gated_delta_scan_carry.cuh — the half of a block of delta_scan that carries S from chunk to chunk.
// Computes   X = β (v − e^G K S);  V = T X;  S ← e^{G_last} S + Kᵀ (e^{G_last−G} V);  the states that
//            saves ask for, inside a chunk too: what its rows up to there leave
// Shapes     as gated_delta_scan.cuh
// Mapping    S in registers: warp w rows 16·w … + 15, all 32 columns. X, V: warp w rows of block w % 4, half
//            of the columns.
// Memory     S once in, once out and once a save.
// Limits     as gated_delta_scan.cuh
// Tested     tests/ops/gated_delta_chunks.cpp against float64.
#pragma once
#include "cuda/gated_delta_scan_thread.cuh"

namespace sparkinfer::cuda {

// Warps 0 … 7.
struct ScanCarrier : ScanThread {
    float cell[4][4];  // S: [8 columns][…]
    using ScanThread::ScanThread;

    __device__ __forceinline__ int cell_row(int half) const { return warp * 16 + half * 8 + lane / 4; }
    template <class Cell>
    __device__ __forceinline__ Cell* cells(int slot, int half) const {
        return reinterpret_cast<Cell*>(DeltaState(p.call, slot).s) +
               (int64_t(head) * kDeltaWidth + cell_row(half)) * kDeltaWidth + part * kScanColumns +
               lane % 4 * 2;
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
        const uint32_t at =
            base + ScanShared::kKeys + delta_key_at(block * 16 + lane % 16, 2 * k + lane / 16);
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
            const float x = *reinterpret_cast<const float*>(at),
                        y = *reinterpret_cast<const float*>(at + kScanPlane);
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
            put(ScanShared::kV, kScanPlane, warp % 4 * 16 + half * 8 + lane / 4, side() * 2 + n,
                v[n][half * 2], v[n][half * 2 + 1]);
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
            if (copier) fetch(kScanKeys, along.first_chunk + c + 1, turn + 1);
            share_cells();
            scan_meet();
            scan_tell(kScanCells);
        }
        if (saves > 0) save_end(chunk);
    }
    if (segment->state_out >= 0) store_cells<0, 4>(cell, segment->state_out);
}

}  // namespace sparkinfer::cuda
