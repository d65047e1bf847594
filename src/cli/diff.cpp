// diff.cpp — `sparkinfer diff`: a prompt and a few tokens on two backends, op by op, up to the first op whose
// outputs differ. Exit code 1 when they do.
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/model_facts.h"
#include "core/log.h"
#include "engine/lockstep.h"
#include "text/tokenizer.h"

namespace sparkinfer {

namespace {

constexpr int kExitDifferent = 1;

bool is_cuda(const std::string& name) { return name != "cpu"; }
bool is_graph(const std::string& name) { return name == "cuda:graph"; }

BackendChoice choice_of(const DiffOptions& o, int side) {
    const std::string& name = o.backend[side];
    const bool both_cuda = is_cuda(o.backend[0]) && is_cuda(o.backend[1]);
    BackendChoice choice;
    choice.name = is_cuda(name) ? "cuda" : "cpu";
    choice.threads = o.threads ? int(*o.threads) : usable_cores();
    choice.op_by_op = !is_graph(name);
    choice.stored = o.stored;
    if (!o.stored.activations && !is_cuda(name)) choice.stored.activations = Activations::f32;
    if (!o.stored.kv) choice.stored.kv = both_cuda ? DType::bf16 : DType::f32;
    return choice;
}

LockstepOptions lockstep_options(const DiffOptions& o) {
    LockstepOptions options;
    options.synced = is_cuda(o.backend[0]) != is_cuda(o.backend[1]);
    for (int side = 0; side < 2; ++side)
        options.prefixes[side] = !options.synced && is_graph(o.backend[side]);
    options.tolerance = o.tolerance.value_or(options.synced ? options.tolerance : 0);
    options.chunk = int32_t(o.chunk);
    options.decode = int32_t(o.decode);
    return options;
}

std::string shape_text(const std::vector<int32_t>& shape) {
    std::string text = "[";
    for (const int32_t n : shape) text += fmt::format("{}{}", text.size() > 1 ? ", " : "", n);
    return text + "]";
}

// "step 1, rows 64 … 69, pc 3 linear_glu, y [6, 40]"
std::string place_text(const Difference& d) {
    return fmt::format("step {}, tokens {} … {}, pc {} {}, {} {}", d.step, d.first, d.first + d.rows - 1,
                       d.pc, d.op, d.output, shape_text(d.shape));
}

std::string report_text(const DiffOptions& o, const LockstepReport& report) {
    std::string text;
    if (!report.largest.empty())
        text += fmt::format("{:<14}  {:>12}  {}\n", "op", "relative L2", "largest at");
    for (const auto& [op, d] : report.largest)
        text += d.relative_l2 == 0 ? fmt::format("{:<14}  {:>12}\n", op, "equal")
                                   : fmt::format("{:<14}  {:>12.2e}  {}\n", op, d.relative_l2, place_text(d));
    if (!report.difference)
        return text + fmt::format("no difference: {} steps, {} ops compared\n", report.steps, report.ops);
    const Difference& d = *report.difference;
    return text +
           fmt::format(
               "different: {}\n  worst at [{}, {}]: {} {:.9g}, {} {:.9g}; relative L2 of its row {:.3e}\n",
               place_text(d), d.row, d.column, o.backend[0], d.value[0], o.backend[1], d.value[1],
               d.relative_l2);
}

std::string head_text(const DiffOptions& o, const LockstepOptions& options, size_t tokens) {
    const char* how = options.synced ? "each op starts from the first backend's values"
                                     : "each backend goes on from its own values";
    return fmt::format(
        "{} against {}: {} prompt tokens, {} a step, then {} steps of one token; {}, tolerance {}\n",
        o.backend[1], o.backend[0], tokens, options.chunk, options.decode, how, options.tolerance);
}

}  // namespace

Result<int> run_command(const DiffOptions& o, Session& session) {
    TRY(const std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(o.model));
    TRY(const std::unique_ptr<Model> model, load_model(*checkpoint));
    TRY(const Tokenizer tokenizer, Tokenizer::from_metadata(checkpoint->metadata()));
    TRY(const std::string text, read_text(o.prompt, "the prompt"));
    TRY(const std::vector<TokenId> prompt, tokenizer.encode(text, Tokenizer::Specials::parse));
    if (prompt.empty()) return bad_input("the prompt has no tokens, expected at least one");
    const int64_t context = int64_t(prompt.size()) + o.decode;
    if (context > model->shape().context)
        return bad_input("{} prompt tokens and {} more are beyond the model's context of {}", prompt.size(),
                         o.decode, model->shape().context);
    const LockstepOptions options = lockstep_options(o);
    const SoloPlan plan{int32_t(context), std::min(options.chunk, int32_t(context))};
    CheckpointBytes bytes(*checkpoint);
    std::unique_ptr<Backend> backends[2];
    std::unique_ptr<Solo> sides[2];
    for (int side = 0; side < 2; ++side) {
        TRY(backends[side], session.backends.make(choice_of(o, side)));
        TRY(sides[side], Solo::make(*model, *backends[side], bytes, plan));
        for (const std::string& notice : backends[side]->info().notices) log_line(LogLevel::info, notice);
    }
    TRY_VOID(session.out.write(head_text(o, options, prompt.size())));
    TRY(const LockstepReport report, run_lockstep(*sides[0], *sides[1], prompt, options));
    TRY_VOID(session.out.write(report_text(o, report)));
    return report.difference ? kExitDifferent : 0;
}

}  // namespace sparkinfer
