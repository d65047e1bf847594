// routing.h — the work list of a mixture of experts: which (row, place) pairs each expert has, so that its
// weights are decoded once for all of them.
#pragma once
#include "cpu/matmul.h"

namespace sparkinfer {

struct RoutingShape {
    int32_t rows, experts, top_k;  // T, E, K
};

struct Routing {
    RoutingShape shape;
    VectorParameter bias;
    float* scores;     // [T, E] scratch of route()
    int32_t* experts;  // [T, K]; -1 throughout in absent rows
    float* weights;    // [T, K]
    int32_t* first;    // [E + 1] where an expert's pairs begin in `pairs`
    int32_t* pairs;    // [T · K] t · K + j, ascending within an expert
    int32_t* active;   // [E] the experts that have pairs, ascending
    int32_t actives = 0;
    int32_t most = 0;  // pairs of the busiest expert
    Routing(Carver& c, RoutingShape shape, const Router& router);
    void compute(Pool& pool, const StepView& step, const SlotsView& slots, const Router& router,
                 const Tensor& logits);
    int32_t count(int32_t expert) const { return first[expert + 1] - first[expert]; }
};

}  // namespace sparkinfer
