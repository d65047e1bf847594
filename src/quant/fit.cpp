#include "quant/fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/half.h"

namespace sparkinfer {

namespace {

constexpr float kTiny = 1e-15f;  // a smaller range has no scale: half precision ends long before it
constexpr int kMost = 32;        // values of a group

// The sums that the closed forms need.
struct Sums {
    float q = 0, qq = 0, qx = 0;  // Σ w·q, Σ w·q², Σ w·q·x
};

int clamped(float x, int low, int high) { return std::clamp(round_to_int(x), low, high); }

}  // namespace

int round_to_int(float x) {
    // Adding 1.5·2^23 leaves the integer in the low bits of the mantissa.
    return int(bits_of_float(x + 12582912.0f) & 0x007fffffu) - 0x00400000;
}

const float* useful(const float* importance, int64_t first, int n) {
    if (!importance) return nullptr;
    const float* from = importance + first;
    return std::any_of(from, from + n, [](float w) { return w > 0; }) ? from : nullptr;
}

ScaleMin fit_scale_min(const float* x, const float* w, int n, int q_max, const Trials& trials, uint8_t* q) {
    float min = std::min(x[0], 0.0f), max = x[0], sum_w = w[0], sum_x = w[0] * x[0];
    for (int i = 1; i < n; i++) {
        min = std::min(min, x[i]);
        max = std::max(max, x[i]);
        sum_w += w[i];
        sum_x += w[i] * x[i];
    }
    if (max - min < kTiny) {
        std::fill_n(q, n, uint8_t(0));
        return {0, min};
    }
    const auto error_of = [&](const uint8_t* codes, const ScaleMin& fit) {
        float error = 0;
        for (int i = 0; i < n; i++) {
            const float diff = fit.scale * float(codes[i]) + fit.min - x[i];
            error += w[i] * (diff * diff);
        }
        return error;
    };
    const float inverse = float(q_max) / (max - min);
    for (int i = 0; i < n; i++) q[i] = uint8_t(clamped(inverse * (x[i] - min), 0, q_max));
    ScaleMin best{1 / inverse, min};
    float least = error_of(q, best);
    for (int t = 0; t <= trials.steps; t++) {
        // From the best minimum so far: codes improve with it.
        const float trial = (trials.first + trials.step * float(t) + float(q_max)) / (max - best.min);
        uint8_t codes[kMost];
        Sums s;
        for (int i = 0; i < n; i++) {
            const int code = clamped(trial * (x[i] - best.min), 0, q_max);
            codes[i] = uint8_t(code);
            const float c = float(code);
            s.q += w[i] * c;
            s.qq += w[i] * c * c;
            s.qx += w[i] * c * x[i];
        }
        const float determinant = sum_w * s.qq - s.q * s.q;
        if (determinant <= 0) continue;
        ScaleMin fit{(sum_w * s.qx - sum_x * s.q) / determinant, (s.qq * sum_x - s.q * s.qx) / determinant};
        if (fit.min > 0) fit = {s.qx / s.qq, 0};
        const float error = error_of(codes, fit);
        if (error >= least) continue;
        least = error;
        best = fit;
        std::memcpy(q, codes, size_t(n));
    }
    return best;
}

float fit_scale(const float* x, const float* w, int n, int half, int8_t* q) {
    float extreme = 0;  // the value of largest magnitude, with its sign
    for (int i = 0; i < n; i++)
        if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    if (std::fabs(extreme) < kTiny) {
        std::fill_n(q, n, int8_t(half));
        return 0;
    }
    float best = 0, scale = 0;
    // The first trial maps the extreme value to −half; the others a little inside or outside of that.
    for (int t = 0; t <= 18; t++) {
        const int step = t == 0 ? 0 : t <= 9 ? t - 10 : t - 9;  // 0, −9 … −1, 1 … 9
        const float inverse = -(float(half) + 0.1f * float(step)) / extreme;
        int8_t codes[kMost];
        Sums s;
        for (int i = 0; i < n; i++) {
            const int code = clamped(inverse * x[i], -half, half - 1);
            codes[i] = int8_t(code + half);
            const float weight = w ? w[i] : x[i] * x[i], c = float(code);
            s.qx += weight * x[i] * c;
            s.qq += weight * c * c;
        }
        const bool better = t == 0 || (s.qq > 0 && s.qx * s.qx > best * s.qq);
        if (!better) continue;
        scale = s.qq > 0 ? s.qx / s.qq : 0;
        best = scale * s.qx;
        std::memcpy(q, codes, size_t(n));
    }
    return scale;
}

float fit_positive(const float* x, const float* w, int n, int q_max, uint8_t* q) {
    const float max = *std::max_element(x, x + n);
    if (max < kTiny) {
        std::fill_n(q, n, uint8_t(0));
        return 0;
    }
    float inverse = float(q_max) / max, least = 0;
    for (int t = 0; t <= 8; t++) {
        const int step = t == 0 ? 0 : t <= 4 ? t - 5 : t - 4;  // 0, −4 … −1, 1 … 4
        const float trial = (float(q_max) + 0.1f * float(step)) / max;
        float error = 0;
        for (int i = 0; i < n; i++) {
            const float diff = x[i] - float(clamped(trial * x[i], 0, q_max)) / trial;
            error += w[i] * diff * diff;
        }
        if (t > 0 && error >= least) continue;
        least = error;
        inverse = trial;
    }
    Sums s;
    for (int i = 0; i < n; i++) {
        q[i] = uint8_t(clamped(inverse * x[i], 0, q_max));
        s.qx += w[i] * x[i] * float(q[i]);
        s.qq += w[i] * float(q[i]) * float(q[i]);
    }
    // Each code once more, against the scale that the others want, as long as that gains.
    for (int round = 0, changed = 1; round < 5 && changed; round++) {
        changed = 0;
        for (int i = 0; i < n; i++) {
            const float c = float(q[i]);
            const float qx = s.qx - w[i] * x[i] * c, qq = s.qq - w[i] * c * c;
            if (qx <= 0 || qq <= 0) continue;
            const int code = clamped(std::min(x[i] * qq / qx, float(q_max)), 0, q_max);
            if (code == q[i]) continue;
            const float new_qx = qx + w[i] * x[i] * float(code),
                        new_qq = qq + w[i] * float(code) * float(code);
            if (new_qx * new_qx * s.qq <= s.qx * s.qx * new_qq) continue;
            s.qx = new_qx;
            s.qq = new_qq;
            q[i] = uint8_t(code);
            changed++;
        }
    }
    return s.qq > 0 ? s.qx / s.qq : 0;
}

}  // namespace sparkinfer
