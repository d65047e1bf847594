// f32.h — plain float32, little-endian, one element a block.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::f32> : BlockFormat {
    static constexpr int block = 1, bytes = 4;
    HD static float decode_block(const std::byte* b, int) {
        float value;
        memcpy(&value, b, sizeof value);
        return value;
    }
    SPARKINFER_INLINE static void decode_blocks(const std::byte* __restrict__ b, int64_t n,
                                                float* __restrict__ out) {
        memcpy(out, b, size_t(n) * sizeof(float));
    }
};

}  // namespace sparkinfer
