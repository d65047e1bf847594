// iq4_xs.h — 256 values in 8 sub-blocks of 32, y = d*(s-32)*K[q] with q of 4 bits and s of 6.
#pragma once
#include "quant/iq4.h"

namespace sparkinfer {

template <>
struct Format<Quant::iq4_xs> : BlockFormat {
    static constexpr int block = 256, bytes = 136;
    struct SPARKINFER_PACKED Block {
        uint16_t d;           // f16
        uint16_t scales_h;    // bits 2k and 2k+1: the upper two bits of scale k
        uint8_t scales_l[4];  // nibbles: the lower four bits of scales 2k (low) and 2k+1 (high)
        uint8_t qs[128];      // 16 bytes per sub-block, as in IQ4_NL
    };
    static_assert(sizeof(Block) == bytes);

    // The 6-bit scale of sub-block k, 0..63.
    HD SPARKINFER_INLINE static int sub_scale(const Block& x, int k) {
        return ((x.scales_l[k / 2] >> (4 * (k % 2))) & 15) | ((x.scales_h >> (2 * k)) & 3) << 4;
    }

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int k = i / 32, j = i % 32;
        const int q = (x.qs[16 * k + j % 16] >> (4 * (j / 16))) & 15;
        return f16_to_f32(x.d) * float(sub_scale(x, k) - 32) * iq4_value(uint32_t(q));
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d));
            for (int k = 0; k < 8; k++) {
                const float scale = d * float(sub_scale(x, k) - 32);
                const uint8_t* qs = x.qs + 16 * k;
                float* y = out + 32 * k;
                for (int j = 0; j < 16; j++) y[j] = scale * iq4_value(qs[j] & 15);
                for (int j = 0; j < 16; j++) y[j + 16] = scale * iq4_value(qs[j] >> 4);
            }
        }
    }
};

}  // namespace sparkinfer
