// shapes.cpp — ops over random shapes, every format among them: against float64, and a row alone against the
// same row among others, bit for bit.
#include <algorithm>
#include <array>
#include <cmath>

#include "attention_case.h"
#include "gated_delta_case.h"
#include "moe_case.h"

namespace sparkinfer::test {
namespace {

int rounds() { return cases_are_short() ? 1 : 4; }

// Mostly rows of decoding, sometimes more.
int random_rows(Random& random) { return random.below(5) ? 1 + random.below(8) : 9 + random.below(30); }
// A multiple of the blocks of `quant`, often of 256 too.
int random_width(Random& random, Quant quant, int most_blocks = 5) {
    const int block = quant_block(quant);
    if (random.below(2)) return 256 * (1 + random.below(most_blocks));
    return block * (1 + random.below(std::max(1, most_blocks * 256 / block / 2)));
}
// Often a multiple of 16.
int random_height(Random& random) {
    return random.below(2) ? 16 * (1 + random.below(6)) : 1 + random.below(90);
}
// A format whose blocks divide `in`.
Quant random_quant(Random& random, int in) {
    for (;;) {
        const Quant q = all_quants()[size_t(random.below(int(all_quants().size())))];
        if (in % quant_block(q) == 0) return q;
    }
}
OwnedWeight random_norm(Random& random, int in) { return f32_weight(random.normals(in), 1, in); }

// run(machine, first, count) answers with rows [count, cols] of the op; `want` [rows, cols].
template <class Run>
void compare_rows(const std::string& what, int rows, const Doubles& want, const Run& run, bool glu = false) {
    const int64_t cols = int64_t(want.size()) / rows;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        const Floats all = run(*m, 0, rows);
        expect_close(m->name + ' ' + what, all, want,
                     glu ? m->glu_tolerance(1e-6, rows) : m->tolerance(1e-6, rows));
        bits.expect(*m, what, all);
        if (rows == 1 || rows > m->rows_of_one_form() || cases_are_short()) continue;
        for (int t = 0; t < rows; ++t)
            expect_same_bits(fmt::format("{} {}: row {} alone", m->name, what, t), run(*m, t, 1),
                             slice(all, t * cols, cols));
    }
}

class RandomShapes : public testing::TestWithParam<Quant> {
  protected:
    Quant quant() const { return GetParam(); }
    std::string name(const char* op) const { return std::string(op) + ' ' + quant_name(quant()); }
};

// Risk: tails of slabs, tiles and rings; parts of several formats in one launch; rows that share work.
TEST_P(RandomShapes, NormLinear) {
    Random random(name("shapes norm_linear"));
    for (int round = 0; round < rounds(); ++round) {
        const int rows = random_rows(random), in = random_width(random, quant()),
                  parts = 1 + round % kMaxParts;
        const Floats x = random.normals(int64_t(rows) * in, 2.0f);
        const OwnedWeight norm = random_norm(random, in);
        const Doubles n = rms_normed(x, decoded(norm), in, 1e-6);
        std::vector<OwnedWeight> w;
        std::vector<Doubles> y;
        std::string what = fmt::format("norm_linear {} × {}", rows, in);
        for (int i = 0; i < parts; ++i) {
            const Quant q = i % 2 ? random_quant(random, in) : quant();
            w.push_back(random_weight(random, q, 1, random_height(random), in));
            y.push_back(product(n, decoded(w.back()), in));
            what += fmt::format(" [{}] {}", w.back().view.out, quant_name(q));
        }
        Doubles want;
        for (int t = 0; t < rows; ++t)
            for (int i = 0; i < parts; ++i)
                for (double v :
                     slice(y[size_t(i)], int64_t(t) * w[size_t(i)].view.out, w[size_t(i)].view.out))
                    want.push_back(v);
        compare_rows(what, rows, want, [&](Machine& m, int first, int count) {
            NormLinear op{m.tensor(slice(x, int64_t(first) * in, int64_t(count) * in), count, in),
                          norm,
                          1e-6f,
                          parts,
                          {},
                          {}};
            for (int i = 0; i < parts; ++i) op.w[i] = w[size_t(i)], op.y[i] = m.tensor(count, op.w[i].out);
            m.run(op);
            Floats all;
            std::vector<Floats> got;
            got.reserve(size_t(parts));
            for (int i = 0; i < parts; ++i) got.push_back(m.read(op.y[i]));
            for (int t = 0; t < count; ++t)
                for (int i = 0; i < parts; ++i)
                    for (float v : slice(got[size_t(i)], int64_t(t) * op.w[i].out, op.w[i].out))
                        all.push_back(v);
            return all;
        });
    }
}

TEST_P(RandomShapes, LinearAdd) {
    Random random(name("shapes linear_add"));
    for (int round = 0; round < rounds(); ++round) {
        const int rows = random_rows(random), in = random_width(random, quant()), out = random_height(random);
        const Floats x = random.normals(int64_t(rows) * in), y = random.normals(int64_t(rows) * out);
        const OwnedWeight w = random_weight(random, quant(), 1, out, in);
        Doubles want = product(Doubles(x.begin(), x.end()), decoded(w), in);
        for (size_t i = 0; i < want.size(); ++i) want[i] += double(y[i]);
        compare_rows(fmt::format("linear_add {} × {} × {}", rows, in, out), rows, want,
                     [&](Machine& m, int first, int count) {
                         LinearAdd op{
                             m.tensor(slice(x, int64_t(first) * in, int64_t(count) * in), count, in), w,
                             m.tensor(slice(y, int64_t(first) * out, int64_t(count) * out), count, out)};
                         m.run(op);
                         return m.read(op.y);
                     });
    }
}

TEST_P(RandomShapes, LinearGlu) {
    Random random(name("shapes linear_glu"));
    for (int round = 0; round < rounds(); ++round) {
        const int rows = random_rows(random), in = random_width(random, quant()), out = random_height(random);
        const Floats x = random.normals(int64_t(rows) * in);
        const OwnedWeight norm = random_norm(random, in), gate = random_weight(random, quant(), 1, out, in),
                          up = random_weight(random, round % 4 == 3 ? random_quant(random, in) : quant(), 1,
                                             out, in);
        const Doubles n = rms_normed(x, decoded(norm), in, 1e-5), b = product(n, decoded(up), in);
        Doubles want = product(n, decoded(gate), in);
        for (size_t i = 0; i < want.size(); ++i) want[i] = silu64(want[i]) * b[i];
        compare_rows(
            fmt::format("linear_glu {} × {} × {}, up {}", rows, in, out, quant_name(up.view.quant)), rows,
            want,
            [&](Machine& m, int first, int count) {
                LinearGlu op{m.tensor(slice(x, int64_t(first) * in, int64_t(count) * in), count, in),
                             norm,
                             gate,
                             up,
                             1e-5f,
                             Activation::silu,
                             m.tensor(count, out)};
                m.run(op);
                return m.read(op.y);
            },
            true);
    }
}

// Risk: as above, and outputs that are not the first rows of the step.
TEST_P(RandomShapes, Logits) {
    Random random(name("shapes logits"));
    for (int round = 0; round < rounds(); ++round) {
        const int rows = random_rows(random), in = random_width(random, quant()),
                  out = random_height(random) + 30;
        const Floats x = random.normals(int64_t(2) * rows * in);  // every other row wants output
        const OwnedWeight norm = random_norm(random, in), head = random_weight(random, quant(), 1, out, in);
        const Doubles n = rms_normed(x, decoded(norm), in, 1e-5);
        Doubles chosen;
        for (int t = 0; t < rows; ++t)
            for (double v : slice(n, (int64_t(2) * t + 1) * in, in)) chosen.push_back(v);
        compare_rows(fmt::format("logits {} × {} × {}", rows, in, out), rows,
                     product(chosen, decoded(head), in), [&](Machine& m, int first, int count) {
                         StepImage step;
                         step.add_rows(0, 0, 2 * count);
                         for (int t = 0; t < count; ++t) step.outputs.push_back(2 * t + 1);
                         const Floats some = slice(x, int64_t(2) * first * in, int64_t(2) * count * in);
                         Output op{m.step(),
                                   m.slots(1, 2),
                                   m.tensor(some, 2 * count, in),
                                   norm,
                                   head,
                                   1e-5f,
                                   OutputKind::logits,
                                   0,
                                   {},
                                   nullptr,
                                   m.tensor(count, out)};
                         m.run(op, step);
                         return m.read(op.rows);
                     });
    }
}

// Risk: experts that no row picks, or all rows; both halves in different formats; sizes that are no multiple
// of a tile.
TEST_P(RandomShapes, Experts) {
    using namespace moe_case;
    Random random(name("shapes experts"));
    for (int round = 0; round < rounds(); ++round) {
        const int rows = random_rows(random), experts = 2 + random.below(20);
        MoeShape shape{"",
                       experts,
                       1 + random.below(std::min(8, experts)),
                       random_width(random, quant(), 2),
                       random_width(random, quant(), 2),
                       0,
                       random.below(2) ? Scoring::softmax : Scoring::sigmoid,
                       random.below(2) == 0,
                       random.below(2) == 0,
                       false,
                       random.below(2) == 0,
                       random.below(2) ? 1.0f : 1.5f,
                       quant()};
        shape.down = random.below(2) ? quant() : random_quant(random, shape.inner);
        shape.shared_down = random_quant(random, 256);
        if (random.below(2)) shape.shared = 256;
        shape.factor = random.below(2) == 0;
        const Block b(shape, random);
        const Rows r(b, rows, random);
        const Floats h = random.normals(int64_t(rows) * shape.top_k * shape.inner);
        const std::string what = fmt::format("experts {} of {}, {} × {}, down {}, rows {}", shape.top_k,
                                             experts, shape.inner, shape.width, quant_name(shape.down), rows);
        const auto which = [](int first, int count) {
            std::vector<int> list = all_rows(count);
            for (int& t : list) t += first;
            return list;
        };
        compare_rows(
            what + ", gate and up", rows, glu_reference(b, r),
            [&](Machine& m, int first, int count) {
                return run_moe(m, b, r, which(first, count), nullptr).h;
            },
            true);
        compare_rows(what + ", down", rows, down_reference(b, r, h), [&](Machine& m, int first, int count) {
            return run_moe(m, b, r, which(first, count), &h).x;
        });
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, RandomShapes, testing::ValuesIn(all_quants()), [](const auto& info) {
    std::string name = quant_name(info.param);
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

// Risk: rows so long that the kernels of few rows split or share them otherwise.
TEST(LongRows, EveryFastFormat) {
    for (const Quant quant : {Quant::q8_0, Quant::q4_0, Quant::q4_1, Quant::q4_k, Quant::q5_k, Quant::q6_k,
                              Quant::iq4_xs, Quant::mxfp4, Quant::bf16, Quant::f16})
        for (const int in : {17408, 32768, 33024}) {
            if (cases_are_short() && in != 17408) continue;
            Random random(fmt::format("long rows {} {}", quant_name(quant), in));
            const int rows = 1 + random.below(8), out = 32;
            const Floats x = random.normals(int64_t(rows) * in), y(size_t(rows * out), 0.0f);
            const OwnedWeight w = random_weight(random, quant, 1, out, in);
            compare_rows(
                fmt::format("{} {} × {}", quant_name(quant), rows, in), rows,
                product(Doubles(x.begin(), x.end()), decoded(w), in), [&](Machine& m, int first, int count) {
                    LinearAdd op{m.tensor(slice(x, int64_t(first) * in, int64_t(count) * in), count, in), w,
                                 m.tensor(slice(y, 0, int64_t(count) * out), count, out)};
                    m.run(op);
                    return m.read(op.y);
                });
        }
}

// Risk: groups, widths and rotations that no model of the list has; sequences of different lengths beside
// each other, in steps of few and of many rows.
TEST(AttentionShapes, Random) {
    using namespace attention_case;
    for (int round = 0; round < 6 * rounds(); ++round) {
        Random random(fmt::format("shapes attention {}", round));
        const int width = std::vector{32, 64, 96, 128, 256}[size_t(round) % 5], groups = 1 + random.below(4);
        AttentionShape shape{"",
                             groups * (1 + random.below(9)),
                             groups,
                             width,
                             random.below(2) == 0,
                             random.below(2) == 0,
                             width >> random.below(3),
                             random.below(2) ? RopePairs::halves : RopePairs::adjacent,
                             {},
                             std::array{DType::bf16, DType::f32, DType::e4m3}[size_t(random.below(3))],
                             random.uniform(0.8f, 1.2f)};
        const Parameters p(shape, random);
        StepImage step;
        std::vector<int> before, after;
        for (int s = 0; s < kSlots; ++s) {
            const int settled = random.below(150), rows = 1 + random.below(round % 3 == 2 ? 20 : 2);
            for (int i = 0; i < settled + rows; ++i)
                (i < settled ? before : after).push_back(int(step.rows.size()) + i);
            step.add_rows(s, 0, settled + rows);
        }
        const Inputs in = random_inputs(p, random, step);
        const Doubles all = reference(p, in);
        Doubles want;
        for (int t : after)
            for (double v : slice(all, int64_t(t) * p.y_cols(), p.y_cols())) want.push_back(v);
        FamilyBits bits;
        for (Machine* m : machines()) {
            m->reset();
            const Cache cache(*m, p);
            if (!before.empty()) run_rows(*m, p, cache, part_of(p, in, before));
            const Floats y = run_rows(*m, p, cache, part_of(p, in, after));
            const std::string what =
                fmt::format("H {} G {} d {} rows {}", shape.heads, groups, width, after.size());
            expect_close(m->name + ' ' + what, y, want,
                         int(after.size()) > m->rows_of_one_form() ? most_error_many(*m, shape.kv, 5e-6)
                                                                   : most_error(shape.kv, 5e-6));
            bits.expect(*m, what, y);
        }
    }
}

// Risk: numbers of heads that no model of the list has.
TEST(GatedDeltaShapes, Random) {
    using namespace gated_delta_case;
    for (int round = 0; round < 2 * rounds(); ++round) {
        Random random(fmt::format("shapes gated_delta {}", round));
        const int keys = 1 + random.below(4), ratio = 1 + random.below(4), rows = 2 + random.below(24);
        const int cut = 1 + random.below(rows - 1);
        const Sequence s({"", keys, keys * ratio, random.below(2) ? HeadOrder::block : HeadOrder::cyclic},
                         rows, random);
        const Doubles want = reference(s);
        FamilyBits bits;
        for (Machine* m : machines()) {
            m->reset();
            Rig rig(*m, s);
            Floats y = rig.run({{0, cut, -1, 1}});
            const Floats rest = rig.run({{cut, rows - cut, 1, 1}});
            y.insert(y.end(), rest.begin(), rest.end());
            const std::string what =
                fmt::format("n_k {} n_v {} rows {} + {}", keys, keys * ratio, cut, rows - cut);
            expect_close(m->name + ' ' + what, y, want, m->tolerance(2e-6));
            bits.expect(*m, what, y);
        }
    }
}

}  // namespace
}  // namespace sparkinfer::test
