// moe_slab.h — the decode form of the expert ops: T ≤ 8 rows, experts in slabs.
#pragma once
#include "cuda/launch.h"

namespace sparkinfer::cuda {

bool lower_slab(Lowering& l, const MoeGlu& op);
bool lower_slab(Lowering& l, const MoeDownAdd& op);

}  // namespace sparkinfer::cuda
