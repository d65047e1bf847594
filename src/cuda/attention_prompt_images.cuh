// attention_prompt_images.cuh — keys and values as operands of attention_prompt.cuh.
// BF16: FP16 with a power of two per token, so that any magnitude fits and a token's operands do not depend
// on its neighbours. FP8: FP16, exact. F32: two planes of BF16 whose sum has 16 bits.
// Computes   images of pages: what the ring of attention_prompt_source.cuh holds of K or V of one kv head.
//            Every tile and query head reads them, so that the work is done once.
// Shapes     pages [n, 2, G, 64, d∈{64,128,256}] BF16|F32|FP8
//            image: planes [64, d] of 16 bits, 16-byte chunk c of token t at c ^ t % 8; BF16: then [64]
//            factors as PromptShared has them, then whether some is not 1
// Mapping    blocks take turns at (page, kv head, K or V); a lane has eight neighbouring columns of a token
// Memory     reads K and V of all keys of long segments once and writes as much. Floor = bytes / bandwidth.
// Limits     sm_80+.
// Tested     tests/ops/attention_prompt.cpp
#pragma once
#include "cuda/attention_prompt_plan.cuh"

namespace sparkinfer::cuda {

template <int kWidth, class Stored>
struct PromptImage {
    static constexpr bool kExact = std::is_same_v<Stored, float>,
                          kFactors = std::is_same_v<Stored, __nv_bfloat16>;
    static constexpr int kPlaneBytes = kPageTokens * kWidth * 2, kFactorsAt = (kExact ? 2 : 1) * kPlaneBytes;
    static constexpr int kScaledAt = kFactorsAt + kPageTokens * 8;
    static constexpr int kBytes = kFactors ? kScaledAt + 128 : kFactorsAt;
};

// BF16 to FP16 in place, times 2^-e, e of a whole token, of whose columns kLanes lanes have eight each.
// Tokens side by side: one alone is a long chain.
template <int kLanes, int kTokens>
__device__ __forceinline__ void narrow(uint4 (&raw)[kTokens], int (&e)[kTokens]) {
    constexpr uint32_t kMagnitude = 0x7fff7fffu;
    uint32_t most[kTokens];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
        most[j] = __vmaxu2(__vmaxu2(raw[j].x & kMagnitude, raw[j].y & kMagnitude),
                           __vmaxu2(raw[j].z & kMagnitude, raw[j].w & kMagnitude));
        most[j] = max(most[j] & 0xffffu, most[j] >> 16);
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
        if constexpr (kLanes == 32) {
            most[j] = __reduce_max_sync(kWholeWarp, most[j]);
        } else {
#pragma unroll
            for (int d = kLanes / 2; d; d /= 2)
                most[j] = max(most[j], __shfl_xor_sync(kWholeWarp, most[j], d));
        }
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
        e[j] = operand_exponent(__uint_as_float(most[j] << 16));
        const uint32_t scale = uint32_t(127 - e[j]) * 0x00800080u;
        const auto one = [&](uint32_t& x) {
            const __nv_bfloat162 scaled = __hmul2(reinterpret_cast<const __nv_bfloat162&>(x),
                                                  reinterpret_cast<const __nv_bfloat162&>(scale));
            const uint32_t w = reinterpret_cast<const uint32_t&>(scaled);
            const __half2 h = __floats2half2_rn(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
            x = reinterpret_cast<const uint32_t&>(h);
        };
        one(raw[j].x), one(raw[j].y), one(raw[j].z), one(raw[j].w);
    }
}
__device__ __forceinline__ float2 token_factor(int e, bool values) {
    return values ? float2{float(e), power_of_two(-e)} : float2{power_of_two(e), 0};
}
__device__ __forceinline__ void split_eight(uint4 a, uint4 b, uint4& high, uint4& low) {
    split_bf16(__uint_as_float(a.x), __uint_as_float(a.y), high.x, low.x);
    split_bf16(__uint_as_float(a.z), __uint_as_float(a.w), high.y, low.y);
    split_bf16(__uint_as_float(b.x), __uint_as_float(b.y), high.z, low.z);
    split_bf16(__uint_as_float(b.z), __uint_as_float(b.w), high.w, low.w);
}
__device__ __forceinline__ uint4 widen_eight(uint2 x) {
    const uint2 a = e4m3_to_f16(x.x), b = e4m3_to_f16(x.y);
    return make_uint4(a.x, a.y, b.x, b.y);
}

// Kernel     attention_images: 64 registers
template <int kWidth, class Stored>
__global__ void __launch_bounds__(256) attention_images(const PromptCall p) {
    using Image = PromptImage<kWidth, Stored>;
    constexpr int kLanes = kWidth / 8, kTokens = 32 / kLanes, kChunks = kPageTokens / 8 / kTokens;
    constexpr int kUnits = int(sizeof(Stored)) / 2 > 0 ? int(sizeof(Stored)) / 2 : 1;  // uint4 of a lane
    wait_for_predecessor();
    const KvLayer& kv = p.op.kv;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = p.plan.counts[2] * kv.heads * 2;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const PromptPage page = p.plan.pages[unit / 2 / kv.heads];
        const int g = unit / 2 % kv.heads, values = unit % 2;
        std::byte* image = p.images + int64_t(unit) * Image::kBytes;
        const Stored* from =
            kv_at<Stored>(kv, p.op.slots.pages(page.slot), page.page * kPageTokens, values, g);
        uint4 raw[kUnits][kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const int t = (i * 8 + warp) * kTokens + lane / kLanes;
#pragma unroll
            for (int u = 0; u < kUnits; ++u) {
                raw[u][i] = make_uint4(0, 0, 0, 0);
                const Stored* x = from + t * kWidth + lane % kLanes * 8;
                if (t >= page.limit) continue;
                if constexpr (sizeof(Stored) == 1) {
                    const uint2 v = *reinterpret_cast<const uint2*>(x);
                    raw[u][i].x = v.x, raw[u][i].y = v.y;
                } else {
                    raw[u][i] = reinterpret_cast<const uint4*>(x)[u];
                }
            }
        }
        [[maybe_unused]] int e[kChunks];
        if constexpr (Image::kFactors) narrow<kLanes>(raw[0], e);
        [[maybe_unused]] int scaled = 0;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const int t = (i * 8 + warp) * kTokens + lane / kLanes;
            auto* to = reinterpret_cast<uint4*>(image + t * kWidth * 2) + ((lane % kLanes) ^ (t & 7));
            if constexpr (Image::kFactors) {
                *to = raw[0][i];
                scaled |= e[i];
                if (lane % kLanes == 0)
                    reinterpret_cast<float2*>(image + Image::kFactorsAt)[t] = token_factor(e[i], values);
            } else if constexpr (Image::kExact) {
                uint4 high, low;
                split_eight(raw[0][i], raw[kUnits - 1][i], high, low);
                to[0] = high;
                to[Image::kPlaneBytes / 16] = low;
            } else {
                *to = widen_eight(make_uint2(raw[0][i].x, raw[0][i].y));
            }
        }
        if constexpr (Image::kFactors) {
            const int any = __syncthreads_or(scaled);
            if (threadIdx.x < 4) reinterpret_cast<int*>(image + Image::kScaledAt)[threadIdx.x] = any;
        }
    }
}

}  // namespace sparkinfer::cuda
