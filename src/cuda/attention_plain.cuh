// attention_plain.cuh — attention over the paged KV, one block per (row, head), any length.
// Computes   ops.h: Attention
// Shapes     q [T, H, d∈{32,64,96,128,256}]   pages [n, 2, G, 64, d] F32, BF16 or FP8   y [T, H, d]
// Mapping    append: a warp per (row, head of q, k or v); plain: 4 warps take every fourth key, a lane owns
//            d/32 columns, online softmax each, merged ascending.
// Memory     reads K and V once per query head: H/G times too often. Floor: 2·len·G·d·bytes.
// Limits     none on length. sm_80+.
// Tested     tests/ops/attention.cpp against cpu/.
#pragma once
#include "cuda/attention_heads.cuh"
#include "cuda/launch.h"
#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

struct AttentionCall {
    Attention op;
    float* q;  // [T, H, d]
};

// Kernel     attention_append: 56 registers, 1024 bytes
template <int kWidth, class Stored>
__global__ void __launch_bounds__(32) attention_append(const AttentionCall p) {
    __shared__ float head[kWidth];
    wait_for_predecessor();
    const Attention& o = p.op;
    const int r = blockIdx.y, lane = threadIdx.x, heads = o.heads, groups = o.kv.heads;
    const LiveRow row = live_row(o.step, o.slots, r);
    if (!row.present) return;
    int h = blockIdx.x;
    const int kind = h < heads ? 0 : h < heads + groups ? 1 : 2;  // q, k, v
    h -= kind == 0 ? 0 : kind == 1 ? heads : heads + groups;
    const float* x = kind == 0 ? o.q.row(r) + int64_t(h) * kWidth * (o.gated ? 2 : 1)
                               : (kind == 1 ? o.k.row(r) : o.v.row(r)) + int64_t(h) * kWidth;
    const float* norm = static_cast<const float*>(kind == 0   ? o.q_norm.data
                                                  : kind == 1 ? o.k_norm.data
                                                              : nullptr);
    float values[kWidth / 32], gain[kWidth / 32] = {};
    load_head<kWidth>(values, x, lane);
    if (norm) load_head<kWidth>(gain, norm, lane);
    if (kind != 2) {
        prepare_head<kWidth>(values, norm != nullptr, gain, o.eps, o.rope,
                             turn_at<kWidth>(o.rope, row.position, lane), head, lane);
    } else {
        for (int j = 0; j < kWidth / 32; ++j) head[j * 32 + lane] = values[j];
        __syncwarp();
    }
    if (kind == 0) {
        float* q = p.q + (int64_t(r) * heads + h) * kWidth;
        for (int i = lane; i < kWidth; i += 32) q[i] = head[i];
    } else {
        Stored* to = kv_at<Stored>(o.kv, o.slots.pages(row.slot), row.index, kind - 1, h);
        for (int i = lane; i < kWidth; i += 32) to[i] = Stored(head[i]);
    }
}

constexpr int kAttentionWarps = 4;

// Kernel     attention_plain: 56 registers, 4224 bytes
template <int kWidth, class Stored>
__global__ void __launch_bounds__(kAttentionWarps * 32) attention_plain(const AttentionCall p) {
    constexpr int kColumns = kWidth / 32;
    __shared__ float shared_y[kAttentionWarps][kWidth];
    __shared__ float shared_max[kAttentionWarps], shared_sum[kAttentionWarps];
    wait_for_predecessor();
    const Attention& o = p.op;
    const int r = blockIdx.y, h = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const LiveRow row = live_row(o.step, o.slots, r);
    float* out = o.y.row(r) + int64_t(h) * kWidth;
    if (!row.present) {
        for (int i = threadIdx.x; i < kWidth; i += blockDim.x) out[i] = 0;
        return;
    }
    const int g = h / (o.heads / o.kv.heads);
    const int32_t* pages = o.slots.pages(row.slot);
    const float* q = p.q + (int64_t(r) * o.heads + h) * kWidth;
    float qv[kColumns], y[kColumns] = {}, most = -INFINITY, sum = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) qv[c] = q[c * 32 + lane] * o.scale;
    for (int key = warp; key <= row.index; key += kAttentionWarps) {
        const Stored* k = kv_at<Stored>(o.kv, pages, key, 0, g);
        const Stored* v = kv_at<Stored>(o.kv, pages, key, 1, g);
        float dot = 0;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) dot += qv[c] * float(k[c * 32 + lane]);
        dot = warp_sum(dot);
        const float top = fmaxf(most, dot), keep = expf(most - top), e = expf(dot - top);
        sum = sum * keep + e;
        most = top;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) y[c] = y[c] * keep + e * float(v[c * 32 + lane]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) shared_y[warp][c * 32 + lane] = y[c];
    if (lane == 0) shared_max[warp] = most, shared_sum[warp] = sum;
    __syncthreads();
    float top = -INFINITY, total = 0, part[kAttentionWarps];
#pragma unroll
    for (int w = 0; w < kAttentionWarps; ++w) top = fmaxf(top, shared_max[w]);
#pragma unroll
    for (int w = 0; w < kAttentionWarps; ++w) total += (part[w] = expf(shared_max[w] - top)) * shared_sum[w];
    const float* gate = o.gated ? o.q.row(r) + (int64_t(h) * 2 + 1) * kWidth : nullptr;
    for (int i = threadIdx.x; i < kWidth; i += blockDim.x) {
        float v = 0;
#pragma unroll
        for (int w = 0; w < kAttentionWarps; ++w) v += part[w] * shared_y[w][i];
        v /= total;
        out[i] = gate ? v * sigmoid(gate[i]) : v;
    }
}

}  // namespace sparkinfer::cuda
