// e2m1.h — E2M1 codes as the doubled values that the GGUF four-bit float formats multiply with half a scale.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

// Twice the value of an E2M1 code: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. Code 8 gives plain zero.
HD SPARKINFER_INLINE float e2m1_doubled(uint32_t code) {
    const uint32_t magnitude = code & 7u;
    const uint32_t normal = (magnitude << 22) + (127u << 23);
    const uint32_t tiny = magnitude * 0x3f800000u;  // 0 or 1
    const uint32_t sign = select_bits(magnitude != 0, (code & 8u) << 28, 0u);
    return float_of_bits(select_bits(magnitude < 2u, tiny, normal) | sign);
}

}  // namespace sparkinfer
