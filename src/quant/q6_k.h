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
        const int8_t scale = x.scales[i / 16];
        return f16_to_f32(x.d) * float(scale) * float(q - 32);
    }
    // 16 elements of one group of quarter `kQuarter` of a half.
    template <int kQuarter>
    SPARKINFER_INLINE static void decode_group(const uint8_t* __restrict__ ql, const uint8_t* __restrict__ qh,
                                               float scale, float* __restrict__ out) {
        constexpr int kLow = 4 * (kQuarter / 2), kHigh = 2 * kQuarter;
        for (int l = 0; l < 16; l++)
            out[l] = scale * float((((ql[l] >> kLow) & 15) | ((qh[l] >> kHigh) & 3) << 4) - 32);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d));
            for (int g = 0; g < 4; g++) {  // left and right 16 of the lines of 32, in each half
                const uint8_t* ql = x.ql + 64 * (g / 2) + 16 * (g % 2);
                const uint8_t* qh = x.qh + 32 * (g / 2) + 16 * (g % 2);
                const int8_t* scales = x.scales + 8 * (g / 2) + g % 2;
                float* y = out + 128 * (g / 2) + 16 * (g % 2);
                decode_group<0>(ql, qh, d * float(scales[0]), y);
                decode_group<1>(ql + 32, qh, d * float(scales[2]), y + 32);
                decode_group<2>(ql, qh, d * float(scales[4]), y + 64);
                decode_group<3>(ql + 32, qh, d * float(scales[6]), y + 96);
            }
        }
    }
};

}  // namespace sparkinfer
