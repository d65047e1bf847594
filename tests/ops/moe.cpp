// moe.cpp — the mixture of experts against float64: routing, both halves, the shared expert, fused weights.
#include <algorithm>
#include <cmath>

#include "harness.h"

namespace sparkinfer::test {
namespace {

struct MoeShape {
    const char* name;
    int experts, top_k, width, inner, shared;  // E, K, D, F, Fs (0: no shared expert)
    Scoring scoring;
    bool bias, renormalise, fused, scalar;
    float scale;
    Quant quant;
};
const MoeShape kShapes[] = {
    {"qwen3moe", 128, 8, 64, 48, 0, Scoring::softmax, false, true, false, false, 1.0f, Quant::f32},
    {"qwen35moe", 32, 8, 256, 64, 96, Scoring::softmax, false, true, true, true, 1.0f, Quant::f32},
    {"sigmoid", 16, 4, 96, 40, 40, Scoring::sigmoid, true, true, true, false, 2.0f, Quant::f32},
    {"plain", 5, 5, 40, 17, 33, Scoring::softmax, false, false, false, true, 1.0f, Quant::f32},
    {"q4_k", 8, 2, 256, 256, 256, Scoring::softmax, false, true, true, true, 1.0f, Quant::q4_k},
    {"q4_1", 8, 2, 64, 96, 32, Scoring::softmax, false, true, true, true, 1.0f, Quant::q4_1},
    {"nvfp4", 8, 3, 64, 32, 0, Scoring::softmax, false, true, true, false, 1.0f, Quant::nvfp4_split},
};
constexpr float kEps = 1e-6f;

struct Block {
    MoeShape shape;
    OwnedWeight norm, bias, gate_up, gate, up, down, shared_down;
    Router router;
    Weight gate_view, up_view;
    Block(const MoeShape& s, Random& random) : shape(s) {
        norm = f32_weight(random.normals(s.width), 1, s.width);
        if (s.bias) bias = f32_weight(random.normals(s.experts, 0.3f), 1, s.experts);
        if (s.fused) {
            gate_up = random_weight(random, s.quant, s.experts, 2 * s.inner, s.width);
            gate_view = gate_up.view;
            gate_view.out = s.inner;
            gate_view.expert_rows = 2 * s.inner;
            up_view = gate_view;
            up_view.data = gate_up.data.data() + row_bytes(s.quant, s.width) * s.inner;
            if (!gate_up.scales.empty())
                up_view.scales = gate_up.scales.data() + gate_up.scales.size() / size_t(2 * s.experts);
        } else {
            gate = random_weight(random, s.quant, s.experts, s.inner, s.width);
            up = random_weight(random, s.quant, s.experts, s.inner, s.width);
            gate_view = gate;
            up_view = up;
        }
        down = random_weight(random, s.quant, s.experts, s.width, s.inner, true);
        if (s.shared) shared_down = random_weight(random, s.quant, 1, s.width, s.shared);
        router = {bias, s.scoring, s.top_k, s.scale, s.renormalise};
    }
    // gate (part 0) or up (part 1) of an expert [F, D], without the views' arithmetic.
    Doubles half(int expert, int part) const {
        if (!shape.fused) return decoded(part ? up : gate, expert);
        const int64_t size = int64_t(shape.inner) * shape.width;
        return slice(decoded(gate_up, expert), part * size, size);
    }
};

struct Choice {
    std::vector<int> experts;
    Doubles weights;
};

Choice choose(const Block& b, const Floats& logits) {
    const MoeShape& s = b.shape;
    Doubles score;
    double sum = 0;
    for (float x : logits) sum += std::exp(double(x));
    for (float x : logits)
        score.push_back(s.scoring == Scoring::softmax ? std::exp(double(x)) / sum : sigmoid64(double(x)));
    const Doubles bias = s.bias ? decoded(b.bias) : Doubles(score.size(), 0.0);
    std::vector<int> order;
    for (int e = 0; e < s.experts; ++e) order.push_back(e);
    std::sort(order.begin(), order.end(), [&](int x, int y) {
        const double a = score[size_t(x)] + bias[size_t(x)], b = score[size_t(y)] + bias[size_t(y)];
        return a > b || (a == b && x < y);
    });
    Choice c;
    double chosen = 0;
    for (int j = 0; j < s.top_k; ++j) chosen += score[size_t(order[size_t(j)])];
    for (int j = 0; j < s.top_k; ++j) {
        c.experts.push_back(order[size_t(j)]);
        c.weights.push_back(score[size_t(order[size_t(j)])] / (s.renormalise ? chosen : 1.0) *
                            double(s.scale));
    }
    return c;
}

struct Rows {
    int count;
    Floats x, logits, shared_gate, shared_up, shared_scalar;
    Rows(const Block& b, int n, Random& random) : count(n) {
        x = random.normals(int64_t(n) * b.shape.width);
        logits = random.normals(int64_t(n) * b.shape.experts, 2.0f);
        shared_gate = random.normals(int64_t(n) * b.shape.shared);
        shared_up = random.normals(int64_t(n) * b.shape.shared);
        shared_scalar = random.normals(n);
    }
};

Doubles glu_reference(const Block& b, const Rows& r) {
    const MoeShape& s = b.shape;
    const Doubles n = rms_normed(r.x, decoded(b.norm), s.width, double(kEps));
    std::vector<Doubles> gates, ups;
    for (int e = 0; e < s.experts; ++e) gates.push_back(b.half(e, 0)), ups.push_back(b.half(e, 1));
    Doubles y;
    for (int t = 0; t < r.count; ++t) {
        const Doubles row = slice(n, int64_t(t) * s.width, s.width);
        for (int e : choose(b, slice(r.logits, int64_t(t) * s.experts, s.experts)).experts) {
            const Doubles gate = product(row, gates[size_t(e)], s.width),
                          up = product(row, ups[size_t(e)], s.width);
            for (size_t i = 0; i < gate.size(); ++i) y.push_back(silu64(gate[i]) * up[i]);
        }
    }
    return y;
}

Doubles down_reference(const Block& b, const Rows& r, const Floats& h) {
    const MoeShape& s = b.shape;
    Doubles y(r.x.begin(), r.x.end());
    std::vector<Doubles> downs;
    for (int e = 0; e < s.experts; ++e) downs.push_back(decoded(b.down, e));
    for (int t = 0; t < r.count; ++t) {
        const Choice c = choose(b, slice(r.logits, int64_t(t) * s.experts, s.experts));
        double* row = &y[size_t(t) * size_t(s.width)];
        for (int j = 0; j < s.top_k; ++j) {
            const Floats part = slice(h, (int64_t(t) * s.top_k + j) * s.inner, s.inner);
            const Doubles out =
                product(Doubles(part.begin(), part.end()), downs[size_t(c.experts[size_t(j)])], s.inner);
            for (int i = 0; i < s.width; ++i) row[i] += c.weights[size_t(j)] * out[size_t(i)];
        }
        if (!s.shared) continue;
        Doubles inner;
        for (int i = t * s.shared; i < (t + 1) * s.shared; ++i)
            inner.push_back(silu64(double(r.shared_gate[size_t(i)])) * double(r.shared_up[size_t(i)]));
        const Doubles out = product(inner, decoded(b.shared_down), s.shared);
        const double factor = s.scalar ? sigmoid64(double(r.shared_scalar[size_t(t)])) : 1.0;
        for (int i = 0; i < s.width; ++i) row[i] += factor * out[size_t(i)];
    }
    return y;
}

// Runs both ops on the listed rows; `stopped` of them, at the front, are of a stopped slot.
struct Answer {
    Floats h, x;
};
Answer run_moe(Machine& m, const Block& b, const Rows& r, const std::vector<int>& which,
               const Floats* given_h, int stopped = 0, int extra = 0) {
    const MoeShape& s = b.shape;
    const SlotsView slots = m.slots(2, 1);
    Slot slot{};
    slot.cursor.stopped = kStopHost;
    m.set_slot(slots, 1, slot);
    StepImage step;
    for (size_t i = 0; i < which.size(); ++i)
        step.rows.push_back(
            {0, int(i) < stopped ? 1 : 0, int(i), {}, int(i) < stopped ? uint32_t(kRowFromCursor) : 0, -1});
    const int rows = int(which.size()) + extra;
    const auto pick = [&](const Floats& all, int cols) {
        Floats values;
        for (int t : which)
            values.insert(values.end(), all.begin() + int64_t(t) * cols, all.begin() + int64_t(t + 1) * cols);
        values.resize(size_t(rows) * size_t(cols), NAN);
        return values;
    };
    const Tensor logits = m.tensor(pick(r.logits, s.experts), rows, s.experts);
    MoeGlu glu{m.step(),
               slots,
               m.tensor(pick(r.x, s.width), rows, s.width),
               b.norm,
               logits,
               b.router,
               b.gate_view,
               b.up_view,
               kEps,
               Activation::silu,
               m.tensor(rows, s.top_k, s.inner)};
    m.run(glu, step);
    Answer a{m.read(glu.y), {}};
    MoeDownAdd down{};
    down.step = m.step();
    down.slots = slots;
    down.h = m.tensor(rows, s.top_k, s.inner);
    m.write(down.h, given_h ? pick(*given_h, s.top_k * s.inner) : a.h);
    down.logits = logits;
    down.router = b.router;
    down.down = b.down;
    if (s.shared) {
        down.shared_gate = m.tensor(pick(r.shared_gate, s.shared), rows, s.shared);
        down.shared_up = m.tensor(pick(r.shared_up, s.shared), rows, s.shared);
        down.shared_down = b.shared_down;
        if (s.scalar) down.shared_scalar = m.tensor(pick(r.shared_scalar, 1), rows, 1);
    }
    down.x = m.tensor(pick(r.x, s.width), rows, s.width);
    m.run(down, step);
    a.x = m.read(down.x);
    return a;
}

std::vector<int> all_rows(int n) {
    std::vector<int> which;
    for (int t = 0; t < n; ++t) which.push_back(t);
    return which;
}

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
        expect_close(m->name + " moe_glu", a.h, want_h);
        expect_close(m->name + " moe_down_add", a.x, want_x);
    }
}

