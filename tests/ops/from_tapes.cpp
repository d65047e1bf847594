// from_tapes.cpp — a scaled-down twin of every instruction in the tapes of real models, against float64.
//
// A twin keeps what chooses code paths: the formats of every operand, rows, parts, the width of heads and how
// many queries share a key, gate, norms, rotary embedding with its table, n_v / n_k, experts used, the shared
// expert. Only sizes shrink, to the same remainders. Each op's twin is an overload of `twin`, so that an op
// without one does not compile.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>

#include "attention_case.h"
#include "gated_delta_case.h"
#include "moe_case.h"
#include "ops/state_layout.h"
#include "real_models.h"

namespace sparkinfer::test {
namespace {

// --- what makes an instruction distinct

std::string text(const Weight& w) {
    if (!w.data) return "-";
    return fmt::format("[{}{}, {}] {}", w.experts > 1 ? fmt::format("{}, ", w.experts) : "", w.out, w.in,
                       quant_name(w.quant));
}
std::string text(const Router& r) {
    return fmt::format("{} best by {}{}{} × {}", r.top_k,
                       r.scoring == Scoring::softmax ? "softmax" : "sigmoid", r.bias.data ? " + bias" : "",
                       r.renormalise ? ", renormalised" : "", r.scale);
}
std::string describe(const Embed& o) { return text(o.table); }
std::string describe(const NormLinear& o) {
    std::string all;
    for (int i = 0; i < o.parts; ++i) all += (i ? " | " : "") + text(o.w[i]);
    return all + fmt::format(", eps {}", o.eps);
}
std::string describe(const LinearAdd& o) { return text(o.w); }
std::string describe(const LinearGlu& o) {
    return fmt::format("{} | {}, eps {}", text(o.gate), text(o.up), o.eps);
}
std::string describe(const Attention& o) {
    return fmt::format("H {} G {} d {}{}{}, rope {} {} of {}/{}/{} down to {:.3g} × {}", o.heads, o.kv.heads,
                       o.kv.width, o.gated ? ", gated" : "", o.q_norm.data ? ", q and k normalised" : "",
                       o.rope.dims, o.rope.pairs == RopePairs::halves ? "in halves" : "adjacent",
                       o.rope.sections[0], o.rope.sections[1], o.rope.sections[2],
                       decoded(o.rope.frequency).back(), o.rope.magnitude);
}
std::string describe(const GatedDelta& o) {
    return fmt::format("n_k {} n_v {}, {} taps, heads {}", o.state.key_heads, o.state.value_heads,
                       o.state.taps, o.order == HeadOrder::block ? "in blocks" : "in cycles");
}
std::string describe(const MoeGlu& o) {
    return fmt::format("{} | {}, {}", text(o.gate), text(o.up), text(o.router));
}
std::string describe(const MoeDownAdd& o) {
    return fmt::format("{}, {}, shared {}{}", text(o.down), text(o.router), text(o.shared_down),
                       o.shared_scalar ? " with a factor" : "");
}
std::string describe(const Output& o) { return fmt::format("{}, kind {}", text(o.head), int(o.kind)); }

const Tensor& rows_of(const Embed& o) { return o.y; }
const Tensor& rows_of(const Attention& o) { return o.q; }
const Tensor& rows_of(const GatedDelta& o) { return o.qkv; }
template <class Op>
const Tensor& rows_of(const Op& o) {
    return o.x;
}

// --- twins: each returns the number of machines it compared

// Columns: `blocks` of 256 and what the true width has beyond blocks of 256. Rows of weights: as many as tell
// slabs and tiles apart.
int columns(int64_t true_columns, int blocks) {
    return int(std::min<int64_t>(true_columns, blocks * 256 + true_columns % 256));
}
int outputs(int true_outputs) { return std::min(true_outputs, 64 + true_outputs % 64); }

Doubles doubles(const Floats& values) { return {values.begin(), values.end()}; }

int twin(const Embed& op, Random& random) {
    const int rows = op.y.rows(), in = columns(op.table.in, 2);
    const OwnedWeight table = random_weight(random, op.table.quant, 1, outputs(op.table.out), in);
    const Doubles values = decoded(table);
    StepImage step;
    step.add_rows(0, 2, rows);
    Doubles want;
    for (const Row& row : step.rows)
        for (double v : slice(values, int64_t(row.token) * in, in)) want.push_back(v);
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        Embed small{m->step(), m->slots(1, 1), table, m->tensor(rows, in)};
        m->run(small, step);
        const Floats y = m->read(small.y);
        expect_close(m->name, y, want, 0);
        bits.expect(*m, "", y);
        ++compared;
    }
    return compared;
}

int twin(const NormLinear& op, Random& random) {
    const int rows = op.x.rows(), in = columns(op.x.cols(), 2);
    const Floats x = random.normals(int64_t(rows) * in);
    const OwnedWeight norm = f32_weight(random.normals(in), 1, in);
    const Doubles n = rms_normed(x, decoded(norm), in, double(op.eps));
    std::vector<OwnedWeight> parts;
    std::vector<Doubles> want;
    for (int i = 0; i < op.parts; ++i) {
        parts.push_back(random_weight(random, op.w[i].quant, 1, outputs(op.w[i].out), in));
        want.push_back(product(n, decoded(parts.back()), in));
    }
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        NormLinear small{m->tensor(x, rows, in), norm, op.eps, op.parts, {}, {}};
        for (int i = 0; i < op.parts; ++i) {
            small.w[i] = parts[size_t(i)];
            small.y[i] = m->tensor(rows, small.w[i].out);
        }
        m->run(small);
        Floats all;
        for (int i = 0; i < op.parts; ++i) {
            const Floats y = m->read(small.y[i]);
            expect_close(fmt::format("{} part {}", m->name, i), y, want[size_t(i)], m->tolerance(1e-6, rows));
            all.insert(all.end(), y.begin(), y.end());
        }
        bits.expect(*m, "parts", all);
        ++compared;
    }
    return compared;
}

