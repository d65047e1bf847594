// q8_0.h — 32 values as y = d*q with q a signed byte.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::q8_0> : BlockFormat {
    static constexpr int block = 32, bytes = 34;
    struct SPARKINFER_PACKED Block {
        uint16_t d;  // f16
        int8_t qs[32];
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        return f16_to_f32(x.d) * float(x.qs[i]);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d));
            for (int j = 0; j < 32; j++) out[j] = d * float(x.qs[j]);
        }
    }
};

}  // namespace sparkinfer
