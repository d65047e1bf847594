#include "cpu/routing.h"

#include <algorithm>

#include "cpu/router.h"

namespace sparkinfer {

Routing::Routing(Carver& c, RoutingShape s, const Router& router)
    : shape(s),
      bias(c, router.bias),
      scores(c.take<float>(int64_t(s.rows) * s.experts)),
      experts(c.take<int32_t>(int64_t(s.rows) * s.top_k)),
      weights(c.take<float>(int64_t(s.rows) * s.top_k)),
      first(c.take<int32_t>(s.experts + 1)),
      pairs(c.take<int32_t>(int64_t(s.rows) * s.top_k)),
      active(c.take<int32_t>(s.experts)) {}

void Routing::compute(Pool& pool, const StepView& step, const SlotsView& slots, const Router& router,
                      const Tensor& logits) {
    const int64_t k = shape.top_k;
    pool.parallel(shape.rows, 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
            if (live_row(step, slots, int(t)).present)
                route(router, bias.values, logits.row(t), shape.experts, scores + t * shape.experts,
                      experts + t * k, weights + t * k);
            else
                std::fill_n(experts + t * k, k, -1);
        }
    });
    // Counting sort of the pairs by expert; `first` holds the ends while it fills, from the back.
    std::fill_n(first, shape.experts + 1, 0);
    const int32_t all = int32_t(shape.rows * k);
    for (int32_t p = 0; p < all; ++p)
        if (experts[p] >= 0) ++first[experts[p]];
    actives = most = 0;
    for (int32_t e = 0, sum = 0; e <= shape.experts; ++e) {
        if (e < shape.experts && first[e] > 0) active[actives++] = e;
        most = std::max(most, first[e]);
        first[e] = sum += first[e];
    }
    for (int32_t p = all - 1; p >= 0; --p)
        if (experts[p] >= 0) pairs[--first[experts[p]]] = p;
}

}  // namespace sparkinfer
