// many_rows.cpp — products of more rows than a step of decoding has, in the formats that have matrix kernels:
// tiles of weights and of rows that are whole, begun and ended anywhere; experts with none, few and many
// rows.
#include <cmath>

#include "harness.h"
#include "moe_case.h"

namespace sparkinfer::test {
namespace {

constexpr float kEps = 1e-6f;

struct ManyShape {
    int rows, in, out;
};
// Runs of 160 rows and tiles of 128 and 256 weights, one more and one less.
const ManyShape kShapes[] = {{9, 256, 80},    {16, 512, 272},  {17, 2048, 128}, {65, 768, 144},
                             {160, 256, 528}, {161, 1024, 64}, {337, 512, 32}};

class ManyRows : public testing::TestWithParam<Quant> {
  protected:
    std::string name(const char* op) const {
        return fmt::format("many rows {} {}", op, quant_name(GetParam()));
    }
};

// Risk: parts that meet inside a tile; another format between them; the last rows of a tile.
TEST_P(ManyRows, NormLinear) {
    Random random(name("norm_linear"));
    for (const ManyShape& s : kShapes) {
        const Floats x = random.normals(int64_t(s.rows) * s.in, 3.0f);
        const OwnedWeight norm = f32_weight(random.normals(s.in), 1, s.in);
        const OwnedWeight parts[] = {random_weight(random, GetParam(), 1, s.out, s.in),
                                     random_weight(random, Quant::q8_0, 1, 48, s.in),
                                     random_weight(random, GetParam(), 1, 16, s.in),
                                     random_weight(random, Quant::f32, 1, 5, s.in)};
        const Doubles n = rms_normed(x, decoded(norm), s.in, double(kEps));
        for (Machine* m : machines()) {
            m->reset();
            NormLinear op{m->tensor(x, s.rows, s.in), norm, kEps, 4, {}, {}};
            for (int i = 0; i < 4; ++i) op.w[i] = parts[i], op.y[i] = m->tensor(s.rows, parts[i].view.out);
            m->run(op);
            for (int i = 0; i < 4; ++i)
                expect_close(fmt::format("{} {} × {} part {}", m->name, s.rows, s.in, i), m->read(op.y[i]),
                             product(n, decoded(parts[i]), s.in), m->tolerance(1e-6, s.rows));
        }
    }
}

// Risk: rows whose magnitudes lie far apart, and far from 1, leave FP16.
TEST_P(ManyRows, LinearAddOfAnyMagnitude) {
    Random random(name("linear_add"));
    for (const ManyShape& s : kShapes) {
        Floats x = random.normals(int64_t(s.rows) * s.in), y(size_t(s.rows) * size_t(s.out));
        const float magnitudes[] = {1e6f, 1.0f, 1e-6f, 0.0f};
        for (int t = 0; t < s.rows; ++t) {
            for (int i = 0; i < s.in; ++i) x[size_t(t) * size_t(s.in) + size_t(i)] *= magnitudes[t % 4];
            for (int i = 0; i < s.out; ++i)
                y[size_t(t) * size_t(s.out) + size_t(i)] = magnitudes[t % 4] * random.normal();
        }
        const OwnedWeight w = random_weight(random, GetParam(), 1, s.out, s.in);
        Doubles want = product(Doubles(x.begin(), x.end()), decoded(w), s.in);
        for (size_t i = 0; i < want.size(); ++i) want[i] += double(y[i]);
        for (Machine* m : machines()) {
            m->reset();
            LinearAdd op{m->tensor(x, s.rows, s.in), w, m->tensor(y, s.rows, s.out)};
            m->run(op);
            const Floats got = m->read(op.y);
            for (int which = 0; which < 4; ++which) {  // all rows of one magnitude together
                Floats some;
                Doubles others;
                for (int t = which; t < s.rows; t += 4)
                    for (int i = 0; i < s.out; ++i) {
                        some.push_back(got[size_t(t) * size_t(s.out) + size_t(i)]);
                        others.push_back(want[size_t(t) * size_t(s.out) + size_t(i)]);
                    }
                expect_close(fmt::format("{} {} × {} × {}, magnitude {}", m->name, s.rows, s.in, s.out,
                                         double(magnitudes[which])),
                             some, others, m->tolerance(1e-6, s.rows));
            }
        }
    }
}

TEST_P(ManyRows, LinearGlu) {
    Random random(name("linear_glu"));
    for (const ManyShape& s : kShapes) {
        const Floats x = random.normals(int64_t(s.rows) * s.in);
        const OwnedWeight norm = f32_weight(random.normals(s.in), 1, s.in),
                          gate = random_weight(random, GetParam(), 1, s.out, s.in),
                          up = random_weight(random, GetParam(), 1, s.out, s.in);
        const Doubles n = rms_normed(x, decoded(norm), s.in, double(kEps)), b = product(n, decoded(up), s.in);
        Doubles want = product(n, decoded(gate), s.in);
        for (size_t i = 0; i < want.size(); ++i) want[i] = silu64(want[i]) * b[i];
        for (Machine* m : machines()) {
            m->reset();
            LinearGlu op{m->tensor(x, s.rows, s.in), norm, gate, up, kEps, Activation::silu,
                         m->tensor(s.rows, s.out)};
            m->run(op);
            expect_close(fmt::format("{} {} × {} × {}", m->name, s.rows, s.in, s.out), m->read(op.y), want,
                         m->glu_tolerance(1e-6, s.rows));
        }
    }
}

// Risk: a row that depends on which rows lie beside it. How many there are may choose how a sum is cut, no
// more.
TEST_P(ManyRows, RowsAmongOthers) {
    Random random(name("among others"));
    const int rows = 200, in = 512, out = 160;
    const Floats x = random.normals(int64_t(rows) * in);
    const OwnedWeight w = random_weight(random, GetParam(), 1, out, in);
    for (Machine* m : machines()) {
        m->reset();
        const auto run = [&](int first, int count) {
            LinearAdd op{m->tensor(slice(x, int64_t(first) * in, int64_t(count) * in), count, in), w,
                         m->tensor(Floats(size_t(count) * out, 0.0f), count, out)};
            m->run(op);
            return m->read(op.y);
        };
        const Floats all = run(0, rows);
        for (const auto& [first, count] : {std::pair{0, 9}, {37, 33}, {150, 50}}) {
            const Floats some = slice(all, int64_t(first) * out, int64_t(count) * out);
            expect_close(fmt::format("{} rows {}+{}", m->name, first, count), run(first, count),
                         Doubles(some.begin(), some.end()), 2e-6);
        }
    }
}

// Risk: experts with more rows than a tile; with none; absent rows among them.
TEST_P(ManyRows, Experts) {
    for (const auto& [experts, count] :
         {std::pair{6, 9}, {6, 40}, {6, 430}, {24, 9}, {24, 23}, {24, 40}, {24, 150}}) {
        moe_case::MoeShape shape{"many rows", experts, 3,     512,  256,  256,       Scoring::softmax,
                                 false,       true,    false, true, 1.0f, GetParam()};
        Random random(fmt::format("{} {} {}", name("experts"), experts, count));
        const moe_case::Block b(shape, random);
        moe_case::Rows r(b, count, random);
        for (int t = 0; t < count; ++t) {  // expert 4 always, expert 2 never
            r.logits[size_t(t) * size_t(experts) + 4] = 9.0f + float(t % 3);
            r.logits[size_t(t) * size_t(experts) + 2] = -9.0f;
        }
        const Doubles want_h = moe_case::glu_reference(b, r);
        const Floats h(want_h.begin(), want_h.end());
        const Doubles want_x = moe_case::down_reference(b, r, h);
        for (Machine* m : machines()) {
            m->reset();
            const moe_case::Answer a = moe_case::run_moe(*m, b, r, moe_case::all_rows(count), &h);
            expect_close(fmt::format("{} moe_glu of {} × {}", m->name, experts, count), a.h, want_h,
                         m->glu_tolerance(1e-6, count));
            expect_close(fmt::format("{} moe_down_add of {} × {}", m->name, experts, count), a.x, want_x,
                         m->tolerance(1e-6, count));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, ManyRows,
                         testing::Values(Quant::q4_k, Quant::q5_k, Quant::q6_k, Quant::q8_0),
                         [](const auto& info) { return std::string(quant_name(info.param)); });

}  // namespace
}  // namespace sparkinfer::test