// Risk: a row's sum depends on who shares its experts; absent rows take part or are written.
TEST_P(MoeTest, RowsAloneAndAbsentRows) {
    Random random(std::string(GetParam().name) + " alone");
    const Block b(GetParam(), random);
    const int n = 11, h_cols = b.shape.top_k * b.shape.inner;
    const Rows r(b, n, random);
    Answer all;
    for (Machine* m : machines()) {
        m->reset();
        const Answer a = run_moe(*m, b, r, all_rows(n), nullptr);
        if (all.h.empty()) all = a;
        expect_same_bits(m->name + " h", a.h, all.h);
        expect_same_bits(m->name + " x", a.x, all.x);
        for (int t = 0; t < n; ++t) {
            m->reset();
            const Answer one = run_moe(*m, b, r, {t}, nullptr);
            expect_same_bits("alone h", one.h, slice(all.h, int64_t(t) * h_cols, h_cols));
            expect_same_bits("alone x", one.x, slice(all.x, int64_t(t) * b.shape.width, b.shape.width));
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
        expect_close(m->name, slice(a.h, 0, cols), slice(want, 0, cols));
        for (int i = cols; i < 2 * cols; ++i) ASSERT_TRUE(std::isfinite(a.h[size_t(i)]));
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MoeTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sparkinfer::test
