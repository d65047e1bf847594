// delta_rule.h — the two halves of the delta rule on a state S [width, width], each a sweep over all of it;
// i ascending. width: a multiple of 16.
#pragma once

namespace sparkinfer {

//   S ← scale · S;      out[j] = Σ_i S[i][j] · k[i]
void decay_and_read(float* s, int width, float scale, const float* k, float* out);
//   S ← S + k dᵀ;       out[j] = Σ_i S[i][j] · q[i]
void update_and_read(float* s, int width, const float* k, const float* d, const float* q, float* out);

}  // namespace sparkinfer
