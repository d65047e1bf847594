// gated_delta_prepare.cuh — what a chunk's rows are to each other, before any state: keys, queries, gates,
// and the two triangles of the chunked rule.
// Computes   per chunk: q, k normalised; G_i = Σ_{j≤i} g_j; A = strictly lower (β_i k_i·k_j e^{G_i−G_j});
//            T = (I + A)⁻¹;  P = lower (q_i·k_j e^{G_i−G_j})      (arXiv 2412.06464, §3.3)
// Shapes     a chunk: K, Q [64, 128]   per value head: T, P [64, 64], G, β [64]
// Mapping    a block of 8 warps per (chunk, key head). Convolution and norm: a warp 8 rows, a lane 4 channels
//            of q and of k. Products: warps 0 … 3 K·Kᵀ, 4 … 7 Q·Kᵀ, 16 rows each, three BF16 products for one
//            of F32. Then the key head's value heads by twos: a thread solves one column of (I + A) T = I.
// Memory     q and k channels of qkv once (67 rows for 64); writes 64 KB a key head and 20.5 KB a value head.
// Limits     heads of 128, 4 taps, ≤ 128 registers, 69 KB. Rows after the chunk's last are zeros with β and g
//            zero, so T and P of the rows before do not depend on them.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/gated_delta_chunks.cpp against float64.
#pragma once
#include "cuda/gated_delta_chunks.cuh"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/mma_bf16.cuh"

namespace sparkinfer::cuda {

constexpr int kPrepareThreads = 256;
constexpr int kPrepareStride = 68;  // floats between rows of A and T: no two rows in the same banks
constexpr int kPrepareSquare = kChunkRows * kPrepareStride * 4;

// Dynamic shared memory: K and Q, each high and low; behind the products A and T of two heads.
struct PrepareShared {
    static constexpr int kKeyHigh = 0, kKeyLow = kChunkPlane, kQueryHigh = 2 * kChunkPlane,
                         kQueryLow = 3 * kChunkPlane;
    static constexpr int kBefore = 0, kSolved = 2 * kPrepareSquare;  // [2 heads] each
    static constexpr int kGates = 4 * kPrepareSquare;                // [2 heads] G, β
    static constexpr int kBytes = kGates + 2 * kChunkGates;
    static_assert(4 * kChunkPlane <= kGates);
};

// Four neighbouring channels of one kind (q or k) through the warp's 8 rows.
struct PrepareChannels {
    float4 last[3], tap[4];  // inputs of the 3 rows before; weights by tap
    __device__ __forceinline__ PrepareChannels(const DeltaCall& p, const Segment& g, int start, int before,
                                               int channel, bool any) {
        float w[4][4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float4 v = __ldg(static_cast<const float4*>(p.op.conv.data) + channel + c);
            w[0][c] = v.x, w[1][c] = v.y, w[2][c] = v.z, w[3][c] = v.w;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) tap[i] = make_float4(w[i][0], w[i][1], w[i][2], w[i][3]);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const float* row = any ? delta_input_row(p, g, start, before - 3 + i) : nullptr;
            last[i] = row ? __ldcg(reinterpret_cast<const float4*>(row + channel)) : make_float4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ float one(float a, float b, float c, float d, float ta, float tb, float tc,
                                         float td) const {
        float m = __fmul_rn(a, ta);
        m = __fmaf_rn(b, tb, m);
        m = __fmaf_rn(c, tc, m);
        return fast_silu(__fmaf_rn(d, td, m));
    }
    __device__ __forceinline__ float4 next(float4 x) {
        const float4 m =
            make_float4(one(last[0].x, last[1].x, last[2].x, x.x, tap[0].x, tap[1].x, tap[2].x, tap[3].x),
                        one(last[0].y, last[1].y, last[2].y, x.y, tap[0].y, tap[1].y, tap[2].y, tap[3].y),
                        one(last[0].z, last[1].z, last[2].z, x.z, tap[0].z, tap[1].z, tap[2].z, tap[3].z),
                        one(last[0].w, last[1].w, last[2].w, x.w, tap[0].w, tap[1].w, tap[2].w, tap[3].w));
        last[0] = last[1], last[1] = last[2], last[2] = x;
        return m;
    }
};

// Four rows' 128 channels, a lane 4, to length `scale` and into two planes. `rows`: that many are not zero.
__device__ __forceinline__ void prepare_four(std::byte* high, int row, int rows, const float4 (&m)[4],
                                             float scale) {
    const int lane = threadIdx.x % 32;
    float squares[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        squares[i] = m[i].x * m[i].x + m[i].y * m[i].y + m[i].z * m[i].z + m[i].w * m[i].w;
#pragma unroll
    for (int d = 16; d; d >>= 1)
#pragma unroll
        for (int i = 0; i < 4; ++i) squares[i] += __shfl_xor_sync(kWholeWarp, squares[i], d);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float by = row + i < rows ? rsqrtf(squares[i] + 1e-6f) * scale : 0.0f;
        uint2 h, l;
        split_bf16(m[i].x * by, m[i].y * by, h.x, l.x);
        split_bf16(m[i].z * by, m[i].w * by, h.y, l.y);
        std::byte* to = high + delta_key_at(row + i, lane / 2) + lane % 2 * 8;
        *reinterpret_cast<uint2*>(to) = h;
        *reinterpret_cast<uint2*>(to + kChunkPlane) = l;
    }
}

__device__ __forceinline__ void prepare_rows(const DeltaCall& p, std::byte* shared, const Segment& g,
                                             const DeltaChunk& chunk, int key_head) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp * 8;
    const int query = key_head * kDeltaWidth + lane * 4, key = query + p.op.state.key_heads * kDeltaWidth;
    const int start = chunk.before + first < 3 ? delta_start(p, g) : 0;
    const float* from = p.op.qkv.row(g.first_row + chunk.before + first);
    const int64_t stride = p.op.qkv.stride;
#pragma unroll 1
    for (int kind = 0; kind < 2; ++kind) {
        const int channel = kind ? key : query;
        std::byte* to = shared + (kind ? PrepareShared::kKeyHigh : PrepareShared::kQueryHigh);
        PrepareChannels channels(p, g, start, chunk.before + first, channel, first < chunk.rows);
#pragma unroll 1
        for (int r = 0; r < 8; r += 4) {
            float4 x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = make_float4(0, 0, 0, 0);
                if (first + r + i < chunk.rows)
                    x[i] = __ldcg(reinterpret_cast<const float4*>(from + (r + i) * stride + channel));
            }
            const float4 m[4] = {channels.next(x[0]), channels.next(x[1]), channels.next(x[2]),
                                 channels.next(x[3])};
            prepare_four(to, first + r, chunk.rows, m, kind ? 1.0f : 0.08838834764831845f);  // 128^-½
        }
    }
}

