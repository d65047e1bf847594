// q5_0.h — 32 values as y = d*(q-16) with q of 5 bits: four as in Q4_0, the fifth is bit j of qh.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::q5_0> : BlockFormat {
    static constexpr int block = 32, bytes = 22;
    struct SPARKINFER_PACKED Block {
        uint16_t d;  // f16
        uint32_t qh;
        uint8_t qs[16];
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const int low = i < 16 ? x.qs[i] & 15 : x.qs[i - 16] >> 4;
        const int q = low | int((x.qh >> i) & 1u) << 4;
        return f16_to_f32(x.d) * float(q - 16);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(f16_to_f32(x.d));
            const uint32_t qh = x.qh;
            SPARKINFER_ROLLED
            for (int j = 0; j < 16; j++) out[j] = d * float(((x.qs[j] & 15) | int((qh >> j) & 1u) << 4) - 16);
            SPARKINFER_ROLLED
            for (int j = 0; j < 16; j++)
                out[j + 16] = d * float(((x.qs[j] >> 4) | int((qh >> (j + 16)) & 1u) << 4) - 16);
        }
    }
};

}  // namespace sparkinfer
