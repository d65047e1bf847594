#include "engine/lockstep.h"

#include <cmath>
#include <functional>

#include "engine/test_backend.h"
#include "engine/test_model.h"
#include "ops/state_layout.h"

namespace sparkinfer {
namespace {

struct HostBytes : ByteSource {
    Result<void> read(const void* view, std::span<std::byte> to) override {
        std::copy_n(static_cast<const std::byte*>(view), to.size(), to.data());
        return {};
    }
};

// An op by its kind and its weights: what tells it from the others also in a tape of its own.
using Signature = std::pair<OpCode, std::vector<const void*>>;
Signature signature(const Instr& instr) {
    Signature s{instr.code, {}};
    visit(instr,
          [&](const auto& op) { for_each_weight(op, [&](const Weight& w) { s.second.push_back(w.data); }); });
    return s;
}

// The CPU, with one op computed wrongly: its weights are off by `error` of themselves, or become NaN.
class FaultyBackend final : public OverCpu {
  public:
    FaultyBackend(Signature wrong, float error) : wrong_(std::move(wrong)), error_(error) {}
    Result<Compiled> compile(const Tape& tape) override {
        Tape copy = tape;
        for (Instr& i : copy.instrs())
            if (signature(i) == wrong_) spoil(i);
        return cpu_->compile(copy);
    }

  private:
    void spoil(Instr& instr) {
        visit(instr, [&](auto& op) {
            for_each_weight(op, [&](Weight& w) {
                const auto* from = static_cast<const float*>(w.data);
                auto values = std::make_unique<std::vector<float>>(from, from + weight_bytes(w) / 4);
                for (float& v : *values) v *= 1 + error_;
                w.data = values->data();
                owned_.push_back(std::move(values));
            });
        });
    }
    Signature wrong_;
    float error_;
    std::vector<std::unique_ptr<std::vector<float>>> owned_;
};

constexpr SoloPlan kPlan{.context = 128, .rows = 64};

// The prompt goes over a page's border, in two chunks.
LockstepReport compare_backends(const Model& model, Backend& a, Backend& b, const LockstepOptions& options) {
    HostBytes bytes;
    const auto left = Solo::make(model, a, bytes, kPlan).value();
    const auto right = Solo::make(model, b, bytes, kPlan).value();
    return run_lockstep(*left, *right, random_tokens(70, 3), options).value();
}

std::vector<Instr> ops_of(const Model& model) {
    HostBytes bytes;
    const auto backend = make_cpu_backend({.threads = 1}).value();
    return Solo::make(model, *backend, bytes, kPlan).value()->record(1).instrs();
}

struct Way {
    const char* name;
    LockstepOptions options;
};
const Way kWays[] = {
    {"synced", {.synced = true}},
    {"bits", {.synced = false, .tolerance = 0}},
    {"bits, prefixes", {.synced = false, .prefixes = {false, true}, .tolerance = 0}},
};

// Risk: a comparison that finds differences where there are none, or that compares nothing.
TEST(Lockstep, ABackendEqualsItself) {
    for (const TinyKind kind : {TinyKind::attention, TinyKind::hybrid})
        for (const Way& way : kWays) {
            const TinyModel model(kind);
            const auto a = make_cpu_backend({.threads = 1}).value(),
                       b = make_cpu_backend({.threads = 2}).value();
            const LockstepReport report = compare_backends(model, *a, *b, way.options);
            EXPECT_FALSE(report.difference) << way.name << ": " << report.difference->op;
            EXPECT_EQ(report.steps, 2 + way.options.decode);
            EXPECT_EQ(report.ops, report.steps * int64_t(ops_of(model).size()));
            for (const auto& [op, largest] : report.largest) EXPECT_EQ(largest.relative_l2, 0) << op;
        }
}

// Risk: a wrong op that is not found, or for which another one is blamed.
TEST(Lockstep, NamesTheOpThatIsWrong) {
    for (const TinyKind kind : {TinyKind::attention, TinyKind::hybrid}) {
        const TinyModel model(kind);
        std::vector<Signature> seen;
        for (const Instr& instr : ops_of(model)) {
            const Signature wrong = signature(instr);
            const auto pc = int32_t(seen.size());
            const bool first = std::find(seen.begin(), seen.end(), wrong) == seen.end();
            seen.push_back(wrong);
            if (!first) continue;  // ops of the same weights are wrong together: the first is named
            for (const Way& way : kWays)
                for (const float error : {0.02f, NAN}) {
                    const auto good = make_cpu_backend({.threads = 1}).value();
                    FaultyBackend bad(wrong, error);
                    const LockstepReport report = compare_backends(model, *good, bad, way.options);
                    ASSERT_TRUE(report.difference) << way.name << ", " << op_name(instr.code) << " " << error;
                    const Difference& d = *report.difference;
                    EXPECT_EQ(d.pc, pc) << way.name << ", " << d.op << ": " << d.output;
                    EXPECT_EQ(d.op, op_name(instr.code));
                    EXPECT_EQ(d.step, 0) << way.name << ", " << d.op;
                    EXPECT_EQ(report.ops, pc + 1);
                    EXPECT_GT(d.relative_l2, way.options.tolerance);
                    EXPECT_NE(d.value[0], d.value[1]);  // of one NaN too
                }
        }
    }
}

// The CPU, whose memory is changed behind its back after a tape whose last op is of one kind, in the step
// that begins at token 64.
class MeddlingBackend final : public OverCpu {
  public:
    using Meddle = std::function<void(const Instr& last, StepView step)>;
    MeddlingBackend(OpCode code, Meddle meddle) : code_(code), meddle_(std::move(meddle)) {}
    Result<Compiled> compile(const Tape& tape) override {
        tapes_.push_back(tape);
        return cpu_->compile(tape);
    }
    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override {
        TRY(const Ticket ticket, cpu_->execute(compiled, step));
        const Tape& tape = tapes_[size_t(compiled.id)];
        const Instr& last = tape.instrs().back();
        if (tape.step().rows()[0].index == 64 && last.code == code_) meddle_(last, tape.step());
        return ticket;
    }

