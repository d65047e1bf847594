// moe.cpp — the mixture of experts against float64: routing, both halves, the shared expert, fused weights.
#include <algorithm>
#include <cmath>

#include "moe_case.h"

namespace sparkinfer::test {
namespace {

using namespace moe_case;

const MoeShape kShapes[] = {
    {"qwen3moe", 128, 8, 64, 48, 0, Scoring::softmax, false, true, false, false, 1.0f, Quant::f32},
    {"qwen35moe", 32, 8, 256, 64, 96, Scoring::softmax, false, true, true, true, 1.0f, Quant::f32},
    {"sigmoid", 16, 4, 96, 40, 40, Scoring::sigmoid, true, true, true, false, 2.0f, Quant::f32},
    {"plain", 5, 5, 40, 17, 33, Scoring::softmax, false, false, false, true, 1.0f, Quant::f32},
    {"q4_k", 8, 2, 256, 256, 256, Scoring::softmax, false, true, true, true, 1.0f, Quant::q4_k},
    {"q4_1", 8, 2, 64, 96, 32, Scoring::softmax, false, true, true, true, 1.0f, Quant::q4_1},
    {"nvfp4", 8, 3, 64, 32, 0, Scoring::softmax, false, true, true, false, 1.0f, Quant::nvfp4_split},
};

class MoeTest : public testing::TestWithParam<MoeShape> {};

// Risk: wrong experts, weights in the wrong order, fused views off by rows, the shared expert's factor.
TEST_P(MoeTest, MatchesFloat64) {
    Random random(GetParam().name);
    const Block b(GetParam(), random);
    const Rows r(b, 13, random);
    const Doubles want_h = glu_reference(b, r);
    Floats h(want_h.begin(), want_h.end());
    const Doubles want_x = down_reference(b, r, h);
    for (Machine* m : machines()) {
        m->reset();
        const Answer a = run_moe(*m, b, r, all_rows(13), &h);
        expect_close(m->name + " moe_glu", a.h, want_h, m->glu_tolerance(1e-6, r.count));
        expect_close(m->name + " moe_down_add", a.x, want_x, m->tolerance(1e-6, r.count));
    }
}

// Risk: a row's sum depends on who shares its experts; absent rows take part or are written.
TEST_P(MoeTest, RowsAloneAndAbsentRows) {
    Random random(std::string(GetParam().name) + " alone");
    const Block b(GetParam(), random);
    const int n = 8, h_cols = b.shape.top_k * b.shape.inner;
    const Rows r(b, n, random);
    FamilyBits h_bits, x_bits;
    for (Machine* m : machines()) {
        m->reset();
        const Answer all = run_moe(*m, b, r, all_rows(n), nullptr);
        h_bits.expect(*m, "h", all.h);
        x_bits.expect(*m, "x", all.x);
        for (int t = 0; t < n; ++t) {
            m->reset();
            const Answer one = run_moe(*m, b, r, {t}, nullptr);
            expect_same_bits(m->name + " alone h", one.h, slice(all.h, int64_t(t) * h_cols, h_cols));
            expect_same_bits(m->name + " alone x", one.x,
                             slice(all.x, int64_t(t) * b.shape.width, b.shape.width));
        }
        m->reset();
        const Answer part = run_moe(*m, b, r, {4, 5, 6, 7}, &all.h, 2, 1);
        expect_same_bits("present h", slice(part.h, 2 * h_cols, 2 * h_cols),
                         slice(all.h, 6 * h_cols, 2 * h_cols));
        expect_same_bits("present x", slice(part.x, 2 * b.shape.width, 2 * b.shape.width),
                         slice(all.x, 6 * b.shape.width, 2 * b.shape.width));
        for (int i = 0; i < 2 * h_cols; ++i) ASSERT_EQ(part.h[size_t(i)], 0.0f) << "absent";
        expect_same_bits("stopped rows keep x", slice(part.x, 0, 2 * b.shape.width),
                         slice(r.x, 4 * b.shape.width, 2 * b.shape.width));
    }
}

// Risk: equal scores resolved by chance, NaN logits choosing an expert twice or none.
TEST(Router, TiesAndNaN) {
    Random random("router ties");
    MoeShape shape = kShapes[3];
    shape.top_k = 3;
    const Block b(shape, random);
    Rows r(b, 2, random);
    r.logits = {1, 2, 2, 1, 1, NAN, 0, NAN, 0, 5};
    Rows plain = r;
    plain.logits = {1, 2.0f, 1.9999999f, 1, 1, -1, 0, -1, 0, 5};
    const Doubles want = glu_reference(b, plain);  // the same experts: 1 2 0 and, for NaN, whatever is finite
    for (Machine* m : machines()) {
        m->reset();
        const Answer a = run_moe(*m, b, r, {0, 1}, nullptr);
        const int cols = 3 * shape.inner;
        expect_close(m->name, slice(a.h, 0, cols), slice(want, 0, cols), m->glu_tolerance(1e-6));
        for (int i = cols; i < 2 * cols; ++i) ASSERT_TRUE(std::isfinite(a.h[size_t(i)]));
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MoeTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sparkinfer::test
