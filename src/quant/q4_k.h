// q4_k.h — 256 values in 8 sub-blocks of 32, y = d*s*q - dmin*m with q of 4 bits, s and m of 6.
#pragma once
#include "quant/k_scales.h"

namespace sparkinfer {

template <>
struct Format<Quant::q4_k> : BlockFormat {
    static constexpr int block = 256, bytes = 144;
    struct SPARKINFER_PACKED Block {
        uint16_t d, dmin;    // f16
        uint8_t scales[12];  // k_scales.h
        uint8_t qs[128];     // 32 bytes per pair of sub-blocks: even one low, odd one high
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        int scale = 0, minimum = 0;
        k_scale_min(x.scales, i / 32, &scale, &minimum);
        const int q = (x.qs[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15;
        return f16_to_f32(x.d) * float(scale) * float(q) - f16_to_f32(x.dmin) * float(minimum);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d)), dmin = opaque(f16_to_f32(x.dmin));
            for (int p = 0; p < 4; p++) {
                int s0 = 0, m0 = 0, s1 = 0, m1 = 0;
                k_scale_min(x.scales, 2 * p, &s0, &m0);
                k_scale_min(x.scales, 2 * p + 1, &s1, &m1);
                const float d0 = d * float(s0), min0 = dmin * float(m0), d1 = d * float(s1),
                            min1 = dmin * float(m1);
                const uint8_t* qs = x.qs + 32 * p;
                float* y = out + 64 * p;
                for (int l = 0; l < 32; l++) y[l] = d0 * float(qs[l] & 15) - min0;
                for (int l = 0; l < 32; l++) y[l + 32] = d1 * float(qs[l] >> 4) - min1;
            }
        }
    }
};

}  // namespace sparkinfer
