// integer_rows.h — rows of activations as integers, for products with the codes of quantised weights.
//
// 32 values share one scale, the largest magnitude over 32639 (16 bits) or 127 (8 bits). A 16-bit integer is
// 256 · high + low with both in int8, so that instructions for bytes multiply it exactly.
#pragma once
#include <cstdint>

#include "ops/backend.h"

namespace sparkinfer {

constexpr int kGroup = 32;  // values with one scale

struct IntegerGroup {
    int8_t codes[64];  // AVX-512: high [32], low [32]. AVX2: int16 [8][2][2]: values 4i, 4i+2; 4i+1, 4i+3
    float scale;       // value = scale · integer; NaN where a value is not finite
    float sum[2];      // scale · Σ integers of each half
    float sum_all;     // of all 32
};
static_assert(sizeof(IntegerGroup) == 80);

// The instructions that the products are written with: AVX-512 with VNNI, or AVX2. Elsewhere activations stay
// float32.
enum class IntegerForm : uint8_t { none, avx2, avx512 };
IntegerForm integer_form();  // the best of this machine

// to[g] = the 32 values from 32 · g on; k: a multiple of 32. kind: int16 or int8.
void make_integers(const float* x, int64_t k, Activations kind, IntegerGroup* to,
                   IntegerForm form = integer_form());

}  // namespace sparkinfer
