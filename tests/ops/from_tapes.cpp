// from_tapes.cpp — the tapes of real models: what they must hold and cost, and a scaled-down twin of every
// instruction in them against float64.
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
#include "model/model.h"
#include "moe_case.h"
#include "ops/explain.h"
#include "ops/state_layout.h"
#include "ops/validate.h"
#include "real_models.h"

namespace sparkinfer::test {
namespace {

constexpr int kRows[] = {1, 4};

// A model of facts alone and its tapes, one for each of kRows.
struct Recorded {
    const ModelFacts* facts;
    std::unique_ptr<Checkpoint> checkpoint;
    std::unique_ptr<Model> model;
    std::vector<Tape> tapes;
};

Tape record(const Model& model, int rows) {
    Batch batch;
    batch.rows = rows;
    batch.kv = model.shape().kv;
    batch.state = model.shape().state;
    for (KvLayer& layer : batch.kv) layer.dtype = DType::bf16;
    batch.output = OutputKind::select;
    batch.outputs = rows;
    Tape tape({}, {}, nullptr);
    model.forward(tape, batch);
    return tape;
}

const std::vector<Recorded>& recorded() {
    static const std::vector<Recorded> all = [] {
        std::vector<Recorded> list;
        for (const ModelFacts& facts : real_models()) {
            Recorded r{&facts, stated_checkpoint(facts), nullptr, {}};
            Result<std::unique_ptr<Model>> model = load_model(*r.checkpoint);
            CHECK(model.ok(), "{}", model.error().message);
            r.model = std::move(model).value();
            for (int rows : kRows) r.tapes.push_back(record(*r.model, rows));
            list.push_back(std::move(r));
        }
        return list;
    }();
    return all;
}

// Risk: the facts below are of no model that exists, and everything here tests something else.
TEST(FromTapes, FactsAreThoseOfPublishedFiles) {
    for (const Recorded& r : recorded()) {
        SCOPED_TRACE(r.facts->name);
        EXPECT_EQ(int64_t(r.checkpoint->tensors().size()), r.facts->tensors);
        EXPECT_TRUE(r.model->unused().empty());
        if (r.facts->parameters) {
            EXPECT_EQ(r.model->shape().parameters, r.facts->parameters);
        }
        double bytes = 0;
        for (const StoredTensor& t : r.checkpoint->tensors()) bytes += double(t.bytes);
        // A file holds its vocabulary too.
        if (const double file = double(r.facts->file_bytes)) {
            EXPECT_NEAR(bytes, file, 1e-3 * file);
        }
    }
}

// Risk: a forward pass that records more than it must, in an order or over memory that breaks the rules.
TEST(FromTapes, TapesAreValidAndShort) {
    for (const Recorded& r : recorded())
        for (const Tape& tape : r.tapes) {
            const Result<void> valid = validate(tape);
            EXPECT_TRUE(valid.ok()) << r.facts->name << ": " << valid.error().message;
            const size_t layer = r.facts->experts ? 6 : 5;
            EXPECT_EQ(tape.instrs().size(), 2 + layer * size_t(r.facts->layers)) << r.facts->name;
            EXPECT_EQ(tape.instrs().front().code, OpCode::embed);
            EXPECT_EQ(tape.instrs().back().code, OpCode::output);
        }
}

// Bytes of weights that a step of `rows` touches, from the files' table of tensors.
double touched_bytes(const Recorded& r, int rows) {
    const ModelFacts& f = *r.facts;
    double untouched = 1;  // share of the experts that no row picks
    for (int t = 0; t < rows; ++t) untouched *= 1 - double(f.used) / std::max(f.experts, 1);
    double bytes = 0;
    for (const StoredTensor& t : r.checkpoint->tensors()) {
        if (t.name == "token_embd.weight")
            bytes += double(t.bytes) * (f.tied + double(rows) / f.vocabulary);
        else
            bytes += double(t.bytes) * (t.name.find("_exps.") == std::string::npos ? 1 : 1 - untouched);
    }
    // Not in the table: each attention reads the rotary frequencies, an F32 for two dimensions, and a layer
    // of experts its norm twice.
    bytes += f.attention_layers() * f.rotary * 2.0;
    return bytes + (f.experts ? f.layers * f.dim * 4.0 : 0);
}

// Risk: speeds judged against a floor that forgets weights, counts idle experts or the wrong cache.
TEST(FromTapes, ExplainedBytesAreThoseOfTheFiles) {
    constexpr int64_t kDepth = 1000;
    for (const Recorded& r : recorded())
        for (size_t i = 0; i < std::size(kRows); ++i) {
            const ModelFacts& f = *r.facts;
            const int rows = kRows[i];
            OpCost total;
            for (const ExplainRow& row : explain(r.tapes[i], {rows, kDepth, rows})) total += row.cost;
            const double weights = touched_bytes(r, rows);
            EXPECT_NEAR(total.weight_bytes, weights, 1e-9 * weights) << f.name << ", rows " << rows;
            EXPECT_EQ(total.kv_bytes,
                      double(f.attention_layers()) * 2 * f.kv_heads * f.width * 2 * double(kDepth + rows))
                << f.name;
            // S there and back, three columns of the convolution before the rows and those of the rows.
            const double state = 2.0 * f.value_heads * 128 * 128 * 4 + (3.0 + rows) * f.channels() * 4;
            const int recurrent = f.layers - f.attention_layers();
            EXPECT_EQ(total.state_bytes, recurrent ? recurrent * state : 0) << f.name;
        }
}

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
    for (Machine* m : machines()) {
        m->reset();
        Embed small{m->step(), m->slots(1, 1), table, m->tensor(rows, in)};
        m->run(small, step);
        expect_close(m->name, m->read(small.y), want, 0);
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
    for (Machine* m : machines()) {
        m->reset();
        NormLinear small{m->tensor(x, rows, in), norm, op.eps, op.parts, {}, {}};
        for (int i = 0; i < op.parts; ++i) {
            small.w[i] = parts[size_t(i)];
            small.y[i] = m->tensor(rows, small.w[i].out);
        }
        m->run(small);
        for (int i = 0; i < op.parts; ++i)
            expect_close(fmt::format("{} part {}", m->name, i), m->read(small.y[i]), want[size_t(i)],
                         m->tolerance(1e-6));
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
    for (Machine* m : machines()) {
        m->reset();
        LinearAdd small{m->tensor(x, rows, in), w, m->tensor(y, rows, out)};
        m->run(small);
        expect_close(m->name, m->read(small.y), want, m->tolerance(1e-6));
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
    for (Machine* m : machines()) {
        m->reset();
        LinearGlu small{m->tensor(x, rows, in), norm, gate, up, op.eps, op.activation, m->tensor(rows, out)};
        m->run(small);
        expect_close(m->name, m->read(small.y), want, m->tolerance(1e-6));
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
            expect_close(m->name, run_rows(*m, p, cache, part_of(p, in, after)), want, m->tolerance(most));
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
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        rig.run({{0, kBefore, -1, 1}});
        expect_close(m->name, rig.run({{kBefore, rows, 1, 1}}),
                     slice(all, int64_t(kBefore) * s.values, int64_t(rows) * s.values), m->tolerance(2e-6));
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
    for (Machine* m : machines()) {
        m->reset();
        expect_close(m->name, run_moe(*m, b, r, all_rows(rows), nullptr).h, want, m->tolerance(1e-6));
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
    for (Machine* m : machines()) {
        m->reset();
        expect_close(m->name, run_moe(*m, b, r, all_rows(rows), &h).x, want, m->tolerance(1e-6));
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
    for (Machine* m : machines()) {
        m->reset();
        const SlotsView slots = m->slots(rows, 1, vocabulary, 1);
        for (int t = 0; t < rows; ++t) m->set_slot(slots, t, slot);
        Output small{m->step(), slots,   m->tensor(x, rows, in),     norm,
                     head,      op.eps,  OutputKind::logits,         0,
                     {},        nullptr, m->tensor(rows, vocabulary)};
        m->run(small, step);
        expect_close(m->name, m->read(small.rows), logits, m->tolerance(1e-6));
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
            EXPECT_EQ(chosen[size_t(t)].token, best - row.begin()) << m->name << " row " << t;
            EXPECT_EQ(m->slot(slots, t).cursor.index, 4) << m->name << " row " << t;
        }
        ++compared;
    }
    return compared;
}

// Risk: a combination of formats, heads and sizes that only a real model has, and that nothing else runs.
TEST(FromTapes, EveryInstructionHasATwin) {
    struct Distinct {
        const Instr* instr;
        std::set<std::string> models;
    };
    std::map<std::string, Distinct> list;
    std::map<std::string, std::pair<int, int>> ops;  // name -> {occurrences, twins compared everywhere}
#define X(Type, name) ops[#name];
    FOREACH_OP(X)
#undef X
    for (const Recorded& r : recorded())
        for (const Tape& tape : r.tapes)
            for (const Instr& instr : tape.instrs()) {
                const std::string name = visit(instr, [&](const auto& op) {
                    return fmt::format("{} T {}: {}", op_name(instr.code), rows_of(op).rows(), describe(op));
                });
                list.try_emplace(name, Distinct{&instr, {}}).first->second.models.insert(r.facts->name);
                ++ops[op_name(instr.code)].first;
            }
    for (const auto& [name, distinct] : list) {
        SCOPED_TRACE(name);
        Random random(name);
        const int compared = visit(*distinct.instr, [&](const auto& op) { return twin(op, random); });
        EXPECT_EQ(compared, int(machines().size()));
        ops[op_name(distinct.instr->code)].second += compared == int(machines().size());
        std::string models;
        for (const std::string& model : distinct.models) models += (models.empty() ? "" : ", ") + model;
        std::cout << "  " << name << "   <- " << models << "\n";
    }
    for (const auto& [op, counts] : ops) {
        std::cout << fmt::format("  {}: {} in the tapes, {} twins\n", op, counts.first, counts.second);
        EXPECT_TRUE(counts.first == 0 || counts.second > 0) << op << " has no twin";
    }
}

}  // namespace
}  // namespace sparkinfer::test
