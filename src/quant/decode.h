// decode.h — rows of a weight matrix as float32, for any format.
#pragma once
#include "quant/quant.h"

namespace sparkinfer {

// out[0 .. w.in) = row `row` (0 .. w.out) of matrix `expert` (0 .. w.experts), with the factor in
// Weight::scale applied last. The bits do not depend on the machine: every instruction-set variant computes
// the same products and sums in the same order, without fused multiply-add. `out` must not overlap the
// weight.
void decode_row(const Weight& w, int expert, int row, float* out);

// The same for one element: the defining, slow way.
float decode_element(const Weight& w, int expert, int row, int col);

}  // namespace sparkinfer
