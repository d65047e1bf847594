// linear.cpp — embed, norm_linear, linear_add and linear_glu against float64, in every weight format.
#include <cmath>
#include <utility>

#include "core/half.h"
#include "harness.h"

namespace sparkinfer::test {
namespace {

struct LinearShape {
    int rows, in, out;
};
// Widths of the real models (scaled in `out`), and odd ones that no vector length divides.
const LinearShape kShapes[] = {{1, 576, 192}, {5, 1536, 100}, {7, 40, 33},
                               {64, 256, 48}, {3, 5120, 17},  {1, 17, 21}};

// Risk: a format decoded or scaled wrongly inside the product, whatever the decoder's own tests say.
TEST(NormLinear, EveryFormat) {
    for (Quant quant : all_quants()) {
        Random random(std::string("norm_linear ") + quant_name(quant));
        const int rows = 3, in = 512, out = 70;
        const OwnedWeight w = random_weight(random, quant, 1, out, in, quant == Quant::fp8_tensor);
        const Floats x = random.normals(rows * in);
        const OwnedWeight norm = f32_weight(random.normals(in), 1, in);
        const Doubles want = product(rms_normed(x, decoded(norm), in, 1e-5), decoded(w), in);
        for (Machine* m : machines()) {
            m->reset();
            NormLinear op{m->tensor(x, rows, in), norm, 1e-5f, 1, {w}, {m->tensor(rows, out)}};
            m->run(op);
            expect_close(m->name + " " + quant_name(quant), m->read(op.y[0]), want, m->tolerance(1e-6));
        }
    }
}

// Risk: parts mixed up where they meet; edges of tiles; outputs that depend on the number of rows or threads.
TEST(NormLinear, PartsAndShapes) {
    for (const LinearShape& s : kShapes) {
        const std::string name = fmt::format("norm_linear {}x{}x{}", s.rows, s.in, s.out);
        Random random(name);
        const Floats x = random.normals(int64_t(s.rows) * s.in, 3.0f);
        const OwnedWeight norm = f32_weight(random.normals(s.in), 1, s.in);
        std::vector<OwnedWeight> parts;
        for (int i = 0; i < kMaxParts; ++i) {
            const int out = i == 2 ? 2 : s.out + i;
            parts.push_back(f32_weight(random.normals(int64_t(out) * s.in), out, s.in));
        }
        std::vector<Floats> first;
        std::string family;
        for (Machine* m : machines()) {
            if (std::exchange(family, m->family()) != m->family()) first.clear();
            m->reset();
            NormLinear op{m->tensor(x, s.rows, s.in), norm, 1e-6f, kMaxParts, {}, {}};
            for (int i = 0; i < kMaxParts; ++i) {
                op.w[i] = parts[size_t(i)];
                op.y[i] = m->tensor(s.rows, op.w[i].out);
            }
            m->run(op);
            for (int i = 0; i < kMaxParts; ++i) {
                const Floats y = m->read(op.y[i]);
                if (first.size() < kMaxParts) {
                    first.push_back(y);
                    expect_close(name, y,
                                 product(rms_normed(x, decoded(norm), s.in, 1e-6), decoded(op.w[i]), s.in),
                                 m->tolerance(1e-6, s.rows));
                }
                expect_same_bits(m->name + " " + name, y, first[size_t(i)]);
            }
            for (int t = 0; t < s.rows && s.rows <= m->rows_of_one_form(); ++t) {  // one row at a time
                NormLinear one = op;
                one.x = m->tensor(slice(x, int64_t(t) * s.in, s.in), 1, s.in);
                for (int i = 0; i < kMaxParts; ++i) one.y[i] = m->tensor(1, op.w[i].out);
                m->run(one);
                for (int i = 0; i < kMaxParts; ++i)
                    expect_same_bits(name + " alone", m->read(one.y[i]),
                                     slice(first[size_t(i)], int64_t(t) * op.w[i].out, op.w[i].out));
            }
        }
    }
}

// Risk: overwriting instead of adding; a row's bits that depend on its neighbours.
TEST(LinearAdd, ShapesAndRowsAlone) {
    for (const LinearShape& s : kShapes) {
        const std::string name = fmt::format("linear_add {}x{}x{}", s.rows, s.in, s.out);
        Random random(name);
        const Floats x = random.normals(int64_t(s.rows) * s.in), y0 = random.normals(int64_t(s.rows) * s.out);
        const OwnedWeight w = f32_weight(random.normals(int64_t(s.out) * s.in), s.out, s.in);
        Doubles want = product(Doubles(x.begin(), x.end()), decoded(w), s.in);
        for (size_t i = 0; i < want.size(); ++i) want[i] += double(y0[i]);
        Floats first;
        std::string family;
        for (Machine* m : machines()) {
            if (std::exchange(family, m->family()) != m->family()) first.clear();
            m->reset();
            LinearAdd op{m->tensor(x, s.rows, s.in), w, m->tensor(y0, s.rows, s.out)};
            m->run(op);
            const Floats y = m->read(op.y);
            if (first.empty()) first = y;
            expect_close(m->name + " " + name, y, want, m->tolerance(1e-6, s.rows));
            expect_same_bits(m->name + " " + name, y, first);
            for (int t = 0; t < s.rows && s.rows <= m->rows_of_one_form(); ++t) {
                LinearAdd one{m->tensor(slice(x, int64_t(t) * s.in, s.in), 1, s.in), w,
                              m->tensor(slice(y0, int64_t(t) * s.out, s.out), 1, s.out)};
                m->run(one);
                expect_same_bits(name + " alone", m->read(one.y), slice(first, int64_t(t) * s.out, s.out));
            }
        }
    }
}

// Risk: gate and up exchanged; the activation on the wrong one.
TEST(LinearGlu, ShapesAndRowsAlone) {
    for (const LinearShape& s : kShapes) {
        const std::string name = fmt::format("linear_glu {}x{}x{}", s.rows, s.in, s.out);
        Random random(name);
        const Floats x = random.normals(int64_t(s.rows) * s.in);
        const OwnedWeight norm = f32_weight(random.normals(s.in), 1, s.in);
        const float scale = 1.0f / std::sqrt(float(s.in));
        const OwnedWeight gate = f32_weight(random.normals(int64_t(s.out) * s.in, scale), s.out, s.in);
        const OwnedWeight up = f32_weight(random.normals(int64_t(s.out) * s.in, scale), s.out, s.in);
        const Doubles n = rms_normed(x, decoded(norm), s.in, 1e-5), b = product(n, decoded(up), s.in);
        Doubles want = product(n, decoded(gate), s.in);
        for (size_t i = 0; i < want.size(); ++i) want[i] = silu64(want[i]) * b[i];
        Floats first;
        std::string family;
        for (Machine* m : machines()) {
            if (std::exchange(family, m->family()) != m->family()) first.clear();
            m->reset();
            LinearGlu op{m->tensor(x, s.rows, s.in), norm, gate, up, 1e-5f, Activation::silu,
                         m->tensor(s.rows, s.out)};
            m->run(op);
            const Floats y = m->read(op.y);
            if (first.empty()) first = y;
            expect_close(m->name + " " + name, y, want, m->glu_tolerance(1e-6, s.rows));
            expect_same_bits(m->name + " " + name, y, first);
            for (int t = 0; t < s.rows && s.rows <= m->rows_of_one_form(); ++t) {
                LinearGlu one = op;
                one.x = m->tensor(slice(x, int64_t(t) * s.in, s.in), 1, s.in);
                one.y = m->tensor(1, s.out);
                m->run(one);
                expect_same_bits(name + " alone", m->read(one.y), slice(first, int64_t(t) * s.out, s.out));
            }
        }
    }
}

// Rows near overflow and near nothing, `in` wide, through weights of ones.
void expect_extreme_rows(const OwnedWeight& ones, int in) {
    Floats x(size_t(3) * size_t(in), 0.0f);
    for (int i = 0; i < in; ++i) x[size_t(i)] = 1e30f, x[size_t(2) * size_t(in) + size_t(i)] = 1e-30f;
    const OwnedWeight norm = f32_weight(Floats(size_t(in), 1.0f), 1, in);
    const int out = ones.view.out;
    const double scales[] = {1.0, 0.0, 1e-30 / std::sqrt(1e-60 + 1e-5)};
    for (Machine* m : machines()) {
        m->reset();
        NormLinear op{m->tensor(x, 3, in), norm, 1e-5f, 1, {ones}, {m->tensor(3, out)}};
        m->run(op);
        const Floats y = m->read(op.y[0]);
        for (int t = 0; t < 3; ++t)
            expect_close(fmt::format("{} row {}", m->name, t), slice(y, t * out, out),
                         Doubles(size_t(out), in * scales[t]), m->tolerance(1e-6));
    }
}

// Risk: values near overflow turn the norm's statistics into infinity, zero rows into NaN.
TEST(NormLinear, LargeAndZeroRows) { expect_extreme_rows(f32_weight(Floats(64, 1.0f), 1, 64), 64); }

// Risk: the same where rows become integers first.
TEST(NormLinear, LargeAndZeroRowsOfBlocks) {
    Random random("large rows of blocks");
    OwnedWeight ones = random_weight(random, Quant::q8_0, 1, 16, 256);
    for (size_t at = 0; at < ones.data.size(); at += 34) {  // {half scale, 32 codes}
        const uint16_t scale = f32_to_f16(1.0f / 64);
        memcpy(&ones.data[at], &scale, 2);
        memset(&ones.data[at + 2], 64, 32);
    }
    expect_extreme_rows(ones, 256);
}

// Risk: changes to slots applied late or to the wrong words; history or rows of absent slots written.
TEST(Embed, ChangesTokensAndHistory) {
    Random random("embed");
    const int width = 64, vocabulary = 11;
    for (Quant quant : {Quant::f32, Quant::q8_0, Quant::q4_1, Quant::bf16}) {
        const OwnedWeight table = random_weight(random, quant, 1, vocabulary, width);
        const Doubles values = decoded(table);
        for (Machine* m : machines()) {
            m->reset();
            const SlotsView slots = m->slots(3, 2);
            Slot stopped{};
            stopped.cursor.stopped = kStopToken;
            m->set_slot(slots, 2, stopped);
            StepImage step;
            step.rows = {{3, 0, 5, {5, 5, 5}, 0, -1},
                         {-1, 1, -1, {}, kRowFromCursor, -1},   // its cursor is written by the change below
                         {-1, 2, -1, {}, kRowFromCursor, -1}};  // absent: stopped
            step.payload = {9, 77};                             // Cursor::next_token, index
            step.changes = {{1, 0, 2, 0}};
            Embed op{m->step(), slots, table,
                     m->tensor(5, width)};  // rows 3 and 4 are absent: beyond the step
            m->run(op, step);
            Doubles want(5 * width, 0.0);
            std::copy_n(values.begin() + 3 * width, width, want.begin());
            std::copy_n(values.begin() + 9 * width, width, want.begin() + width);
            const Floats got = m->read(op.y);
            for (size_t i = 0; i < want.size(); ++i)
                ASSERT_EQ(double(got[i]), want[i]) << m->name << " at " << i;
            std::vector<int32_t> history(size_t(slots.max_tokens));
            for (int s = 0; s < 3; ++s) {
                m->read(history.data(), slots.history(s), int64_t(history.size()) * 4);
                for (int i = 0; i < slots.max_tokens; ++i)
                    ASSERT_EQ(history[size_t(i)], s == 0 && i == 5    ? 3
                                                  : s == 1 && i == 77 ? 9
                                                                      : 0)
                        << s << " " << i;
            }
            EXPECT_EQ(m->slot(slots, 1).cursor.index, 77);
        }
    }
}

}  // namespace
}  // namespace sparkinfer::test
