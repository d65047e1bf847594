#include "cpu/delta_rule.h"

#include <algorithm>
#include <cstring>

#include "cpu/integer_rows.h"
#include "cpu/targets.h"

namespace sparkinfer {
namespace {

struct Sweep {
    float* s;
    int width;
    float scale;
    const float *k, *d, *q;  // d: null when S decays
    float* out;
};

#define KERNELS "cpu/delta_kernels.inl"
#include "cpu/both_targets.inl"

void sweep_any(const Sweep& a) {
    std::fill_n(a.out, a.width, 0.0f);
    for (int i = 0; i < a.width; ++i) {
        float* s = a.s + i * a.width;
        const float by = a.d ? a.q[i] : a.k[i];
        for (int j = 0; j < a.width; ++j) {
            s[j] = a.d ? s[j] + a.k[i] * a.d[j] : s[j] * a.scale;
            a.out[j] += s[j] * by;
        }
    }
}

void sweep(const Sweep& a) {
#if defined(__x86_64__)
    if (integer_form() == IntegerForm::avx512) return avx512::sweep(a);
    if (integer_form() == IntegerForm::avx2) return avx2::sweep(a);
#endif
    sweep_any(a);
}

}  // namespace

void decay_and_read(float* s, int width, float scale, const float* k, float* out) {
    sweep({s, width, scale, k, nullptr, nullptr, out});
}

void update_and_read(float* s, int width, const float* k, const float* d, const float* q, float* out) {
    sweep({s, width, 0, k, d, q, out});
}

}  // namespace sparkinfer
