// decode_rows.h — rows of a weight matrix as float32, with short cuts for the formats that a user waits for
// on a CPU.
#pragma once
#include <cstdint>

#include "quant/quant.h"

namespace sparkinfer {

// out[r * stride …] = row first + r of the matrix, r < rows; the bits are those of decode_row
// (quant/decode.h).
void decode_rows(const Weight& w, int expert, int first, int rows, float* out, int64_t stride);

}  // namespace sparkinfer
