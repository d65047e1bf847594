#include "cpu/attention_page.h"

#include <cmath>
#include <cstring>

#include "cpu/integer_rows.h"
#include "cpu/targets.h"

namespace sparkinfer {
namespace {

constexpr int kKeys = 16;  // turned together

#define KERNELS "cpu/attention_kernels.inl"
#include "cpu/both_targets.inl"

void scores_any(const PageScores& a) {
    for (int c = 0; c < a.columns; ++c)
        for (int j = 0; j < a.count; ++j) {
            float sum = 0;
            for (int i = 0; i < a.d; ++i) sum += a.q[int64_t(i) * a.columns + c] * a.k[int64_t(j) * a.d + i];
            a.scores[c * a.stride + j] = sum;
        }
}

void sums_any(const PageSums& a) {
    for (int c = 0; c < a.columns; ++c) {
        for (int i = 0; i < a.width; ++i) a.out[c][i] = 0;
        for (int j = 0; j < a.rows; ++j)
            for (int i = 0; i < a.width; ++i) a.out[c][i] += a.p[c][j] * a.v[j * a.v_stride + i];
    }
}

struct Functions {
    void (*scores)(const PageScores&);
    void (*sums)(const PageSums&);
};
const Functions& functions() {
#if defined(__x86_64__)
    static constexpr Functions kForms[] = {
        {scores_any, sums_any}, {avx2::scores, avx2::sums}, {avx512::scores, avx512::sums}};
    return kForms[int(integer_form())];
#else
    static constexpr Functions kAny = {scores_any, sums_any};
    return kAny;
#endif
}

}  // namespace

void page_scores(const PageScores& a) { functions().scores(a); }
void page_sums(const PageSums& a) { functions().sums(a); }

}  // namespace sparkinfer
