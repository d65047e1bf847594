// gated_delta_row.cuh — one row of the gated delta rule on a head's S, as both kernels that go row by row
// take it: gated_delta_step.cuh and gated_delta_heads.cuh have the same bits.
#pragma once
#include "cuda/gated_delta_state.cuh"
#include "cuda/lib/reduce.cuh"

namespace sparkinfer::cuda {

constexpr int kDeltaBlocks = 4;                            // of a cluster
constexpr int kDeltaColumns = kDeltaWidth / kDeltaBlocks;  // of S in a block, one a lane of warp 8
constexpr int kDeltaWarps = 8;                             // that hold S
constexpr int kDeltaThreads = (kDeltaWarps + 1) * 32;
constexpr int kDeltaBatch = 8;  // rows between exchanges
static_assert(kDeltaColumns == 32 && kDeltaWarps * 16 == kDeltaWidth,
              "thread (warp, lane) holds 4 by 4 cells of S");

// |k|², |q|² and q·k, in all lanes of a warp.
__device__ __forceinline__ float3 delta_products(const float* key, const float* query, int lane) {
    const float4 k = *reinterpret_cast<const float4*>(key + lane * 4);
    const float4 q = *reinterpret_cast<const float4*>(query + lane * 4);
    const float kk = warp_sum(k.x * k.x + k.y * k.y + k.z * k.z + k.w * k.w);
    const float qq = warp_sum(q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w);
    const float qk = warp_sum(q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w);
    return make_float3(kk, qq, qk);
}
// What makes q and k of length 1.
struct DeltaNorms {
    float key_scale, query_scale, key_query;  // 1/|k|, 128^-½/|q|, q·k normalised
    DeltaNorms() = default;
    __device__ __forceinline__ explicit DeltaNorms(const float3& of) {
        key_scale = rsqrtf(of.x + 1e-6f);
        query_scale = rsqrtf(of.y + 1e-6f) * 0.08838834764831845f;  // 128^-½
        key_query = of.z * key_scale * query_scale;
    }
};
// d, and S after the row: the same roundings whether a row is run, or folded from the log.
__device__ __forceinline__ float delta_change(float beta, float value, float keep_scale, float read) {
    return __fmul_rn(beta, __fmaf_rn(-keep_scale, read, value));
}
__device__ __forceinline__ float delta_cell(float s, float keep, float key, float d) {
    return __fmaf_rn(key, d, __fmul_rn(keep, s));
}

// Sᵀk and Sᵀq of a warp's 16 rows: over a thread's 4, then over the 4 threads of a column group, each of
// which ends with two columns of one product.
__device__ __forceinline__ void delta_read(const float (&cell)[4][4], const float (&key)[4],
                                           const float (&query)[4], int lane, float* read_key,
                                           float* read_query) {
    float by_key[4], by_query[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        by_key[j] = __fmul_rn(cell[0][j], key[0]);
        by_query[j] = __fmul_rn(cell[0][j], query[0]);
    }
#pragma unroll
    for (int i = 1; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            by_key[j] = __fmaf_rn(cell[i][j], key[i], by_key[j]);
            by_query[j] = __fmaf_rn(cell[i][j], query[i], by_query[j]);
        }
    const bool second = lane & 16, upper = lane & 8;
    float sum[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        sum[j] = (second ? by_query[j] : by_key[j]) +
                 __shfl_xor_sync(kWholeWarp, second ? by_key[j] : by_query[j], 16);
    float2 two;
    two.x = (upper ? sum[2] : sum[0]) + __shfl_xor_sync(kWholeWarp, upper ? sum[0] : sum[2], 8);
    two.y = (upper ? sum[3] : sum[1]) + __shfl_xor_sync(kWholeWarp, upper ? sum[1] : sum[3], 8);
    float* to = (second ? read_query : read_key) + lane % 8 * 4 + (upper ? 2 : 0);
    *reinterpret_cast<float2*>(to) = two;
}
__device__ __forceinline__ float delta_sum(const float (&part)[kDeltaWarps]) {
    static_assert(kDeltaWarps == 8, "summed in this order everywhere");
    return __fadd_rn(__fadd_rn(__fadd_rn(part[0], part[1]), __fadd_rn(part[2], part[3])),
                     __fadd_rn(__fadd_rn(part[4], part[5]), __fadd_rn(part[6], part[7])));
}

}  // namespace sparkinfer::cuda