  private:
    OpCode code_;
    Meddle meddle_;
    std::vector<Tape> tapes_;
};

struct Meddling {
    OpCode code;
    const char* output;
    std::vector<int32_t> shape;
    int32_t row, column;
    MeddlingBackend::Meddle meddle;
};

// One element of every kind of output. The step has 6 rows, tokens 64 … 69.
std::vector<Meddling> tensor_meddlings() {
    constexpr int32_t kHead = TinyModel::kHead;
    return {
        {OpCode::embed,
         "y",
         {6, TinyModel::kDim},
         5,
         23,
         [](const Instr& i, StepView) { i.embed.y.row(5)[23] += 9; }},
        {OpCode::embed,
         "history",
         {1, 6},
         0,
         2,
         [](const Instr& i, StepView) { i.embed.slots.history(0)[66] += 1; }},
        {OpCode::linear_add,
         "y",
         {6, TinyModel::kDim},
         4,
         17,
         [](const Instr& i, StepView) { i.linear_add.y.row(4)[17] += 0.25f; }},
        {OpCode::attention,
         "y",
         {6, TinyModel::kHeads * kHead},
         0,
         3,
         [](const Instr& i, StepView) { i.attention.y.row(0)[3] = NAN; }},
        {OpCode::attention,
         "keys and values of page 1",
         {2 * kPageTokens, kHead},
         kPageTokens + 5,
         7,
         [](const Instr& i, StepView) {  // the value of token 64 + 5
             auto* page = reinterpret_cast<float*>(i.attention.kv.pages + i.attention.kv.page_bytes);
             page[(kPageTokens + 5) * kHead + 7] += 1;
         }},
    };
}

// The second state is read, the first written.
std::vector<Meddling> state_meddlings() {
    constexpr int32_t kSquare = TinyModel::kWidth * TinyModel::kWidth;
    const auto state_of = [](const Instr& i) { return i.gated_delta.state.states; };
    return {
        {OpCode::gated_delta,
         "state header",
         {TinyModel::kValueHeads, 2},
         1,
         0,
         [=](const Instr& i, StepView) { reinterpret_cast<StateHeader*>(state_of(i))[1].position += 1; }},
        {OpCode::gated_delta,
         "S",
         {TinyModel::kValueHeads, kSquare},
         1,
         77,
         [=](const Instr& i, StepView) {
             const int64_t at = state_layout(i.gated_delta.state).s_at;
             reinterpret_cast<float*>(state_of(i) + at)[kSquare + 77] += 5;
         }},
        {OpCode::gated_delta,
         "convolution input 2 back",
         {1, TinyModel::kChannels},
         0,
         9,
         [=](const Instr& i, StepView) {
             const StateLayout at = state_layout(i.gated_delta.state);
             const int64_t column = 68 % at.columns;
             reinterpret_cast<float*>(state_of(i) + at.ring_at)[column * TinyModel::kChannels + 9] += 1;
         }},
    };
}

std::vector<Meddling> output_meddlings() {
    return {
        {OpCode::output,
         "logits",
         {1, TinyModel::kVocab},
         0,
         96,
         [](const Instr& i, StepView) { i.output.scratch.row(0)[96] += 1; }},
        {OpCode::output,
         "log-probability",
         {1, 1},
         0,
         0,
         [](const Instr& i, StepView) { static_cast<Selected*>(i.output.results)->logprob -= 0.5f; }},
        {OpCode::output,
         "token",
         {1, 1},
         0,
         0,
         [](const Instr& i, StepView) {
             int32_t& token = static_cast<Selected*>(i.output.results)->token;
             token = (token + 1) % TinyModel::kVocab;
         }},
        {OpCode::output,
         "cursor",
         {1, 7},
         0,
         2,
         [](const Instr& i, StepView) { i.output.slots.slot(0).cursor.generated += 1; }},
    };
}

// Risk: an output that is not looked at; a place that is misnamed.
TEST(Lockstep, NamesStepOutputRowAndColumn) {
    const TinyModel model(TinyKind::hybrid);
    std::vector<Meddling> all = tensor_meddlings();
    for (const auto& more : {state_meddlings(), output_meddlings()})
        all.insert(all.end(), more.begin(), more.end());
    for (const Meddling& m : all)
        for (const Way& way : kWays) {
            const auto good = make_cpu_backend({.threads = 1}).value();
            MeddlingBackend bad(m.code, m.meddle);
            const LockstepReport report = compare_backends(model, *good, bad, way.options);
            ASSERT_TRUE(report.difference) << way.name << ", " << op_name(m.code) << " " << m.output;
            const Difference& d = *report.difference;
            EXPECT_EQ(d.op, op_name(m.code)) << m.output;
            EXPECT_EQ(d.output, m.output);
            EXPECT_EQ(std::tuple(d.step, d.first, d.rows), std::tuple(1, 64, 6)) << m.output;
            EXPECT_EQ(d.shape, m.shape) << m.output;
            EXPECT_EQ(std::tuple(d.row, d.column), std::tuple(m.row, m.column)) << m.output;
            EXPECT_NE(d.value[0], d.value[1]) << m.output;
        }
}

// Risk: a difference below the tolerance ends the comparison, or is not reported as the largest seen.
TEST(Lockstep, ToleratesWhatItIsToldTo) {
    const TinyModel model(TinyKind::attention);
    const auto good = make_cpu_backend({.threads = 1}).value();
    const std::vector<Instr> ops = ops_of(model);
    for (const Instr& instr : ops) {
        if (instr.code != OpCode::linear_glu) continue;
        FaultyBackend bad(signature(instr), 1e-5f);
        const LockstepReport report = compare_backends(model, *good, bad, {.tolerance = 1e-3});
        ASSERT_FALSE(report.difference) << report.difference->op;
        for (const auto& [op, largest] : report.largest) {
            if (op == "linear_glu")
                EXPECT_NEAR(largest.relative_l2, 4e-5, 2e-5);  // the norm's, the gate's, the up's
            else
                EXPECT_EQ(largest.relative_l2, 0) << op << ": the error has spread";
        }
    }
}

}  // namespace
}  // namespace sparkinfer