// acc [16 rows of `a` from row_block·16, 64 rows of K] = a · Kᵀ, lower triangle; queries go out as fragments.
__device__ __forceinline__ void prepare_products(float (&acc)[8][4], uint32_t a, uint32_t keys, int row_block,
                                                 uint4* fragments) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
#pragma unroll 1
    for (int k = 0; k < kDeltaWidth / 16; ++k) {
        uint32_t high[4], low[4];
        const uint32_t at = delta_key_at(row_block * 16 + lane % 16, 2 * k + lane / 16);
        load_matrices(high, a + at);
        load_matrices(low, a + kChunkPlane + at);
        if (fragments) {
            uint4* to = fragments + (row_block * 8 + k) * 64 + lane;
            to[0] = make_uint4(high[0], high[1], high[2], high[3]);
            to[32] = make_uint4(low[0], low[1], low[2], low[3]);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {  // 16 rows of K
            if (n > row_block) continue;
            uint32_t h[4], l[4];
            const uint32_t b = keys + delta_key_at(lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2) + n * 4096;
            load_matrices(h, b);
            load_matrices(l, b + kChunkPlane);
            mma_bf16(acc[2 * n], low, h[0], h[1]);
            mma_bf16(acc[2 * n + 1], low, h[2], h[3]);
            mma_bf16(acc[2 * n], high, l[0], l[1]);
            mma_bf16(acc[2 * n + 1], high, l[2], l[3]);
            mma_bf16(acc[2 * n], high, h[0], h[1]);
            mma_bf16(acc[2 * n + 1], high, h[2], h[3]);
        }
    }
}

// One warp: G and β of a value head, a lane rows 2·lane and 2·lane + 1.
__device__ __forceinline__ void prepare_gates(const DeltaCall& p, float* gates, float* out, int first_row,
                                              int rows, int head) {
    const GatedDelta& o = p.op;
    const int lane = threadIdx.x % 32;
    const float rate = __ldg(static_cast<const float*>(o.decay.data) + head);
    const float bias = __ldg(static_cast<const float*>(o.dt_bias.data) + head);
    float g[2], beta[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = 2 * lane + i;
        g[i] = beta[i] = 0;
        if (row >= rows) continue;
        g[i] = __fmul_rn(rate, softplus(__ldcg(o.alpha.row(first_row + row) + head) + bias));
        beta[i] = fast_sigmoid(__ldcg(o.beta.row(first_row + row) + head));
    }
    const float pair = g[0] + g[1];
    float sum = pair;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_up_sync(kWholeWarp, sum, d);
        if (lane >= d) sum += other;
    }
    float before = __shfl_up_sync(kWholeWarp, sum, 1);
    if (lane == 0) before = 0;
    const float2 total = make_float2(before + g[0], before + pair);
    reinterpret_cast<float2*>(gates)[lane] = reinterpret_cast<float2*>(out)[lane] = total;
    reinterpret_cast<float2*>(gates + kChunkRows)[lane] = reinterpret_cast<float2*>(out + kChunkRows)[lane] =
        make_float2(beta[0], beta[1]);
}

