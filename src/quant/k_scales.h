// k_scales.h — the twelve bytes of eight 6-bit scales and eight 6-bit minima that Q4_K and Q5_K share.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

// Scale and minimum of sub-block k (0..7), each 0..63. Sub-blocks 0..3 lie in the low six bits of bytes k and
// k+4; the others in the nibbles of byte k+4, with their upper two bits on top of bytes k-4 and k.
HD SPARKINFER_INLINE void k_scale_min(const uint8_t* s, int k, int* scale, int* minimum) {
    if (k < 4) {
        *scale = s[k] & 63;
        *minimum = s[k + 4] & 63;
    } else {
        *scale = (s[k + 4] & 15) | (s[k - 4] >> 6) << 4;
        *minimum = (s[k + 4] >> 4) | (s[k] >> 6) << 4;
    }
}

}  // namespace sparkinfer
