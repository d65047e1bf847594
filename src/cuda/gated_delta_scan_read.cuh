// gated_delta_scan_read.cuh — the half of a block of delta_scan that reads S: the chunk's outputs.
// Computes   O = e^G Q S + P V;  O · norm ⊙ silu(z), and Σo² for delta_norm; v of the next chunk, convolved
// Shapes     as gated_delta_scan.cuh; squares [T, n_v, 8]
// Mapping    O: warp w rows of block w % 4, 16 columns. v: warp w 8 rows, a lane a column.
// Memory     Q as fragments, v channels and z once; y once.
// Limits     as gated_delta_scan.cuh
// Tested     tests/ops/gated_delta_chunks.cpp against float64.
#pragma once
#include "cuda/gated_delta_scan_thread.cuh"

namespace sparkinfer::cuda {

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
            if (first + i < 0)
                next_v[i] = __ldcg(delta_input_row(p.call, *segment, start, first + i) + channel());
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
                if (row(half) < chunk.rows)
                    z[half][n] = __ldcg(reinterpret_cast<const float2*>(to_gate + n * 8));
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

}  // namespace sparkinfer::cuda