// Warps 0 … 3: A of one head, transposed, from their rows of K·Kᵀ.
__device__ __forceinline__ void prepare_before(const float (&acc)[8][4], float* at, const float* gates,
                                               int row_block) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = row_block * 16 + half * 8 + lane / 4;
        const float total = gates[row], beta = gates[kChunkRows + row];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if (n > 2 * row_block + 1) continue;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int column = n * 8 + lane % 4 * 2 + e;
                at[column * kPrepareStride + row] =
                    column < row ? acc[n][half * 2 + e] * beta * __expf(total - gates[column]) : 0.0f;
            }
        }
    }
}
// Warps 4 … 7: P of one head, as fragments.
__device__ __forceinline__ void prepare_within(const float (&acc)[8][4], uint4* to, const float* gates,
                                               int row_block) {
    const int lane = threadIdx.x % 32;
    const int row = row_block * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (j > row_block) continue;
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // rows + 8·(i % 2), columns + 8·(i / 2)
            const int r = row + i % 2 * 8, column = j * 16 + i / 2 * 8 + lane % 4 * 2;
            float v[2];
#pragma unroll
            for (int e = 0; e < 2; ++e)
                v[e] = column + e <= r
                           ? acc[2 * j + i / 2][i % 2 * 2 + e] * __expf(gates[r] - gates[column + e])
                           : 0.0f;
            split_bf16(v[0], v[1], high[i], low[i]);
        }
        uint4* block = to + delta_triangle(row_block, j) * 64 + lane;
        block[0] = make_uint4(high[0], high[1], high[2], high[3]);
        block[32] = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

// One thread: column j of (I + A)⁻¹ by forward substitution, 16 rows at a time.
__device__ __forceinline__ void prepare_solve(const float* at, float* solved, int j) {
#pragma unroll 1
    for (int block = 0; block < 4; ++block) {
        float x[16];
#pragma unroll
        for (int r = 0; r < 16; ++r) x[r] = block * 16 + r == j ? 1.0f : 0.0f;
#pragma unroll 4
        for (int k = j & 32; k < block * 16; ++k) {  // above row j a column is zero
            const float known = solved[k * kPrepareStride + j];
            const float4* a = reinterpret_cast<const float4*>(at + k * kPrepareStride + block * 16);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float4 v = a[r];
                x[4 * r] = fmaf(-v.x, known, x[4 * r]);
                x[4 * r + 1] = fmaf(-v.y, known, x[4 * r + 1]);
                x[4 * r + 2] = fmaf(-v.z, known, x[4 * r + 2]);
                x[4 * r + 3] = fmaf(-v.w, known, x[4 * r + 3]);
            }
        }
#pragma unroll
        for (int k = 0; k < 15; ++k) {
            const float4* a =
                reinterpret_cast<const float4*>(at + (block * 16 + k) * kPrepareStride + block * 16);
#pragma unroll
            for (int r = (k + 1) / 4; r < 4; ++r) {
                const float4 v = a[r];
                if (4 * r > k) x[4 * r] = fmaf(-v.x, x[k], x[4 * r]);
                if (4 * r + 1 > k) x[4 * r + 1] = fmaf(-v.y, x[k], x[4 * r + 1]);
                if (4 * r + 2 > k) x[4 * r + 2] = fmaf(-v.z, x[k], x[4 * r + 2]);
                if (4 * r + 3 > k) x[4 * r + 3] = fmaf(-v.w, x[k], x[4 * r + 3]);
            }
        }
#pragma unroll
        for (int r = 0; r < 16; ++r) solved[(block * 16 + r) * kPrepareStride + j] = x[r];
    }
}

// One warp: block (i, j) of T as a fragment.
__device__ __forceinline__ void prepare_fragment(const float* solved, uint4* to, int i, int j) {
    const int lane = threadIdx.x % 32;
    uint32_t high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const float2 v = *reinterpret_cast<const float2*>(
            solved + (i * 16 + e % 2 * 8 + lane / 4) * kPrepareStride + j * 16 + e / 2 * 8 + lane % 4 * 2);
        split_bf16(v.x, v.y, high[e], low[e]);
    }
    uint4* block = to + delta_triangle(i, j) * 64 + lane;
    block[0] = make_uint4(high[0], high[1], high[2], high[3]);
    block[32] = make_uint4(low[0], low[1], low[2], low[3]);
}

