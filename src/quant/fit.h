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
// Up to 8 groups of up to 32 values, one behind the other: searched side by side, each with the bits it would
// get alone. An error counts w, at least 0, at each value.
struct GroupsToFit {
    const float *x, *w;
    int groups, values;
};
// fits[groups] and their codes q of 0 … q_max, q[groups · values].
void fit_scale_min(const GroupsToFit& in, int q_max, const Trials& trials, ScaleMin* fits, uint8_t* q);

// scales[groups] and their codes of −half … half − 1, stored + half, q[groups · values].
void fit_scale(const GroupsToFit& in, int half, float* scales, int8_t* q);

// Codes of 0 … q_max for n <= 16 values that are at least 0, refined one by one: q[n]. Returns the scale.
float fit_positive(const float* x, const float* w, int n, int q_max, uint8_t* q);

}  // namespace sparkinfer
