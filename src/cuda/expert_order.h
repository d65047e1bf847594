// expert_order.h — which experts a step's rows go to, and the rows in the order of their experts.
#pragma once
#include "cuda/launch.h"
#include "cuda/packed_rows.cuh"

namespace sparkinfer::cuda {

struct Routed {
    int32_t* id;    // [T, K]; -1 for absent rows
    float* weight;  // [T, K]
    int32_t* rank;  // [T, K] among the pairs of its expert, in any order; null: not asked for
};
// `zeros`: rows that are cleared where a row is absent. `ordered`: an order will be made of it.
Routed add_route(Lowering& l, const StepView& step, const SlotsView& slots, const Tensor& logits,
                 const Router& router, bool ordered, const Tensor* zeros = nullptr);

constexpr int32_t kMostOrderedExperts = 1024;

struct OrderedRows {
    Routed routed;
    ExpertOrder order;
};
// Route and order, or those that the instruction before has kept for the same logits.
OrderedRows add_ordered_rows(Lowering& l, const StepView& step, const SlotsView& slots, const Tensor& logits,
                             const Router& router, int32_t tile_rows, const Tensor* zeros = nullptr);

}  // namespace sparkinfer::cuda
