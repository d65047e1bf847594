// bf16.h — bfloat16, little-endian, one element a block.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::bf16> : BlockFormat {
    static constexpr int block = 1, bytes = 2;
    struct SPARKINFER_PACKED Block {
        uint16_t bits;
    };
    static_assert(sizeof(Block) == bytes);

    HD static float decode_block(const std::byte* b, int) { return bf16_to_f32(block_at<Block>(b).bits); }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        for (int64_t i = 0; i < n; i++) out[i] = bf16_to_f32(block_at<Block>(b, i).bits);
    }
};

}  // namespace sparkinfer
