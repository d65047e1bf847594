// explain.cpp — `sparkinfer explain`: the tape of one step as a table, with what memory bandwidth alone would
// cost.
#include "ops/explain.h"
#include "cli/commands.h"
#include "cli/gpu.h"
#include "cli/model_facts.h"
#include "ops/validate.h"

namespace sparkinfer {

namespace {

// A dry recording: nothing is allocated, nothing is run. KV as GPUs keep it, in BF16.
Tape dry_tape(const Model& model, int32_t rows) {
    Batch batch;
    batch.rows = rows;
    batch.kv = model.shape().kv;
    for (KvLayer& layer : batch.kv) layer.dtype = DType::bf16;
    batch.state = model.shape().state;
    batch.output = OutputKind::select;
    batch.outputs = 1;
    Tape tape({}, {}, nullptr);
    model.forward(tape, batch);
    return tape;
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

std::string table(const std::vector<ExplainRow>& rows, double bandwidth) {
    size_t op = 2, shapes = 6, quant = 5;
    for (const ExplainRow& row : rows) {
        op = std::max(op, columns(row.op));
        shapes = std::max(shapes, columns(row.shapes));
        quant = std::max(quant, columns(row.quant));
    }
    std::string text =
        fmt::format("{:>4}  {}  {}  {}  {:>14}  {:>12}  {:>9}\n", "pc", padded("op", op),
                    padded("shapes", shapes), padded("quant", quant), "bytes", "MFLOP", "floor µs");
    for (const ExplainRow& row : rows)
        text += fmt::format("{:>4}  {}  {}  {}  {:>14.0f}  {:>12.3f}  {:>8.2f}\n", row.pc, padded(row.op, op),
                            padded(row.shapes, shapes), padded(row.quant, quant), row.cost.bytes(),
                            row.cost.flops * 1e-6, row.cost.bytes() / bandwidth * 1e6);
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
    const Tape tape = dry_tape(*model, int32_t(o.rows));
    TRY_VOID(validate(tape));
    const StepSize size{int32_t(o.rows), o.depth, 1};
    const OpCost total = tape_cost(tape, size);
    std::string text = fmt::format("{}: {}, {} layers, {} instructions; {} row{} at depth {}, KV BF16\n",
                                   checkpoint->path(), shape.architecture, shape.layers, tape.instrs().size(),
                                   o.rows, o.rows == 1 ? "" : "s", o.depth);
    text += fmt::format("floor: bytes over bandwidth of {}\n\n", gpu->note);
    text += table(explain(tape, size), gpu->bytes_per_s);
    text += fmt::format(
        "\ntotal  {:.0f} bytes (weights {:.0f}, KV {:.0f}, state {:.0f}), {:.3f} GFLOP, arena {} bytes\n",
        total.bytes(), total.weight_bytes, total.kv_bytes, total.state_bytes, total.flops * 1e-9,
        tape.arena_bytes());
    text +=
        fmt::format("floor  {:.2f} µs a step, {:.1f} tok/s at most\n", total.bytes() / gpu->bytes_per_s * 1e6,
                    double(o.rows) * gpu->bytes_per_s / total.bytes());
    TRY_VOID(session.out.write(text));
    return 0;
}

}  // namespace sparkinfer
