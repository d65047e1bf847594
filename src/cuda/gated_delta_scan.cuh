// gated_delta_scan.cuh — the gated delta rule from chunk to chunk of long segments.
// Computes   per chunk, S before it:  X = β (v − e^G K S);  V = T X;  O = e^G Q S + P V;
//            S ← e^{G_last} S + Kᵀ (e^{G_last−G} V);  y = O / sqrt(mean(O²) + eps) · norm ⊙ silu(z)
// Shapes     as gated_delta_prepare.cuh; S [n_v, 128 (k), 128 (v)] F32|BF16
// Mapping    4 blocks per (value head, long segments), 32 columns of v each. Warps 0 … 7 carry S from
//            chunk to chunk: in registers (warp w rows 16·w … + 15), and for the products in shared memory
//            as two BF16 planes. Warps 8 … 15 follow with O, and convolve the next chunk's v. Every product
//            is three of BF16. y leaves without its norm; delta_norm follows with Σo² of all columns.
// Memory     K, T and P come as bulk copies, as soon as the chunk before is done with theirs. Q comes as
//            fragments. v channels and z once; y again in delta_norm.
// Order      S in a state is read before it is written; the ring is delta_ring's, behind this kernel.
// Limits     heads of 128. 512 threads, ≤ 128 registers, 95 KB. sm_90+.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/gated_delta_chunks.cpp against float64.
#pragma once
#include "cuda/gated_delta_scan_carry.cuh"
#include "cuda/gated_delta_scan_read.cuh"

namespace sparkinfer::cuda {

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
__global__ void __launch_bounds__(kScanThreads, 1) delta_scan(const __grid_constant__ DeltaChunks p) {
    extern __shared__ __align__(128) std::byte shared[];
    if (threadIdx.x == 0) ScanThread(p, shared).init_barriers();
    __syncthreads();
    wait_for_predecessor();
    let_successor_start();
    if (threadIdx.x < kScanHalf)
        scan_all<ScanCarrier>(p, shared);
    else
        scan_all<ScanReader>(p, shared);
}

// Behind delta_scan: y / sqrt(mean(O²) + eps). A block 8 rows of a chunk and every n-th head, a warp a row.
// Kernel     delta_norm: 40 registers
__global__ void __launch_bounds__(256) delta_norm(const __grid_constant__ DeltaChunks p) {
    wait_for_predecessor();
    let_successor_start();
    const GatedDelta& o = p.call.op;
    const int lane = threadIdx.x % 32, chunks = p.plan.counts[0];
    for (int index = blockIdx.y; index < chunks; index += gridDim.y) {
        const DeltaChunk chunk = p.plan.chunks[index];
        const int row = blockIdx.x * 8 + threadIdx.x / 32;
        if (row >= chunk.rows) continue;
        const int t = o.step.segments()[chunk.segment].first_row + chunk.before + row;
        float4* y = reinterpret_cast<float4*>(o.y.row(t)) + lane;
#pragma unroll 8
        for (int head = blockIdx.z; head < o.state.value_heads; head += gridDim.z) {
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
