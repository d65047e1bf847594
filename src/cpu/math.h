// math.h — the small functions of the ops, each with one order of operations.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/check.h"
#include "cpu/exponentials.h"
#include "ops/ops.h"

namespace sparkinfer {

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
inline float silu(float x) { return x / (1.0f + std::exp(-x)); }
// log(1 + e^x), without overflow.
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// gate[i] ← activation(gate[i]) · up[i]
inline void activate(Activation activation, float* gate, const float* up, int64_t n) {
    CHECK(activation == Activation::silu, "activation {}", int(activation));
    silu_product(gate, up, n);
}

// Σ x², four sums interleaved.
inline double sum_of_squares(const float* x, int64_t n) {
    double s[4] = {};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; ++j) s[j] += double(x[i + j]) * double(x[i + j]);
    for (; i < n; ++i) s[0] += double(x[i]) * double(x[i]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

// y = x / sqrt(mean(x²) + eps) · norm; y may be x.
inline void rms_norm(const float* x, const float* norm, int64_t n, float eps, float* y) {
    const float scale = float(1.0 / std::sqrt(sum_of_squares(x, n) / double(n) + double(eps)));
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * norm[i];
}

}  // namespace sparkinfer
