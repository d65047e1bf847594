// rope.cpp — rotary frequencies. Sources: RoPE (arXiv 2104.09864), YaRN (arXiv 2309.00071, eq. 17–23),
// Llama 3.1's piecewise scaling as transformers' modeling_rope_utils states it.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config.h"

namespace sparkinfer {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

void scale_yarn(const RopeConfig& r, std::vector<double>& f, double& magnitude) {
    const double d = r.dims;
    auto correction = [&](double beta) {
        return d * std::log(r.original_context / (kTurn * beta)) / (2 * std::log(r.theta));
    };
    const double low = std::max(0.0, std::floor(correction(r.beta_fast)));
    const double high = std::min(d - 1, std::ceil(correction(r.beta_slow)));
    for (size_t i = 0; i < f.size(); ++i) {
        const double ramp = std::clamp((double(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
        f[i] = f[i] / r.factor * ramp + f[i] * (1 - ramp);
    }
    magnitude = r.attention_factor > 0 ? r.attention_factor : 0.1 * std::log(r.factor) + 1;
}

void scale_llama3(const RopeConfig& r, std::vector<double>& f) {
    const double low_wave = r.original_context / r.low_frequency_factor;
    const double high_wave = r.original_context / r.high_frequency_factor;
    for (double& v : f) {
        const double wave = kTurn / v;
        if (wave < high_wave) continue;
        if (wave > low_wave) {
            v /= r.factor;
            continue;
        }
        const double smooth = (r.original_context / wave - r.low_frequency_factor) /
                              (r.high_frequency_factor - r.low_frequency_factor);
        v = (1 - smooth) * v / r.factor + smooth * v;
    }
}

}  // namespace

Result<RopeTable> rope_table(const RopeConfig& r, const std::vector<float>& factors) {
    const size_t pairs = size_t(r.dims) / 2;
    if (!factors.empty() && factors.size() != pairs)
        return bad_input("rope_freqs has {} factors, expected {}", factors.size(), pairs);
    std::vector<double> f(pairs);
    for (size_t i = 0; i < pairs; ++i) {
        f[i] = std::pow(r.theta, -2.0 * double(i) / r.dims);
        if (!factors.empty()) f[i] /= factors[i];
    }
    double magnitude = 1;
    if (!r.scaling.empty()) {
        if (!(r.factor > 0) || !std::isfinite(r.factor))
            return bad_input("rope scaling factor is {}, expected a positive number", r.factor);
        if (r.scaling != "linear" && !(r.original_context > 0))
            return bad_input("rope scaling '{}' needs the original context length", r.scaling);
    }
    if (r.scaling == "linear") {
        for (double& v : f) v /= r.factor;
    } else if (r.scaling == "yarn") {
        scale_yarn(r, f, magnitude);
    } else if (r.scaling == "llama3") {
        scale_llama3(r, f);
    }
    RopeTable table;
    table.frequency.assign(f.begin(), f.end());
    table.magnitude = float(magnitude);
    return table;
}

}  // namespace sparkinfer
