// q4_0.h — 32 values as y = d*(q-8) with q of 4 bits; byte j holds q[j] low and q[j+16] high.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::q4_0> : BlockFormat {
    static constexpr int block = 32, bytes = 18;
    struct SPARKINFER_PACKED Block {
        uint16_t d;  // f16
        uint8_t qs[16];
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int q = i < 16 ? x.qs[i] & 15 : x.qs[i - 16] >> 4;
        return f16_to_f32(x.d) * float(q - 8);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d));
            SPARKINFER_ROLLED
            for (int j = 0; j < 16; j++) out[j] = d * float((x.qs[j] & 15) - 8);
            SPARKINFER_ROLLED
            for (int j = 0; j < 16; j++) out[j + 16] = d * float((x.qs[j] >> 4) - 8);
        }
    }
};

}  // namespace sparkinfer
