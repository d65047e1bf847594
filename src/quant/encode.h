// encode.h — float32 rows to the block formats that GGUF files are quantised to: the other direction of
// decode.h.
//
// F16 and BF16 round to nearest even. Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 take their scale from the block's
// extreme values; Q4_K, Q5_K and Q6_K search scale and minimum of every sub-block for the least weighted
// square error. With importance (how much the square of an input of the column is, on average over a text)
// all but Q8_0 search with it. The bits do not depend on the machine.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/quant.h"

namespace sparkinfer {

// f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k
bool can_encode(Quant q);

// out = `n` values as n / quant_block(q) blocks. `importance`: n values of at least 0, or null.
// REQUIRES: can_encode(q), n a multiple of the block, all values finite.
void encode_row(Quant q, const float* x, int64_t n, const float* importance, std::byte* out);

}  // namespace sparkinfer
