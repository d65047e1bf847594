// mxfp4.h — 32 E2M1 values times 2^(e-127); byte j holds element j low and j+16 high.
#pragma once
#include "quant/e2m1.h"

namespace sparkinfer {

template <>
struct Format<Quant::mxfp4> : BlockFormat {
    static constexpr int block = 32, bytes = 17;
    struct SPARKINFER_PACKED Block {
        uint8_t e;
        uint8_t qs[16];
    };
    static_assert(sizeof(Block) == bytes);

    // 2^(e-128), for the doubled codes; subnormal for e < 2. Code 255 is an ordinary exponent here.
    HD SPARKINFER_INLINE static float half_scale(uint8_t e) {
        return float_of_bits(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23);
    }

    HD static float decode_block(const std::byte* b, int i) {
        const Block& x = block_at<Block>(b);
        const uint32_t q = i < 16 ? x.qs[i] & 15u : x.qs[i - 16] >> 4;
        return half_scale(x.e) * e2m1_doubled(q);
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++, out += block) {
            const Block& x = block_at<Block>(b, i);
            const float d = opaque(half_scale(x.e));
            for (int j = 0; j < 16; j++) out[j] = d * e2m1_doubled(x.qs[j] & 15u);
            for (int j = 0; j < 16; j++) out[j + 16] = d * e2m1_doubled(x.qs[j] >> 4);
        }
    }
};

}  // namespace sparkinfer
