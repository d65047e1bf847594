// fit.h — scales and minima that lose least: the searches behind the encoders of encode.h.
//
// All of them minimise Σ w·(x − x̂)². For given codes the best scale (and minimum) has a closed form; so codes
// are rounded with a range of trial scales, each gets its closed form, and the best is kept.
#pragma once
#include <cstdint>

namespace sparkinfer {

// Rounds to the nearest integer, ties to even, by the float adder. REQUIRES: |x| < 2^22.
int round_to_int(float x);

// The importance of `n` columns from `first` on; null when there is none or it is 0 for all of them, which
// would leave their scale open.
const float* useful(const float* importance, int64_t first, int n);

struct ScaleMin {
    float scale = 0, min = 0;  // x̂ = scale·q + min, min at most 0
};
// Trial scales (q_max + first + step·i) / (max − min), i = 0 … steps, after that of q_max itself; min is the
// best so far.
struct Trials {
    float first = 0, step = 0;
    int steps = 0;
};
// Codes q of 0 … q_max for n <= 32 values: q[n].
ScaleMin fit_scale_min(const float* x, const float* w, int n, int q_max, const Trials& trials, uint8_t* q);

// Codes of −half … half − 1, stored + half, for n <= 32 values: q[n]. `w` null: w = x². Returns the scale.
float fit_scale(const float* x, const float* w, int n, int half, int8_t* q);

// Codes of 0 … q_max for n <= 16 values that are at least 0, refined one by one: q[n]. Returns the scale.
float fit_positive(const float* x, const float* w, int n, int q_max, uint8_t* q);

}  // namespace sparkinfer