int twin(const LinearAdd& op, Random& random) {
    const int rows = op.x.rows(), in = columns(op.w.in, 2), out = outputs(op.w.out);
    const Floats x = random.normals(int64_t(rows) * in), y = random.normals(int64_t(rows) * out);
    const OwnedWeight w = random_weight(random, op.w.quant, 1, out, in);
    Doubles want = product(doubles(x), decoded(w), in);
    for (size_t i = 0; i < want.size(); ++i) want[i] += double(y[i]);
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        LinearAdd small{m->tensor(x, rows, in), w, m->tensor(y, rows, out)};
        m->run(small);
        const Floats y = m->read(small.y);
        expect_close(m->name, y, want, m->tolerance(1e-6, rows));
        bits.expect(*m, "", y);
        ++compared;
    }
    return compared;
}

int twin(const LinearGlu& op, Random& random) {
    const int rows = op.x.rows(), in = columns(op.gate.in, 2), out = outputs(op.gate.out);
    const Floats x = random.normals(int64_t(rows) * in);
    const OwnedWeight norm = f32_weight(random.normals(in), 1, in);
    const OwnedWeight gate = random_weight(random, op.gate.quant, 1, out, in);
    const OwnedWeight up = random_weight(random, op.up.quant, 1, out, in);
    const Doubles n = rms_normed(x, decoded(norm), in, double(op.eps)), b = product(n, decoded(up), in);
    Doubles want = product(n, decoded(gate), in);
    for (size_t i = 0; i < want.size(); ++i) want[i] = silu64(want[i]) * b[i];
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        LinearGlu small{m->tensor(x, rows, in), norm, gate, up, op.eps, op.activation, m->tensor(rows, out)};
        m->run(small);
        const Floats y = m->read(small.y);
        expect_close(m->name, y, want, m->glu_tolerance(1e-6, rows));
        bits.expect(*m, "", y);
        ++compared;
    }
    return compared;
}

