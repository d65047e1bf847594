// q3_k.h — 256 values in 16 groups of 16, y = d*(s-32)*(q-4) with q of 3 bits and s of 6.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::q3_k> : BlockFormat {
    static constexpr int block = 256, bytes = 110;
    struct SPARKINFER_PACKED Block {
        uint8_t hmask[32];   // bit i/32 of byte i%32: the third bit of element i
        uint8_t qs[64];      // two bits per element, laid out as in Q2_K
        uint8_t scales[12];  // 16 scales: low nibbles in bytes 0..7, high bit pairs in bytes 8..11
        uint16_t d;          // f16
    };
    static_assert(sizeof(Block) == bytes);

    // The 6-bit scale of group g, 0..63.
    HD SPARKINFER_INLINE static int group_scale(const Block& x, int g) {
        const int low = g < 8 ? x.scales[g] & 15 : x.scales[g - 8] >> 4;
        return low | ((x.scales[8 + g % 4] >> (2 * (g / 4))) & 3) << 4;
    }

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int low = (x.qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3;
        const int q = low | ((x.hmask[i % 32] >> (i / 32)) & 1) << 2;
        return f16_to_f32(x.d) * float(group_scale(x, i / 16) - 32) * float(q - 4);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d));
            for (int g = 0; g < 16; g++) {
                const float scale = d * float(group_scale(x, g) - 32);
                const uint8_t* qs = x.qs + 32 * (g / 8) + 16 * (g % 2);
                const uint8_t* high = x.hmask + 16 * (g % 2);
                const int shift = 2 * (g / 2 % 4), bit = g / 2;
                for (int l = 0; l < 16; l++) {
                    const int q = ((qs[l] >> shift) & 3) | ((high[l] >> bit) & 1) << 2;
                    out[16 * g + l] = scale * float(q - 4);
                }
            }
        }
    }
};

}  // namespace sparkinfer
