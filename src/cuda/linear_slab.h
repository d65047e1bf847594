// linear_slab.h — the decode form of the linear ops: T ≤ 8 rows, weights in slabs.
#pragma once
#include "cuda/launch.h"

namespace sparkinfer::cuda {

bool is_slab(Quant q);
// True when the op's weights and shape suit the slab kernels and its launches were added.
bool lower_slab(Lowering& l, const NormLinear& op);
bool lower_slab(Lowering& l, const LinearAdd& op);
bool lower_slab(Lowering& l, const LinearGlu& op);
// logits[i] = head · rms(x of Step's i-th output row); `to` [rows, V].
bool lower_slab_head(Lowering& l, const Output& op, const Tensor& to);

}  // namespace sparkinfer::cuda
