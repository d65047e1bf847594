// q5_k.h — Q4_K with a fifth bit per value: bit k of qh[l] belongs to element l of sub-block k.
#pragma once
#include "quant/k_scales.h"

namespace sparkinfer {

template <>
struct Format<Quant::q5_k> : BlockFormat {
    static constexpr int block = 256, bytes = 176;
    struct SPARKINFER_PACKED Block {
        uint16_t d, dmin;    // f16
        uint8_t scales[12];  // k_scales.h
        uint8_t qh[32];
        uint8_t qs[128];  // 32 bytes per pair of sub-blocks: even one low, odd one high
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int k = i / 32, l = i % 32;
        int scale = 0, minimum = 0;
        k_scale_min(x.scales, k, &scale, &minimum);
        const int low = (x.qs[32 * (k / 2) + l] >> (4 * (k % 2))) & 15;
        const int q = low | ((x.qh[l] >> k) & 1) << 4;
        return f16_to_f32(x.d) * float(scale) * float(q) - f16_to_f32(x.dmin) * float(minimum);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d)), dmin = opaque(f16_to_f32(x.dmin));
            for (int k = 0; k < 8; k++) {
                int scale = 0, minimum = 0;
                k_scale_min(x.scales, k, &scale, &minimum);
                const float ds = d * float(scale), dm = dmin * float(minimum);
                const uint8_t* qs = x.qs + 32 * (k / 2);
                const int shift = 4 * (k % 2);
                for (int l = 0; l < 32; l++) {
                    const int q = ((qs[l] >> shift) & 15) | ((x.qh[l] >> k) & 1) << 4;
                    out[32 * k + l] = ds * float(q) - dm;
                }
            }
        }
    }
};

}  // namespace sparkinfer
