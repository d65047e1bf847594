// expert_order.h — which experts a step's rows go to, and the rows in the order of their experts.
#pragma once
#include "cuda/launch.h"
#include "cuda/packed_rows.cuh"

namespace sparkinfer::cuda {

struct Routed {
    int32_t* id;    // [T, K]; -1 for absent rows
    float* weight;  // [T, K]
};
struct RouteCall {
    StepView step;
    SlotsView slots;
    const float* logits;  // [T, E]
    int64_t stride;
    Router router;
    int32_t experts;
    Routed to;
    float* zeros;  // or null: rows of zero_width, zero_stride apart, that are cleared where a row is absent
    int64_t zero_stride;
    int32_t zero_width;
};
Routed add_route(Lowering& l, const StepView& step, const SlotsView& slots, const Tensor& logits,
                 const Router& router, const Tensor* zeros = nullptr);
// `pairs` entries of `id`, in tiles of at most tile_rows.
ExpertOrder add_expert_order(Lowering& l, const int32_t* id, int32_t pairs, int32_t experts, int32_t tile_rows);

}  // namespace sparkinfer::cuda