__device__ __forceinline__ int prepare_head(const DeltaCall& p, int key_head, int i) {
    const StateLayer& layer = p.op.state;
    return p.op.order == HeadOrder::block ? key_head * (layer.value_heads / layer.key_heads) + i
                                          : key_head + i * layer.key_heads;
}
// Gates of two value heads, a warp each.
__device__ __forceinline__ void prepare_two_gates(const DeltaChunks& p, std::byte* shared, int index,
                                                  int key_head, int base, int first_row, int rows) {
    const int warp = threadIdx.x / 32;
    if (warp >= 2 || base + warp >= p.call.op.state.value_heads / p.call.op.state.key_heads) return;
    const int head = prepare_head(p.call, key_head, base + warp);
    float* gates = reinterpret_cast<float*>(shared + PrepareShared::kGates) + warp * (kChunkGates / 4);
    float* out = reinterpret_cast<float*>(p.head_of(index, head) + 2 * kChunkTriangle);
    prepare_gates(p.call, gates, out, first_row, rows, head);
}
// The value heads of one key head, by twos.
__device__ __forceinline__ void prepare_heads(const DeltaChunks& p, std::byte* shared,
                                              const float (&acc)[8][4], int index, int key_head,
                                              int first_row, int rows) {
    const int share = p.call.op.state.value_heads / p.call.op.state.key_heads, warp = threadIdx.x / 32;
    float* before = reinterpret_cast<float*>(shared + PrepareShared::kBefore);
    float* solved = reinterpret_cast<float*>(shared + PrepareShared::kSolved);
    const float* gates = reinterpret_cast<const float*>(shared + PrepareShared::kGates);
    constexpr int kSquare = kPrepareSquare / 4, kBoth = kChunkGates / 4;
#pragma unroll 1
    for (int base = 0; base < share; base += 2) {
        const int count = min(share - base, 2);
        if (base > 0) prepare_two_gates(p, shared, index, key_head, base, first_row, rows);
        __syncthreads();  // also: nobody reads K, Q or the last heads' T any more
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            if (warp < 4) {
                prepare_before(acc, before + i * kSquare, gates + i * kBoth, warp);
            } else {
                std::byte* out = p.head_of(index, prepare_head(p.call, key_head, base + i)) + kChunkTriangle;
                prepare_within(acc, reinterpret_cast<uint4*>(out), gates + i * kBoth, warp - 4);
            }
        }
        __syncthreads();
        const int i = threadIdx.x / kChunkRows;
        if (i < count) prepare_solve(before + i * kSquare, solved + i * kSquare, threadIdx.x % kChunkRows);
        __syncthreads();
#pragma unroll 1
        for (int job = warp; job < count * 10; job += kPrepareThreads / 32) {
            const int block = job % 10, row = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3;
            std::byte* out = p.head_of(index, prepare_head(p.call, key_head, base + job / 10));
            prepare_fragment(solved + job / 10 * kSquare, reinterpret_cast<uint4*>(out), row,
                             block - delta_triangle(row, 0));
        }
    }
}

// Kernel     delta_prepare: 128 registers
__global__ void __launch_bounds__(kPrepareThreads, 2) delta_prepare(const __grid_constant__ DeltaChunks p) {
    extern __shared__ __align__(128) std::byte shared[];
    wait_for_predecessor();
    let_successor_start();
    const int key_head = blockIdx.x, warp = threadIdx.x / 32, chunks = p.plan.counts[0];
#pragma unroll 1
    for (int index = blockIdx.y; index < chunks; index += gridDim.y) {
        const DeltaChunk chunk = p.plan.chunks[index];
        const Segment& g = p.call.op.step.segments()[chunk.segment];
        prepare_two_gates(p, shared, index, key_head, 0, g.first_row + chunk.before, chunk.rows);
        prepare_rows(p.call, shared, g, chunk, key_head);
        __syncthreads();
        uint4* keys = reinterpret_cast<uint4*>(p.keys_of(index, key_head));
        const uint4* from = reinterpret_cast<const uint4*>(shared + PrepareShared::kKeyHigh);
#pragma unroll
        for (int i = 0; i < kChunkKeys / 16 / kPrepareThreads; ++i)
            keys[i * kPrepareThreads + threadIdx.x] = from[i * kPrepareThreads + threadIdx.x];
        float acc[8][4];
        const uint32_t at = shared_address(shared);
        prepare_products(acc, at + (warp < 4 ? PrepareShared::kKeyHigh : PrepareShared::kQueryHigh),
                         at + PrepareShared::kKeyHigh, warp % 4,
                         warp < 4 ? nullptr : reinterpret_cast<uint4*>(p.queries_of(index, key_head)));
        prepare_heads(p, shared, acc, index, key_head, g.first_row + chunk.before, chunk.rows);
        __syncthreads();
    }
}

}  // namespace sparkinfer::cuda