// The rows follow 66 tokens, more than a page; pages of both kinds.
int twin(const Attention& op, Random& random) {
    constexpr int kBefore = 66;
    const int rows = op.q.rows(), groups = std::min(op.kv.heads, 2), heads = groups * op.heads / op.kv.heads;
    EXPECT_FLOAT_EQ(op.scale * std::sqrt(float(op.kv.width)), 1.0f);
    EXPECT_TRUE(op.eps == attention_case::kEps || !op.q_norm.data);
    int compared = 0;
    for (DType kv : {DType::bf16, DType::f32}) {
        FamilyBits bits;
        const bool norms = op.q_norm.data != nullptr;
        attention_case::AttentionShape shape{"",       heads, groups,           op.kv.width,
                                             op.gated, norms, op.rope.dims,     op.rope.pairs,
                                             {},       kv,    op.rope.magnitude};
        std::copy_n(op.rope.sections, 3, shape.sections);
        attention_case::Parameters p(shape, random);
        const Doubles table = decoded(op.rope.frequency);
        p.frequency = f32_weight(Floats(table.begin(), table.end()), 1, op.rope.dims / 2);
        StepImage step;
        step.add_rows(0, 0, kBefore + rows);
        if (shape.sections[0]) attention_case::spread_axes(step);
        const attention_case::Inputs in = random_inputs(p, random, step);
        const Doubles want = reference(p, in, kBefore);
        std::vector<int> before, after;
        for (int t = 0; t < in.rows(); ++t) (t < kBefore ? before : after).push_back(t);
        const double most = kv == DType::f32 ? 5e-6 : 1e-4;  // keys that round to the other neighbour
        for (Machine* m : machines()) {
            m->reset();
            const attention_case::Cache cache(*m, p, 1, 2);
            run_rows(*m, p, cache, part_of(p, in, before));
            const Floats y = run_rows(*m, p, cache, part_of(p, in, after));
            expect_close(m->name, y, want,
                         rows > m->rows_of_one_form() ? attention_case::most_error_many(*m, kv, most)
                                                      : m->tolerance(most));
            bits.expect(*m, "", y);
            ++compared;
        }
    }
    return compared / 2;
}

// The rows follow six others, whose state they read and write in place.
int twin(const GatedDelta& op, Random& random) {
    using namespace gated_delta_case;
    constexpr int kBefore = 6;
    const int rows = op.qkv.rows(), ratio = op.state.value_heads / op.state.key_heads;
    EXPECT_EQ(op.state.width, kWidth);
    EXPECT_EQ(op.state.taps, kTaps);
    EXPECT_EQ(op.eps, kEps);
    const Sequence s({"", 2, 2 * ratio, op.order}, kBefore + rows, random);
    const Doubles all = reference(s);
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        rig.run({{0, kBefore, -1, 1}});
        const Floats y = rig.run({{kBefore, rows, 1, 1}});
        expect_close(m->name, y, slice(all, int64_t(kBefore) * s.values, int64_t(rows) * s.values),
                     m->tolerance(2e-6));
        bits.expect(*m, "", y);
        ++compared;
    }
    return compared;
}

// Twice as many experts as are used.
moe_case::MoeShape small_experts(const Router& r, int width, int inner, int shared, Quant quant) {
    return {.name = "",
            .experts = 2 * r.top_k,
            .top_k = r.top_k,
            .width = columns(width, 1),
            .inner = columns(inner, 1),
            .shared = columns(shared, 1),
            .scoring = r.scoring,
            .bias = r.bias.data != nullptr,
            .renormalise = r.renormalise,
            .fused = false,
            .scalar = false,
            .scale = r.scale,
            .quant = quant,
            .factor = false};
}

int twin(const MoeGlu& op, Random& random) {
    using namespace moe_case;
    EXPECT_EQ(op.gate.quant, op.up.quant);
    EXPECT_EQ(op.eps, kEps);
    const int rows = op.x.rows();
    const Block b(small_experts(op.router, op.gate.in, op.gate.out, 0, op.gate.quant), random);
    const Rows r(b, rows, random);
    const Doubles want = glu_reference(b, r);
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        const Floats y = run_moe(*m, b, r, all_rows(rows), nullptr).h;
        expect_close(m->name, y, want, m->glu_tolerance(1e-6, rows));
        bits.expect(*m, "", y);
        ++compared;
    }
    return compared;
}

int twin(const MoeDownAdd& op, Random& random) {
    using namespace moe_case;
    const int rows = op.x.rows(), shared = op.shared_down.data ? op.shared_down.in : 0;
    MoeShape shape = small_experts(op.router, op.down.out, op.down.in, shared, op.down.quant);
    shape.shared_down = op.shared_down.quant;
    shape.scalar = bool(op.shared_scalar);
    const Block b(shape, random);
    const Rows r(b, rows, random);
    const Floats h = random.normals(int64_t(rows) * shape.top_k * shape.inner);
    const Doubles want = down_reference(b, r, h);
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        const Floats y = run_moe(*m, b, r, all_rows(rows), &h).x;
        expect_close(m->name, y, want, m->tolerance(1e-6, rows));
        bits.expect(*m, "", y);
        ++compared;
    }
    return compared;
}

