// nvfp4.h — 64 E2M1 values in 4 groups of 16 with an unsigned E4M3 scale each (the GGUF layout).
#pragma once
#include "quant/e2m1.h"

namespace sparkinfer {

template <>
struct Format<Quant::nvfp4> : BlockFormat {
    static constexpr int block = 64, bytes = 36;
    struct SPARKINFER_PACKED Block {
        uint8_t d[4];    // E4M3
        uint8_t qs[32];  // 8 bytes per group: byte j holds element j low and j+8 high
    };
    static_assert(sizeof(Block) == bytes);

    // Half the group scale, for the doubled codes. The sign bit is ignored and 0x7f counts as zero.
    HD SPARKINFER_INLINE static float half_scale(uint8_t code) {
        const uint32_t magnitude = code & 0x7fu;
        const float normal = float_of_bits((magnitude << 20) + (119u << 23));
        const float scale = magnitude < 8u ? float(int32_t(magnitude)) * 0x1p-10f : normal;
        return code == 0x7fu ? 0.0f : scale;
    }

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int g = i / 16, j = i % 16;
        const uint32_t q = uint32_t(x.qs[8 * g + j % 8] >> (4 * (j / 8))) & 15u;
        return half_scale(x.d[g]) * e2m1_doubled(q);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            for (int g = 0; g < 4; g++) {
                const float d = opaque(half_scale(x.d[g]));
                const uint8_t* qs = x.qs + 8 * g;
                float* y = out + 16 * g;
                for (int j = 0; j < 8; j++) y[j] = d * e2m1_doubled(qs[j] & 15u);
                for (int j = 0; j < 8; j++) y[j + 8] = d * e2m1_doubled(qs[j] >> 4);
            }
        }
    }
};

}  // namespace sparkinfer
