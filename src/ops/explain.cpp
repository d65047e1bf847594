#include "ops/explain.h"

#include <algorithm>
#include <cmath>

#include "ops/state_layout.h"

namespace sparkinfer {

namespace {

double all_bytes(const Weight& w) { return w.data ? double(weight_bytes(w)) : 0; }

template <class Op>
double all_weight_bytes(const Op& op) {
    double bytes = 0;
    for_each_weight(op, [&](const Weight& w) { bytes += all_bytes(w); });
    return bytes;
}

double linear_flops(const Weight& w, double rows) { return w.data ? 2.0 * rows * w.out * w.in : 0; }

OpCost cost_of(const Embed& op, const StepSize& size) {
    OpCost cost;
    cost.weight_bytes = double(size.rows) * double(row_bytes(op.table));
    return cost;
}

OpCost cost_of(const NormLinear& op, const StepSize& size) {
    OpCost cost;
    cost.weight_bytes = all_weight_bytes(op);
    for (int i = 0; i < op.parts; ++i) cost.flops += linear_flops(op.w[i], size.rows);
    return cost;
}

OpCost cost_of(const LinearAdd& op, const StepSize& size) {
    OpCost cost;
    cost.weight_bytes = all_weight_bytes(op);
    cost.flops = linear_flops(op.w, size.rows);
    return cost;
}

OpCost cost_of(const LinearGlu& op, const StepSize& size) {
    OpCost cost;
    cost.weight_bytes = all_weight_bytes(op);
    cost.flops = linear_flops(op.gate, size.rows) + linear_flops(op.up, size.rows);
    return cost;
}

// Keys and values before the step are read once for all rows; those of the step are written. A score and its
// share of the sum are two multiply-adds a channel.
OpCost cost_of(const Attention& op, const StepSize& size) {
    OpCost cost;
    cost.weight_bytes = all_weight_bytes(op);
    const double token = 2.0 * op.kv.heads * op.kv.width * dtype_bytes(op.kv.dtype);
    cost.kv_bytes = token * (double(size.depth) + size.rows);
    const double pairs = double(size.rows) * double(size.depth) + 0.5 * size.rows * (size.rows + 1.0);
    cost.flops = 4.0 * op.heads * op.kv.width * pairs;
    return cost;
}

// S is read and written once; so are the convolution columns before the step and those it leaves behind. Per
// row and value head: decay, Sᵀk, k dᵀ and Sᵀq over [width, width].
OpCost cost_of(const GatedDelta& op, const StepSize& size) {
    const StateLayer& l = op.state;
    OpCost cost;
    cost.weight_bytes = all_weight_bytes(op);
    const double square = double(l.width) * l.width * l.value_heads;
    const double columns = double(l.taps - 1) + std::min<double>(size.rows, state_layout(l).columns);
    cost.state_bytes = 2.0 * dtype_bytes(l.dtype) * square + columns * l.channels * 4.0;
    cost.flops = double(size.rows) * (7.0 * square + 2.0 * l.taps * l.channels);
    return cost;
}

OpCost cost_of(const MoeGlu& op, const StepSize& size) {
    const double share = expected_experts(op.gate.experts, op.router.top_k, size.rows) / op.gate.experts;
    OpCost cost;
    cost.weight_bytes =
        all_bytes(op.norm) + all_bytes(op.router.bias) + share * (all_bytes(op.gate) + all_bytes(op.up));
    cost.flops = op.router.top_k * (linear_flops(op.gate, size.rows) + linear_flops(op.up, size.rows));
    return cost;
}

OpCost cost_of(const MoeDownAdd& op, const StepSize& size) {
    const double share = expected_experts(op.down.experts, op.router.top_k, size.rows) / op.down.experts;
    OpCost cost;
    cost.weight_bytes = all_bytes(op.router.bias) + share * all_bytes(op.down) + all_bytes(op.shared_down);
    cost.flops = op.router.top_k * linear_flops(op.down, size.rows) + linear_flops(op.shared_down, size.rows);
    return cost;
}

OpCost cost_of(const Output& op, const StepSize& size) {
    OpCost cost;
    cost.weight_bytes = all_bytes(op.norm);
    if (op.kind == OutputKind::hidden) return cost;
    cost.weight_bytes += all_bytes(op.head);
    cost.flops = linear_flops(op.head, size.outputs);
    return cost;
}

// "[1, 576]"
std::string shape_text(const Tensor& t) {
    std::string text = "[";
    for (int i = 0; i < t.rank; ++i) text += fmt::format("{}{}", i ? ", " : "", t.shape[i]);
    return text + "]";
}

// "[192, 576]", "[256, 512, 2048]"
std::string shape_text(const Weight& w) {
    return w.experts > 1 ? fmt::format("[{}, {}, {}]", w.experts, w.out, w.in)
                         : fmt::format("[{}, {}]", w.out, w.in);
}

std::string shapes_of(const Embed& op) { return shape_text(op.table) + " → " + shape_text(op.y); }
std::string shapes_of(const NormLinear& op) {
    std::string outs;
    for (int i = 0; i < op.parts; ++i) outs += fmt::format("{}{}", i ? "|" : "", op.w[i].out);
    return fmt::format("{} · [{}, {}]", shape_text(op.x), outs, op.w[0].in);
}
std::string shapes_of(const LinearAdd& op) { return shape_text(op.x) + " · " + shape_text(op.w); }
std::string shapes_of(const LinearGlu& op) {
    return fmt::format("{} · [{}|{}, {}]", shape_text(op.x), op.gate.out, op.up.out, op.gate.in);
}
std::string shapes_of(const Attention& op) {
    return fmt::format("{} H={} G={} d={}{}", shape_text(op.q), op.heads, op.kv.heads, op.kv.width,
                       op.gated ? " gated" : "");
}
std::string shapes_of(const GatedDelta& op) {
    return fmt::format("{} n_k={} n_v={} S=[{}, {}]", shape_text(op.qkv), op.state.key_heads,
                       op.state.value_heads, op.state.width, op.state.width);
}
std::string shapes_of(const MoeGlu& op) {
    return fmt::format("{} · {} of [{}, {}|{}, {}]", shape_text(op.x), op.router.top_k, op.gate.experts,
                       op.gate.out, op.up.out, op.gate.in);
}
std::string shapes_of(const MoeDownAdd& op) {
    std::string text = fmt::format("{} · {} of {}", shape_text(op.h), op.router.top_k, shape_text(op.down));
    if (op.shared_down.data) text += " + " + shape_text(op.shared_down);
    return text;
}
std::string shapes_of(const Output& op) { return shape_text(op.x) + " · " + shape_text(op.head); }

// The formats of the op's matrices, each once, in the order they are read.
template <class Op>
std::string quants_of(const Op& op) {
    std::vector<Quant> seen;
    const auto collect = [&](bool vectors) {
        for_each_weight(op, [&](const Weight& w) {
            const bool vector = w.out == 1 && w.experts == 1;
            if (vector == vectors && std::find(seen.begin(), seen.end(), w.quant) == seen.end())
                seen.push_back(w.quant);
        });
    };
    collect(false);
    if (seen.empty()) collect(true);
    std::string text;
    for (const Quant q : seen) text += fmt::format("{}{}", text.empty() ? "" : "+", quant_name(q));
    return text.empty() ? "-" : text;
}
// Attention moves its cache, so the cache's type is what says its bytes.
std::string quants_of(const Attention& op) { return fmt::format("KV {}", dtype_name(op.kv.dtype)); }

}  // namespace

OpCost& OpCost::operator+=(const OpCost& other) {
    weight_bytes += other.weight_bytes;
    kv_bytes += other.kv_bytes;
    state_bytes += other.state_bytes;
    flops += other.flops;
    return *this;
}

double expected_experts(int32_t experts, int32_t used, int32_t rows) {
    return experts * (1.0 - std::pow(1.0 - double(used) / experts, rows));
}

OpCost op_cost(const Instr& instr, const StepSize& size) {
    return visit(instr, [&](const auto& op) { return cost_of(op, size); });
}

OpCost tape_cost(const Tape& tape, const StepSize& size) {
    OpCost total;
    for (const Instr& instr : tape.instrs()) total += op_cost(instr, size);
    return total;
}

std::vector<ExplainRow> explain(const Tape& tape, const StepSize& size) {
    std::vector<ExplainRow> rows;
    for (const Instr& instr : tape.instrs())
        rows.push_back({int32_t(rows.size()), op_name(instr.code),
                        visit(instr, [](const auto& op) { return shapes_of(op); }),
                        visit(instr, [](const auto& op) { return quants_of(op); }), op_cost(instr, size)});
    return rows;
}

}  // namespace sparkinfer
