// e2m1.h — E2M1 codes as the doubled integers that the GGUF four-bit float formats multiply with half a
// scale.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

// Twice the value of an E2M1 code: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. Code 8 gives plain zero.
HD SPARKINFER_INLINE int e2m1_doubled(uint32_t code) {
    const int low = int(code & 3u);
    const int large = (2 + (low & 1)) * (low & 2 ? 4 : 2);
    const int magnitude = code & 4u ? large : low;
    return code & 8u ? -magnitude : magnitude;
}

}  // namespace sparkinfer