// Greedy rows of as many sequences, each by its cursor; and the logits they choose from.
int twin(const Output& op, Random& random) {
    const int rows = op.x.rows(), in = columns(op.head.in, 2), vocabulary = outputs(op.head.out) + 192;
    EXPECT_EQ(op.kind, OutputKind::select);
    const Floats x = random.normals(int64_t(rows) * in);
    const OwnedWeight norm = f32_weight(random.normals(in), 1, in);
    const OwnedWeight head = random_weight(random, op.head.quant, 1, vocabulary, in);
    const Doubles logits = product(rms_normed(x, decoded(norm), in, double(op.eps)), decoded(head), in);
    StepImage step;
    for (int t = 0; t < rows; ++t) {
        step.rows.push_back({-1, t, -1, {}, kRowFromCursor | kRowOutput, -1});
        step.outputs.push_back(t);
    }
    Slot slot{};
    slot.cursor.index = 3;
    slot.cursor.limit = 100;
    slot.sampling.top_p = slot.sampling.repeat_penalty = 1;
    slot.sampling.mask = -1;
    int compared = 0;
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        const SlotsView slots = m->slots(rows, 1, vocabulary, 1);
        for (int t = 0; t < rows; ++t) m->set_slot(slots, t, slot);
        Output small{m->step(), slots,   m->tensor(x, rows, in),     norm,
                     head,      op.eps,  OutputKind::logits,         0,
                     {},        nullptr, m->tensor(rows, vocabulary)};
        m->run(small, step);
        const Floats y = m->read(small.rows);
        expect_close(m->name, y, logits, m->tolerance(1e-6, rows));
        bits.expect(*m, "", y);
        small.kind = op.kind;
        small.rows = {};
        small.scratch = m->tensor(rows, vocabulary);
        small.results = m->bytes(rows * int64_t(sizeof(Selected)));
        m->run(small, step);
        std::vector<Selected> chosen(static_cast<size_t>(rows));
        m->read(chosen.data(), small.results, int64_t(chosen.size() * sizeof(Selected)));
        for (int t = 0; t < rows; ++t) {
            const Doubles row = slice(logits, int64_t(t) * vocabulary, vocabulary);
            const auto best = std::max_element(row.begin(), row.end());
            if (m->family() == "cpu int8")  // near the best: its errors are larger than some leads
                EXPECT_GE(row[size_t(chosen[size_t(t)].token)], *best * (1 - 8 * m->tolerance(0)))
                    << m->name << " row " << t;
            else
                EXPECT_EQ(chosen[size_t(t)].token, best - row.begin()) << m->name << " row " << t;
            EXPECT_EQ(m->slot(slots, t).cursor.index, 4) << m->name << " row " << t;
        }
        ++compared;
    }
    return compared;
}

class Twins : public testing::TestWithParam<OpCode> {};

// Risk: a combination of formats, heads and sizes that only a real model has, and that nothing else runs.
TEST_P(Twins, OfEveryInstruction) {
    struct Distinct {
        const Instr* instr;
        std::set<std::string> models;
    };
    std::map<std::string, Distinct> list;
    int occurrences = 0;
    for (const Recorded& r : recorded_models())
        for (const Tape& tape : r.tapes)
            for (const Instr& instr : tape.instrs()) {
                if (instr.code != GetParam()) continue;
                const std::string name = visit(instr, [&](const auto& op) {
                    return fmt::format("{} T {}: {}", op_name(instr.code), rows_of(op).rows(), describe(op));
                });
                list.try_emplace(name, Distinct{&instr, {}}).first->second.models.insert(r.facts->name);
                ++occurrences;
            }
    for (const auto& [name, distinct] : list) {
        SCOPED_TRACE(name);
        Random random(name);
        const int compared = visit(*distinct.instr, [&](const auto& op) { return twin(op, random); });
        EXPECT_EQ(compared, int(machines().size()));
        std::string models;
        for (const std::string& model : distinct.models) models += (models.empty() ? "" : ", ") + model;
        std::cout << "  " << name << "   <- " << models << "\n";
    }
    std::cout << fmt::format("  {}: {} in the tapes, {} twins\n", op_name(GetParam()), occurrences,
                             list.size());
    EXPECT_FALSE(list.empty()) << op_name(GetParam()) << " is in no tape";
}

std::vector<OpCode> op_codes() {
    return {
#define X(Type, name) OpCode::name,
        FOREACH_OP(X)
#undef X
    };
}
INSTANTIATE_TEST_SUITE_P(FromTapes, Twins, testing::ValuesIn(op_codes()),
                         [](const auto& info) { return std::string(op_name(info.param)); });

}  // namespace
}  // namespace sparkinfer::test
