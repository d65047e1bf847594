// exponentials.h — exponentials of many values, by a polynomial with an error of at most 2 units in the last
// place.
//
// Sums: sixteen partial sums in float32, of the values whose index is equal modulo 16, over 1024 values at
// most, then added in float64 as a fixed tree. So the bits depend on the values alone.
#pragma once
#include <cstdint>

namespace sparkinfer {

// x[i] ← exp(scale · x[i] - m) with m the greatest scale · x[i]; returns the sum of them. A NaN stays one.
double soften(float* x, int64_t n, float scale);

// The greatest value; NaN is passed over; -inf if there is none.
float greatest_value(const float* x, int64_t n);

// Σ exp(x[i] - most), NaN passed over. most: at least the greatest value.
double sum_of_exponentials(const float* x, int64_t n, float most);

// gate[i] ← silu(gate[i]) · up[i]
void silu_product(float* gate, const float* up, int64_t n);

}  // namespace sparkinfer
