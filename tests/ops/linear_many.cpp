// linear_many.cpp — norm_linear, linear_add and linear_glu of more rows than decoding has, against float64.
#include <cmath>

#include "harness.h"

namespace sparkinfer::test {
namespace {

// Rows that end with tiles, one beyond and one before.
const int kRows[] = {9, 17, 64, 65, 200};

// Columns that no tile divides, and outputs that nothing does.
int columns_of(Quant quant) {
    const int block = quant_block(quant);
    return block >= 256 ? 3 * block : block >= 64 ? 3 * block : 160;
}

// Risk: a format decoded or scaled wrongly in the form for many rows; edges of its tiles; a gate or up that
// it takes for the other.
TEST(LinearMany, EveryFormat) {
    for (Quant quant : all_quants()) {
        const int in = columns_of(quant), out = 70;
        Random random(std::string("linear_many ") + quant_name(quant));
        const OwnedWeight w = random_weight(random, quant, 1, out, in, quant == Quant::fp8_tensor);
        const OwnedWeight norm = f32_weight(random.normals(in), 1, in);
        for (int rows : kRows) {
            if (cases_are_short() && rows != 17) continue;
            const std::string name = fmt::format("{} {} rows", quant_name(quant), rows);
            const Floats x = random.normals(int64_t(rows) * in), y0 = random.normals(int64_t(rows) * out);
            const Doubles normed = product(rms_normed(x, decoded(norm), in, 1e-5), decoded(w), in);
            Doubles added = product(Doubles(x.begin(), x.end()), decoded(w), in);
            for (size_t i = 0; i < added.size(); ++i) added[i] += double(y0[i]);
            FamilyBits normed_bits, added_bits;
            for (Machine* m : machines()) {
                m->reset();
                NormLinear op{m->tensor(x, rows, in), norm, 1e-5f, 1, {w}, {m->tensor(rows, out)}};
                m->run(op);
                expect_close(m->name + " norm " + name, m->read(op.y[0]), normed, m->tolerance(1e-6));
                normed_bits.expect(*m, name, m->read(op.y[0]));
                LinearAdd add{m->tensor(x, rows, in), w, m->tensor(y0, rows, out)};
                m->run(add);
                expect_close(m->name + " add " + name, m->read(add.y), added, m->tolerance(1e-6));
                added_bits.expect(*m, name, m->read(add.y));
            }
        }
    }
}

// Risk: parts of several formats mixed up where they meet.
TEST(LinearMany, PartsOfSeveralFormats) {
    const int rows = 100, in = 256;
    Random random("linear_many parts");
    const Floats x = random.normals(int64_t(rows) * in, 3.0f);
    const OwnedWeight norm = f32_weight(random.normals(in), 1, in);
    const OwnedWeight parts[kMaxParts] = {
        random_weight(random, Quant::f32, 1, 131, in), random_weight(random, Quant::bf16, 1, 1, in),
        random_weight(random, Quant::q4_1, 1, 40, in), random_weight(random, Quant::nvfp4_split, 1, 129, in)};
    for (Machine* m : machines()) {
        m->reset();
        NormLinear op{m->tensor(x, rows, in), norm, 1e-6f, kMaxParts, {}, {}};
        for (int i = 0; i < kMaxParts; ++i) op.w[i] = parts[i], op.y[i] = m->tensor(rows, parts[i].view.out);
        m->run(op);
        const Doubles n = rms_normed(x, decoded(norm), in, 1e-6);
        for (int i = 0; i < kMaxParts; ++i)
            expect_close(fmt::format("{} part {}", m->name, i), m->read(op.y[i]),
                         product(n, decoded(parts[i]), in), m->tolerance(1e-6));
    }
}

// Risk: gate and up exchanged; rows that no vector length divides.
TEST(LinearMany, Glu) {
    for (Quant quant : {Quant::f32, Quant::f16, Quant::bf16, Quant::q4_0, Quant::fp8_channel}) {
        const int rows = 37, in = quant == Quant::q4_0 ? 96 : 43, out = 33;
        Random random(std::string("linear_many glu ") + quant_name(quant));
        const Floats x = random.normals(int64_t(rows) * in);
        const OwnedWeight norm = f32_weight(random.normals(in), 1, in);
        const OwnedWeight gate = random_weight(random, quant, 1, out, in),
                          up = random_weight(random, quant, 1, out, in);
        const Doubles n = rms_normed(x, decoded(norm), in, 1e-5), b = product(n, decoded(up), in);
        Doubles want = product(n, decoded(gate), in);
        for (size_t i = 0; i < want.size(); ++i) want[i] = silu64(want[i]) * b[i];
        for (Machine* m : machines()) {
            m->reset();
            LinearGlu op{m->tensor(x, rows, in), norm, gate, up, 1e-5f, Activation::silu,
                         m->tensor(rows, out)};
            m->run(op);
            expect_close(m->name + " glu " + quant_name(quant), m->read(op.y), want, m->glu_tolerance(1e-6));
        }
    }
}

// Risk: values far from one overflow or vanish; sums of long rows lose what they are made of.
TEST(LinearMany, MagnitudesAndLongRows) {
    struct Case {
        int in;
        float x, w;
    };
    for (const Case& c : {Case{96, 1e6f, 1e6f}, Case{96, 1e-6f, 1e-6f}, Case{17920, 1, 1}}) {
        const int rows = 20, out = 24;
        Random random(fmt::format("linear_many {} {} {}", c.in, c.x, c.w));
        const Floats x = random.normals(int64_t(rows) * c.in, c.x),
                     y0 = random.normals(int64_t(rows) * out, c.x * c.w);
        const OwnedWeight w = f32_weight(random.normals(int64_t(out) * c.in, c.w), out, c.in);
        Doubles want = product(Doubles(x.begin(), x.end()), decoded(w), c.in);
        for (size_t i = 0; i < want.size(); ++i) want[i] += double(y0[i]);
        for (Machine* m : machines()) {
            m->reset();
            LinearAdd op{m->tensor(x, rows, c.in), w, m->tensor(y0, rows, out)};
            m->run(op);
            expect_close(fmt::format("{} {}", m->name, c.in), m->read(op.y), want, m->tolerance(1e-6));
        }
    }
}

// Risk: a row's bits that depend on its neighbours.
TEST(LinearMany, RowsAmongOthers) {
    const int rows = 130, few = 11, in = 416, out = 150;
    Random random("linear_many neighbours");
    const Floats x = random.normals(int64_t(rows) * in);
    for (Quant quant : {Quant::f32, Quant::bf16, Quant::q5_0}) {
        const OwnedWeight w = random_weight(random, quant, 1, out, in);
        for (Machine* m : machines()) {
            m->reset();
            LinearAdd all{m->tensor(x, rows, in), w, m->tensor(Floats(size_t(rows * out), 0.5f), rows, out)};
            m->run(all);
            const Floats y = m->read(all.y);
            for (int first : {0, 63, rows - few}) {
                LinearAdd some{m->tensor(slice(x, int64_t(first) * in, few * in), few, in), w,
                               m->tensor(Floats(size_t(few * out), 0.5f), few, out)};
                m->run(some);
                expect_same_bits(fmt::format("{} {} from {}", m->name, quant_name(quant), first),
                                 m->read(some.y), slice(y, int64_t(first) * out, few * out));
            }
        }
    }
}

}  // namespace
}  // namespace sparkinfer::test
