// explain.cpp — `sparkinfer explain`: the tape of one step as a table, with what memory bandwidth alone would
// cost, the kernels that a backend makes of it, and what they take.
#include "ops/explain.h"

#include "cli/commands.h"
#include "cli/gpu.h"
#include "cli/machine.h"
#include "cli/model_facts.h"
#include "core/log.h"
#include "engine/solo.h"
#include "ops/validate.h"

namespace sparkinfer {

namespace {

constexpr int32_t kDepthChunk = 512;          // most tokens of the depth in one step
constexpr int kGpuSteps = 30, kCpuSteps = 5;  // measured; what is reported is their median

// A dry recording: nothing is allocated, nothing is run.
Tape dry_tape(const Model& model, int32_t rows, DType kv_type, DType state_type) {
    Batch batch;
    batch.rows = rows;
    batch.kv = model.shape().kv;
    for (KvLayer& layer : batch.kv) layer.dtype = kv_type;
    batch.state = model.shape().state;
    for (StateLayer& layer : batch.state) layer.dtype = state_type;
    batch.output = OutputKind::select;
    batch.outputs = 1;
    Tape tape({}, {}, nullptr);
    model.forward(tape, batch);
    return tape;
}

// Whose bandwidth makes the floor.
struct Floor {
    double bytes_per_s;
    std::string note;
};

// What is known beyond the tape.
struct Kernels {
    std::vector<LaunchInfo> launches;  // empty: no backend was asked for
    std::vector<std::string> notices;
    std::string title;            // "kernels on …"
    DType kv_type = DType::bf16;  // as GPUs keep it
    DType state_type = DType::f32;
    int32_t steps = 0;           // measured
    std::optional<Floor> floor;  // of the machine that was measured
};

// Feeds arbitrary tokens up to the depth, then runs the step again and again.
Result<std::vector<LaunchInfo>> measured_launches(const ExplainOptions& o, const Model& model,
                                                  const Checkpoint& checkpoint, Backend& backend, int steps) {
    const auto depth = int32_t(o.depth), rows = int32_t(o.rows);
    CheckpointBytes bytes(checkpoint);
    const SoloPlan plan{depth + rows, std::max(rows, std::min(depth, kDepthChunk))};
    TRY(const std::unique_ptr<Solo> solo, Solo::make(model, backend, bytes, plan));
    std::vector<TokenId> tokens(size_t(depth + rows));
    for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = TokenId(int32_t((i * 7919 + 13) % size_t(model.shape().vocab)));
    std::map<int32_t, Compiled> compiled;  // by rows
    const auto run = [&](int32_t first, int32_t count) -> Result<Compiled> {
        solo->image(std::span(tokens).subspan(size_t(first), size_t(count)));
        if (!compiled.contains(count)) {
            TRY(compiled[count], backend.compile(solo->record(count)));
        }
        TRY_VOID(solo->run(compiled[count]));
        return compiled[count];
    };
    while (solo->fed() < depth) {
        if (interrupted()) return std::vector<LaunchInfo>{};
        TRY([[maybe_unused]] const Compiled chunk,
            run(solo->fed(), std::min(plan.rows, depth - solo->fed())));
        solo->leave_step();
    }
    // A tape of its own, so that what was measured on the way here does not count.
    TRY(compiled[rows], backend.compile(solo->record(rows)));
    Compiled step;
    for (int i = 0; i < steps && !interrupted(); ++i) {
        TRY(step, run(depth, rows));
    }
    return backend.launches(step);
}

Result<Kernels> measure(const ExplainOptions& o, const Model& model, const Checkpoint& checkpoint,
                        Session& session) {
    const Deferred deferred;
    BackendChoice choice;
    choice.name = o.backend.value_or("auto");
    choice.threads = o.threads ? int(*o.threads) : usable_cores();
    choice.op_by_op = choice.measure = true;
    choice.stored = o.stored;
    TRY(const std::unique_ptr<Backend> backend, session.backends.make(choice));
    const BackendInfo& info = backend->info();
    Kernels k;
    k.kv_type = info.kv_type;
    k.state_type = info.state_type;
    k.steps = info.host_memory ? kCpuSteps : kGpuSteps;
    if (info.host_memory && !o.gpu) {
        const double bandwidth = read_bandwidth(choice.threads);
        k.floor = {bandwidth, fmt::format("this machine's memory, {:.1f} GB/s as measured with {} threads",
                                          bandwidth * 1e-9, choice.threads)};
    } else if (const GpuBandwidth* gpu = find_gpu_bandwidth(info.device); gpu && !o.gpu) {
        k.floor = {gpu->bytes_per_s, gpu->note};
    } else if (!o.gpu) {
        return usage_error(
            "the bandwidth of '{}' is not known: give --gpu, whose floor is to be compared with",
            info.device);
    }
    TRY(k.launches, measured_launches(o, model, checkpoint, *backend, k.steps));
    k.notices = info.notices;
    k.title = fmt::format("{} on {}, each kernel timed by itself, median of {} steps", info.name, info.device,
                          k.steps);
    return k;
}

// The launches of one instruction: "rms_norm + 3 generic", their number, their time.
struct OpKernels {
    std::string names;
    int32_t launches = 0;
    double us = 0;
};
std::vector<OpKernels> by_op(const std::vector<LaunchInfo>& launches, size_t ops) {
    std::vector<OpKernels> all(ops);
    std::vector<std::vector<std::pair<std::string, int>>> names(ops);
    for (const LaunchInfo& l : launches) {
        OpKernels& op = all[size_t(l.pc)];
        auto& known = names[size_t(l.pc)];
        ++op.launches;
        op.us += l.us;
        if (!known.empty() && known.back().first == l.variant)
            ++known.back().second;
        else
            known.emplace_back(l.variant, 1);
    }
    for (size_t pc = 0; pc < ops; ++pc)
        for (const auto& [name, count] : names[pc])
            all[pc].names += fmt::format("{}{}{}", all[pc].names.empty() ? "" : " + ",
                                         count > 1 ? fmt::format("{} ", count) : "", name);
    return all;
}

// Columns a text takes on a terminal; every character of ours is one wide.
size_t columns(const std::string& text) {
    size_t n = 0;
    for (const char c : text) n += (uint8_t(c) & 0xc0) != 0x80;
    return n;
}
std::string padded(const std::string& text, size_t width) {
    return text + std::string(width - std::min(width, columns(text)), ' ');
}

std::string table(const std::vector<ExplainRow>& rows, double bandwidth, const Kernels& kernels) {
    const std::vector<OpKernels> ops = by_op(kernels.launches, rows.size());
    const bool show = !kernels.launches.empty(), timed = kernels.steps > 0;
    size_t op = 2, shapes = 6, quant = 5, names = 7;
    for (const ExplainRow& row : rows) {
        op = std::max(op, columns(row.op));
        shapes = std::max(shapes, columns(row.shapes));
        quant = std::max(quant, columns(row.quant));
        names = std::max(names, columns(ops[size_t(row.pc)].names));
    }
    std::string text =
        fmt::format("{:>4}  {}  {}  {}  {:>14}  {:>12}  {:>9}", "pc", padded("op", op),
                    padded("shapes", shapes), padded("quant", quant), "bytes", "MFLOP", "floor µs");
    if (show) text += fmt::format("  {}  {:>8}", padded("kernels", names), "launches");
    if (timed) text += fmt::format("  {:>9}  {:>7}", "µs", "% floor");
    text += "\n";
    for (const ExplainRow& row : rows) {
        const OpKernels& k = ops[size_t(row.pc)];
        const double floor = row.cost.bytes() / bandwidth * 1e6;
        text += fmt::format("{:>4}  {}  {}  {}  {:>14.0f}  {:>12.3f}  {:>8.2f}", row.pc, padded(row.op, op),
                            padded(row.shapes, shapes), padded(row.quant, quant), row.cost.bytes(),
                            row.cost.flops * 1e-6, floor);
        if (show) text += fmt::format("  {}  {:>8}", padded(k.names, names), k.launches);
        if (timed) text += fmt::format("  {:>8.2f}  {:>7.1f}", k.us, k.us > 0 ? 100 * floor / k.us : 0);
        text += "\n";
    }
    return text;
}

// The sums under the table.
std::string totals(const ExplainOptions& o, const Tape& tape, const OpCost& total, double bandwidth,
                   const Kernels& kernels) {
    const double floor = total.bytes() / bandwidth * 1e6;
    std::string text = fmt::format(
        "\ntotal  {:.0f} bytes (weights {:.0f}, KV {:.0f}, state {:.0f}), {:.3f} GFLOP, arena {} bytes\n",
        total.bytes(), total.weight_bytes, total.kv_bytes, total.state_bytes, total.flops * 1e-9,
        tape.arena_bytes());
    text +=
        fmt::format("floor  {:.2f} µs a step, {:.1f} tok/s at most\n", floor, double(o.rows) * 1e6 / floor);
    if (kernels.launches.empty()) return text;
    text += fmt::format("kernels  {} launches a step\n", kernels.launches.size());
    double us = 0;
    for (const LaunchInfo& l : kernels.launches) us += l.us;
    if (kernels.steps > 0)
        text +=
            fmt::format("measured  {:.2f} µs a step, the sum of all kernels: {:.1f} % of the floor's speed\n",
                        us, 100 * floor / us);
    for (const std::string& notice : kernels.notices) text += fmt::format("notice  {}\n", notice);
    return text;
}

}  // namespace

Result<int> run_command(const ExplainOptions& o, Session& session) {
    const GpuBandwidth* gpu = &gpu_bandwidths().front();
    for (const GpuBandwidth& known : gpu_bandwidths())
        if (o.gpu == known.key) gpu = &known;
    TRY(const std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(o.model));
    TRY(const std::unique_ptr<Model> model, load_model(*checkpoint));
    const ModelShape& shape = model->shape();
    if (o.rows + o.depth > shape.context)
        return usage_error("--rows {} at --depth {} is beyond the model's context of {}", o.rows, o.depth,
                           shape.context);
    Kernels kernels;
    kernels.kv_type = o.stored.kv.value_or(kernels.kv_type);
    kernels.state_type = o.stored.state.value_or(kernels.state_type);
    Tape tape = dry_tape(*model, int32_t(o.rows), kernels.kv_type, kernels.state_type);
    TRY_VOID(validate(tape));
    if (o.measured) {
        TRY(kernels, measure(o, *model, *checkpoint, session));
        if (interrupted()) return kExitInterrupted;
        tape = dry_tape(*model, int32_t(o.rows), kernels.kv_type, kernels.state_type);
    } else if (o.backend) {
        TRY(Lowered lowered, session.backends.lower({.name = *o.backend}, gpu->key, tape));
        kernels.launches = std::move(lowered.launches);
        kernels.notices = std::move(lowered.notices);
        kernels.title = *o.backend;
        if (*o.backend == "cuda")
            kernels.title += fmt::format(
                " on {}, told from formats and shapes: no GPU was asked, no weight was read", gpu->name);
    }
    const StepSize size{int32_t(o.rows), o.depth, 1};
    const OpCost total = tape_cost(tape, size);
    const Floor floor = kernels.floor.value_or(Floor{gpu->bytes_per_s, gpu->note});
    std::string text =
        fmt::format("{}: {}, {} layers, {} instructions; {} row{} at depth {}, KV {}{}\n", checkpoint->path(),
                    shape.architecture, shape.layers, tape.instrs().size(), o.rows, o.rows == 1 ? "" : "s",
                    o.depth, dtype_name(kernels.kv_type),
                    shape.state.empty() ? "" : fmt::format(", state {}", dtype_name(kernels.state_type)));
    text += fmt::format("floor: bytes over bandwidth of {}\n", floor.note);
    if (!kernels.title.empty()) text += fmt::format("kernels: {}\n", kernels.title);
    text += '\n';
    text += table(explain(tape, size), floor.bytes_per_s, kernels);
    text += totals(o, tape, total, floor.bytes_per_s, kernels);
    TRY_VOID(session.out.write(text));
    return 0;
}

}  // namespace sparkinfer
