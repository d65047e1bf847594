// many_rows.h — ops over more rows than the decode forms take: packed rows and matrix kernels.
#pragma once
#include "cuda/launch.h"

namespace sparkinfer::cuda {

// True when the op has so many rows and weights in slabs, and its launches were added.
bool lower_many(Lowering& l, const NormLinear& op);
bool lower_many(Lowering& l, const LinearAdd& op);
bool lower_many(Lowering& l, const LinearGlu& op);
bool lower_many(Lowering& l, const MoeGlu& op);
bool lower_many(Lowering& l, const MoeDownAdd& op);
// y[t] = activation(gate[t]) ⊙ up[t], rows of y dense.   (moe.cu)
void add_glu_rows(Lowering& l, const Tensor& gate, const Tensor& up, float* y, Activation activation);
// logits[i] = head · rms(x[source[i]]); `to` [rows, V].
bool lower_many_head(Lowering& l, const Output& op, const Tensor& to, const int32_t* source);

}  // namespace sparkinfer::cuda
