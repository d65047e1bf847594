// q2_k.h — 256 values in 16 groups of 16, y = d*s*q - dmin*m with q of 2 bits and a byte m:s per group.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::q2_k> : BlockFormat {
    static constexpr int block = 256, bytes = 84;
    struct SPARKINFER_PACKED Block {
        uint8_t scales[16];  // low nibble scale, high nibble minimum
        uint8_t qs[64];      // 128 values per 32 bytes: byte l holds elements l, l+32, l+64, l+96
        uint16_t d, dmin;    // f16
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int s = x.scales[i / 16], half = i / 128, shift = 2 * (i / 32 % 4);
        const int q = (x.qs[32 * half + i % 32] >> shift) & 3;
        return f16_to_f32(x.d) * float(s & 15) * float(q) - f16_to_f32(x.dmin) * float(s >> 4);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d)), dmin = opaque(f16_to_f32(x.dmin));
            for (int g = 0; g < 16; g++) {
                const float scale = d * float(x.scales[g] & 15), minimum = dmin * float(x.scales[g] >> 4);
                const uint8_t* qs = x.qs + 32 * (g / 8) + 16 * (g % 2);
                const int shift = 2 * (g / 2 % 4);
                for (int l = 0; l < 16; l++) out[16 * g + l] = scale * float((qs[l] >> shift) & 3) - minimum;
            }
        }
    }
};

}  // namespace sparkinfer
