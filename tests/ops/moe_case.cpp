#include "moe_case.h"

#include <algorithm>
#include <cmath>

namespace sparkinfer::test::moe_case {

namespace {

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
    order.reserve(size_t(s.experts));
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

}  // namespace

Doubles glu_reference(const Block& b, const Rows& r) {
    const MoeShape& s = b.shape;
    const Doubles n = rms_normed(r.x, decoded(b.norm), s.width, double(kEps));
    std::vector<Doubles> gates, ups;
    gates.reserve(size_t(s.experts));
    ups.reserve(size_t(s.experts));
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
    downs.reserve(size_t(s.experts));
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

Answer run_moe(Machine& m, const Block& b, const Rows& r, const std::vector<int>& which,
               const Floats* given_h, int stopped, int extra) {
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
    std::vector<int> which(size_t(n), 0);
    for (int t = 0; t < n; ++t) which[size_t(t)] = t;
    return which;
}

}  // namespace sparkinfer::test::moe_case
