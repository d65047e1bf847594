// q6_k.h — 256 values in 16 groups of 16, y = d*s*(q-32) with q of 6 bits and s a signed byte.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::q6_k> : BlockFormat {
    static constexpr int block = 256, bytes = 210;
    struct SPARKINFER_PACKED Block {
        uint8_t ql[128];    // 64 bytes per half: byte l holds the low nibbles of elements l and l+64
        uint8_t qh[64];     // 32 bytes per half: byte l holds the high pairs of elements l, l+32, l+64, l+96
        int8_t scales[16];  // one per 16 elements
        uint16_t d;         // f16
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int half = i / 128, quarter = i / 32 % 4, l = i % 32;
        const int low = (x.ql[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2))) & 15;
        const int q = low | ((x.qh[32 * half + l] >> (2 * quarter)) & 3) << 4;
        return f16_to_f32(x.d) * float(x.scales[i / 16]) * float(q - 32);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = f16_to_f32(x.d);
            for (int k = 0; k < 8; k++) {  // 32 elements: two groups
                const uint8_t* ql = x.ql + 64 * (k / 4) + 32 * (k % 2);
                const uint8_t* qh = x.qh + 32 * (k / 4);
                const float s0 = d * float(x.scales[2 * k]), s1 = d * float(x.scales[2 * k + 1]);
                const int low = 4 * (k / 2 % 2), high = 2 * (k % 4);
                float* y = out + 32 * k;
                for (int l = 0; l < 16; l++)
                    y[l] = s0 * float((((ql[l] >> low) & 15) | ((qh[l] >> high) & 3) << 4) - 32);
                for (int l = 16; l < 32; l++)
                    y[l] = s1 * float((((ql[l] >> low) & 15) | ((qh[l] >> high) & 3) << 4) - 32);
            }
        }
    }
};

}  // namespace sparkinfer
