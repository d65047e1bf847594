// iq4.h — the 16 values that IQ4_NL and IQ4_XS choose from, denser around zero than a uniform grid.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

// Value of a 4-bit code, -127..113.
HD SPARKINFER_INLINE float iq4_value(uint32_t code) {
    constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return float(kValues[code & 15u]);
}

}  // namespace sparkinfer
