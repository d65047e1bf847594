#include "quant/fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/half.h"
#include "quant/block.h"
#include "quant/clones.h"

namespace sparkinfer {

namespace {

constexpr float kTiny = 1e-15f;  // a smaller range has no scale: half precision ends long before it
constexpr int kMost = 32;        // values of a group

// The sums that the closed forms need.
struct Sums {
    float qq = 0, qx = 0;  // Σ w·q², Σ w·q·x
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

namespace {

// One lane a group, all in step: a group's sums are taken in the order of its values, whatever the width of
// the machine's registers. Vectors travel by reference, since how they are passed depends on that width.
constexpr int kLanes = 8;
typedef float Vector __attribute__((vector_size(4 * kLanes)));

struct ScaleMinLanes {
    Vector scale, min;
};
struct LaneState {
    Vector max, sum_w, sum_x;  // of the values
    ScaleMinLanes fit;         // the best
    Vector least;              // its error
};

// Codes of every lane for its trial scale.
SPARKINFER_INLINE void lane_codes(const Vector* x, int n, const Vector& trial, const Vector& min, float q_max,
                                  Vector* codes) {
    const Vector low = {}, high = low + q_max;
    for (int i = 0; i < n; i++) {
        // Adding and taking away 1.5·2^23 rounds to the nearest integer, ties to even.
        const Vector rounded = (trial * (x[i] - min) + 12582912.0f) - 12582912.0f;
        const Vector positive = rounded > low ? rounded : low;
        codes[i] = positive < high ? positive : high;
    }
}

SPARKINFER_INLINE void lane_errors(const Vector* x, const Vector* w, int n, const Vector* codes,
                                   const ScaleMinLanes& fit, Vector* error) {
    Vector sum = {};
    for (int i = 0; i < n; i++) {
        const Vector diff = fit.scale * codes[i] + fit.min - x[i];
        sum += w[i] * (diff * diff);
    }
    *error = sum;
}

// The closed form for given codes; where the determinant is not positive there is none.
SPARKINFER_INLINE void lane_fit(const Vector* x, const Vector* w, int n, const Vector* codes,
                                const LaneState& s, ScaleMinLanes* fit, Vector* determinant) {
    Vector q = {}, qq = {}, qx = {};
    for (int i = 0; i < n; i++) {
        const Vector wq = w[i] * codes[i];
        q += wq;
        qq += wq * codes[i];
        qx += wq * x[i];
    }
    const Vector zero = {};
    *determinant = s.sum_w * qq - q * q;
    const Vector min = (qq * s.sum_x - q * qx) / *determinant;
    fit->scale = min > zero ? qx / qq : (s.sum_w * qx - s.sum_x * q) / *determinant;
    fit->min = min > zero ? zero : min;
}

SPARKINFER_CLONES
void fit_lanes(const Vector* x, const Vector* w, int n, int q_max, const Trials& trials, Vector* best,
               LaneState* state) {
    LaneState& s = *state;
    Vector codes[kMost], error, determinant;
    const Vector zero = {}, first = (zero + float(q_max)) / (s.max - s.fit.min);
    s.fit.scale = 1.0f / first;
    lane_codes(x, n, first, s.fit.min, float(q_max), best);
    lane_errors(x, w, n, best, s.fit, &s.least);
    for (int t = 0; t <= trials.steps; t++) {
        // From the best minimum so far: codes improve with it.
        const Vector trial =
            (zero + (trials.first + trials.step * float(t) + float(q_max))) / (s.max - s.fit.min);
        lane_codes(x, n, trial, s.fit.min, float(q_max), codes);
        ScaleMinLanes fit;
        lane_fit(x, w, n, codes, s, &fit, &determinant);
        lane_errors(x, w, n, codes, fit, &error);
        const auto better = (determinant > zero) & (error < s.least);
        s.least = better ? error : s.least;
        s.fit.scale = better ? fit.scale : s.fit.scale;
        s.fit.min = better ? fit.min : s.fit.min;
        for (int i = 0; i < n; i++) best[i] = better ? codes[i] : best[i];
    }
}

}  // namespace

void fit_scale_min(const GroupsToFit& in, int q_max, const Trials& trials, ScaleMin* fits, uint8_t* q) {
    const int n = in.values;
    CHECK(in.groups <= kLanes && n <= kMost, "{} groups of {}", in.groups, n);
    Vector x[kMost] = {}, w[kMost] = {}, best[kMost];
    for (int g = 0; g < in.groups; g++)
        for (int i = 0; i < n; i++) {
            x[i][g] = in.x[g * n + i];
            w[i][g] = in.w[g * n + i];
        }
    const Vector zero = {};
    LaneState s{x[0], w[0], w[0] * x[0], {zero, x[0] < zero ? x[0] : zero}, zero};
    for (int i = 1; i < n; i++) {
        s.fit.min = x[i] < s.fit.min ? x[i] : s.fit.min;
        s.max = x[i] > s.max ? x[i] : s.max;
        s.sum_w += w[i];
        s.sum_x += w[i] * x[i];
    }
    const Vector range = s.max - s.fit.min, least = s.fit.min;
    fit_lanes(x, w, n, q_max, trials, best, &s);
    for (int g = 0; g < in.groups; g++) {
        const bool flat = !(range[g] >= kTiny && std::isfinite(range[g]));
        fits[g] = flat ? ScaleMin{0, least[g]} : ScaleMin{s.fit.scale[g], s.fit.min[g]};
        for (int i = 0; i < n; i++) q[g * n + i] = flat ? uint8_t(0) : uint8_t(best[i][g]);
    }
}

namespace {

SPARKINFER_CLONES
void scale_lanes(const Vector* x, const Vector* w, int n, int half, const Vector& extreme, Vector* best,
                 Vector* scale) {
    const Vector zero = {}, low = zero - float(half), high = zero + float(half - 1);
    Vector gain = zero, codes[kMost];
    // The first trial maps the extreme value to −half; the others a little inside or outside of that.
    for (int t = 0; t <= 18; t++) {
        const int step = t == 0 ? 0 : t <= 9 ? t - 10 : t - 9;  // 0, −9 … −1, 1 … 9
        const Vector inverse = (zero - (float(half) + 0.1f * float(step))) / extreme;
        Vector qx = zero, qq = zero;
        for (int i = 0; i < n; i++) {
            const Vector rounded = (inverse * x[i] + 12582912.0f) - 12582912.0f;
            const Vector above = rounded > low ? rounded : low;
            codes[i] = above < high ? above : high;
            qx += w[i] * x[i] * codes[i];
            qq += w[i] * codes[i] * codes[i];
        }
        const Vector first = zero + float(t == 0);
        const auto better = (first > zero) | ((qq > zero) & (qx * qx > gain * qq));
        const Vector fit = qq > zero ? qx / qq : zero;
        *scale = better ? fit : *scale;
        gain = better ? fit * qx : gain;
        for (int i = 0; i < n; i++) best[i] = better ? codes[i] : best[i];
    }
}

}  // namespace

void fit_scale(const GroupsToFit& in, int half, float* scales, int8_t* q) {
    const int n = in.values;
    CHECK(in.groups <= kLanes && n <= kMost, "{} groups of {}", in.groups, n);
    Vector x[kMost] = {}, w[kMost] = {}, best[kMost] = {}, extreme = {}, scale = {};
    for (int g = 0; g < in.groups; g++)
        for (int i = 0; i < n; i++) {
            const float value = in.x[g * n + i];
            x[i][g] = value;
            w[i][g] = in.w[g * n + i];
            // Of largest magnitude, with its sign.
            if (std::fabs(value) > std::fabs(extreme[g])) extreme[g] = value;
        }
    scale_lanes(x, w, n, half, extreme, best, &scale);
    for (int g = 0; g < in.groups; g++) {
        const bool flat = !(std::fabs(extreme[g]) >= kTiny && std::isfinite(extreme[g]));
        scales[g] = flat ? 0 : scale[g];
        for (int i = 0; i < n; i++) q[g * n + i] = int8_t(half + (flat ? 0 : int(best[i][g])));
    }
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
