// Compiled with -ffp-contract=fast, as dot.cpp is. Whole blocks and ends run through the same machine code.
#include "cpu/exponentials.h"

#include <algorithm>
#include <bit>
#include <cmath>

#define INLINE __attribute__((always_inline)) inline

namespace sparkinfer {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kBlock = 1024;

// e^x for x ≤ 0 (a little above does no harm); 0 below -87. The polynomial is that of Cephes' expf.
INLINE float exponential(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: the sum's last bits are the nearest integer
    const float shifted = x * 1.44269504f + kRound, n = shifted - kRound;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float y = p * (r * r) + r + 1.0f;
    const uint32_t k = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
    return x < -87.0f ? 0.0f : y * std::bit_cast<float>((k + 127) << 23);
}

// n: a multiple of sixteen, at most kBlock.
INLINE float soften_lanes(float* x, int64_t n, float scale, float most) {
    float sum[kLanes] = {};
    for (int64_t at = 0; at < n; at += kLanes)
        for (int i = 0; i < kLanes; ++i) {
            const float y = exponential(x[at + i] * scale - most);
            x[at + i] = y;
            sum[i] += y;
        }
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) sum[i] += sum[i + width];
    return sum[0];
}

// n: a multiple of sixteen.
INLINE void silu_lanes(float* gate, const float* up, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const float g = gate[i], e = exponential(g < 0 ? g : -g), part = g < 0 ? e : 1.0f;
        gate[i] = g * (part / (1.0f + e)) * up[i];
    }
}

INLINE float greatest_lanes(const float* x, int64_t n) {
    float most[kLanes];
    std::fill_n(most, kLanes, -INFINITY);
    int64_t at = 0;
    for (; at + kLanes <= n; at += kLanes)
        for (int i = 0; i < kLanes; ++i) most[i] = x[at + i] > most[i] ? x[at + i] : most[i];
    for (; at < n; ++at) most[0] = x[at] > most[0] ? x[at] : most[0];
    return *std::max_element(most, most + kLanes);
}

#if defined(__x86_64__)
#define V4 __attribute__((target("arch=x86-64-v4")))
#define V3 __attribute__((target("arch=x86-64-v3")))
V4 float soften_v4(float* x, int64_t n, float scale, float most) { return soften_lanes(x, n, scale, most); }
V3 float soften_v3(float* x, int64_t n, float scale, float most) { return soften_lanes(x, n, scale, most); }
V4 void silu_v4(float* gate, const float* up, int64_t n) { silu_lanes(gate, up, n); }
V3 void silu_v3(float* gate, const float* up, int64_t n) { silu_lanes(gate, up, n); }
V4 float greatest_v4(const float* x, int64_t n) { return greatest_lanes(x, n); }
V3 float greatest_v3(const float* x, int64_t n) { return greatest_lanes(x, n); }
#endif
float soften_any(float* x, int64_t n, float scale, float most) { return soften_lanes(x, n, scale, most); }
void silu_any(float* gate, const float* up, int64_t n) { silu_lanes(gate, up, n); }
float greatest_any(const float* x, int64_t n) { return greatest_lanes(x, n); }

struct Functions {
    float (*soften)(float*, int64_t, float, float);
    float (*greatest)(const float*, int64_t);
    void (*silu)(float*, const float*, int64_t);
};
Functions choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return {soften_v4, greatest_v4, silu_v4};
    if (__builtin_cpu_supports("x86-64-v3")) return {soften_v3, greatest_v3, silu_v3};
#endif
    return {soften_any, greatest_any, silu_any};
}
const Functions& functions() {
    static const Functions chosen = choose();
    return chosen;
}

// The exponentials of n ≤ kBlock values, in place; their sum.
double soften_block(float* x, int64_t n, float scale, float most) {
    const int64_t whole = n / kLanes * kLanes;
    double sum = whole > 0 ? double(functions().soften(x, whole, scale, most)) : 0;
    if (whole == n) return sum;
    float end[kLanes];
    std::fill(std::copy(x + whole, x + n, end), end + kLanes, -INFINITY);
    sum += double(functions().soften(end, kLanes, scale, most));
    std::copy_n(end, n - whole, x + whole);
    return sum;
}

}  // namespace

double soften(float* x, int64_t n, float scale) {
    const float most = scale * functions().greatest(x, n);
    double sum = 0;
    for (int64_t at = 0; at < n; at += kBlock)
        sum += soften_block(x + at, std::min(kBlock, n - at), scale, most);
    return sum;
}

float greatest_value(const float* x, int64_t n) { return functions().greatest(x, n); }

double sum_of_exponentials(const float* x, int64_t n, float most) {
    double sum = 0;
    float block[kBlock];
    for (int64_t at = 0; at < n; at += kBlock) {
        const int64_t count = std::min(kBlock, n - at);
        for (int64_t i = 0; i < count; ++i) block[i] = x[at + i] == x[at + i] ? x[at + i] : -INFINITY;
        sum += soften_block(block, count, 1.0f, most);
    }
    return sum;
}

void silu_product(float* gate, const float* up, int64_t n) {
    const int64_t whole = n / kLanes * kLanes;
    functions().silu(gate, up, whole);
    if (whole == n) return;
    float gates[kLanes] = {}, ups[kLanes] = {};
    std::copy(gate + whole, gate + n, gates);
    std::copy(up + whole, up + n, ups);
    functions().silu(gates, ups, kLanes);
    std::copy_n(gates, n - whole, gate + whole);
}

}  // namespace sparkinfer
