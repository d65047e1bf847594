// router.h — which experts a row uses, and with what weights: a pure function of its logits.   (ops.h:
// Router)
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/math.h"

namespace sparkinfer {

// Fills scores [E], experts [top_k] by descending score (+ bias), ties to the lower index, and weights
// [top_k]. A score that is NaN is never preferred. bias: [E] or null.
inline void route(const Router& router, const float* bias, const float* logits, int32_t count, float* scores,
                  int32_t* experts, float* weights) {
    if (router.scoring == Scoring::softmax) {
        float most = -INFINITY;
        for (int32_t e = 0; e < count; ++e) most = logits[e] > most ? logits[e] : most;
        double sum = 0;
        for (int32_t e = 0; e < count; ++e) sum += double(scores[e] = std::exp(logits[e] - most));
        for (int32_t e = 0; e < count; ++e) scores[e] = float(double(scores[e]) / sum);
    } else {
        for (int32_t e = 0; e < count; ++e) scores[e] = sigmoid(logits[e]);
    }
    const auto preference = [&](int32_t e) {
        const float p = scores[e] + (bias ? bias[e] : 0.0f);
        return std::isnan(p) ? -INFINITY : p;
    };
    for (int32_t j = 0; j < router.top_k; ++j) {
        int32_t best = -1;
        for (int32_t e = 0; e < count; ++e) {
            if (std::find(experts, experts + j, e) != experts + j) continue;
            if (best < 0 || preference(e) > preference(best)) best = e;
        }
        experts[j] = best;
        weights[j] = scores[best];
    }
    double sum = 0;
    for (int32_t j = 0; j < router.top_k; ++j) sum += double(weights[j]);
    for (int32_t j = 0; j < router.top_k; ++j) {
        if (router.renormalise) weights[j] = float(double(weights[j]) / sum);
        weights[j] *= router.scale;
    }
}

}  // namespace sparkinfer
