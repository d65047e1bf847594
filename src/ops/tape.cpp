#include "ops/tape.h"

#include <algorithm>

namespace sparkinfer {

void Shapes::bind(const char* name, int64_t size) {
    for (auto& [bound, known] : bound_) {
        if (bound != name) continue;
        CHECK(known == size, "{}: {} is {} here and {} before", op_, name, size, known);
        return;
    }
    bound_.emplace_back(name, size);
}

void Shapes::expect(const Tensor& t, std::initializer_list<const char*> dims) {
    CHECK(t.rank == dims.size(), "{}: a tensor has {} dimensions, expected {}", op_, t.rank, dims.size());
    int i = 0;
    for (const char* name : dims) bind(name, t.shape[i++]);
}

void Shapes::expect(const Weight& w, std::initializer_list<const char*> dims) {
    CHECK(w.data != nullptr, "{}: a weight is missing", op_);
    auto name = dims.begin();
    if (dims.size() == 3)
        bind(*name++, w.experts);
    else
        CHECK(w.experts == 1, "{}: a weight has {} experts, expected a plain matrix", op_, w.experts);
    bind(*name++, w.out);
    bind(*name, w.in);
}

Tensor Tape::temporary(std::initializer_list<int32_t> shape) {
    Tensor t;
    t.rank = uint8_t(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    for (int i = t.rank; i < 3; ++i) t.shape[i] = 1;
    t.stride = t.cols();
    // A null arena still hands out distinct addresses, so that `validate` can tell tensors apart.
    t.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(arena_) + uintptr_t(used_));
    used_ += (t.elements() * 4 + 255) / 256 * 256;
    peak_ = std::max(peak_, used_);
    return t;
}

Tensor Tape::embed(const Weight& table, int32_t rows) {
    CHECK(rows > 0, "embed: {} rows", rows);
    Tensor y = temporary({rows, table.in});
    add(Embed{step_, slots_, table, y});
    return y;
}

std::vector<Tensor> Tape::norm_linear(const Tensor& x, const Weight& norm, float eps,
                                      std::span<const Weight> parts) {
    CHECK(!parts.empty() && parts.size() <= kMaxParts, "norm_linear: {} parts", parts.size());
    Shapes s("norm_linear");
    s.expect(x, {"T", "D"});
    s.expect(norm, {"one", "D"});
    s.bind("one", 1);
    NormLinear op{x, norm, eps, int32_t(parts.size()), {}, {}};
    for (size_t i = 0; i < parts.size(); ++i) {
        s.bind("D", parts[i].in);
        op.w[i] = parts[i];
        op.y[i] = temporary({x.shape[0], parts[i].out});
    }
    add(op);
    return {op.y, op.y + parts.size()};
}

void Tape::linear_add(const Tensor& x, const Weight& w, const Tensor& y) {
    Shapes s("linear_add");
    s.expect(x, {"T", "in"});
    s.expect(w, {"out", "in"});
    s.expect(y, {"T", "out"});
    add(LinearAdd{x, w, y});
}

Tensor Tape::linear_glu(const Tensor& x, const Weight& norm, float eps, const Weight& gate,
                        const Weight& up) {
    Shapes s("linear_glu");
    s.expect(x, {"T", "D"});
    s.expect(norm, {"one", "D"});
    s.expect(gate, {"F", "D"});
    s.expect(up, {"F", "D"});
    Tensor y = temporary({x.shape[0], gate.out});
    add(LinearGlu{x, norm, gate, up, eps, Activation::silu, y});
    return y;
}

Tensor Tape::attention(Attention op) {
    Shapes s("attention");
    const int32_t d = op.kv.width;
    CHECK(op.heads > 0 && op.kv.heads > 0 && op.heads % op.kv.heads == 0,
          "attention: {} query heads over {} heads", op.heads, op.kv.heads);
    CHECK(op.rope.dims % 2 == 0 && op.rope.dims <= d && op.rope.frequency.in == op.rope.dims / 2,
          "attention: {} rotary dimensions of {} with {} frequencies", op.rope.dims, d, op.rope.frequency.in);
    s.bind("Hq", int64_t(op.heads) * d * (op.gated ? 2 : 1));
    s.bind("Gd", int64_t(op.kv.heads) * d);
    s.expect(op.q, {"T", "Hq"});
    s.expect(op.k, {"T", "Gd"});
    s.expect(op.v, {"T", "Gd"});
    s.bind("d", d);
    if (op.q_norm.data) s.expect(op.q_norm, {"one", "d"});
    if (op.k_norm.data) s.expect(op.k_norm, {"one", "d"});
    op.step = step_;
    op.slots = slots_;
    op.y = temporary({op.q.shape[0], op.heads * d});
    add(op);
    return op.y;
}

Tensor Tape::gated_delta(GatedDelta op) {
    Shapes s("gated_delta");
    const StateLayer& l = op.state;
    CHECK(l.key_heads > 0 && l.value_heads % l.key_heads == 0,
          "gated_delta: {} value heads over {} key heads", l.value_heads, l.key_heads);
    s.bind("channels", (2 * int64_t(l.key_heads) + l.value_heads) * l.width);
    s.bind("channels", l.channels);
    s.bind("values", int64_t(l.value_heads) * l.width);
    s.bind("heads", l.value_heads);
    s.expect(op.qkv, {"T", "channels"});
    s.expect(op.z, {"T", "values"});
    s.expect(op.beta, {"T", "heads"});
    s.expect(op.alpha, {"T", "heads"});
    s.bind("taps", l.taps);
    s.expect(op.conv, {"channels", "taps"});
    s.expect(op.decay, {"one", "heads"});
    s.expect(op.dt_bias, {"one", "heads"});
    s.bind("width", l.width);
    s.expect(op.norm, {"one", "width"});
    op.step = step_;
    op.slots = slots_;
    op.y = temporary({op.qkv.shape[0], l.value_heads * l.width});
    add(op);
    return op.y;
}

Tensor Tape::moe_glu(const Tensor& x, const Weight& norm, float eps, const Tensor& logits,
                     const Router& router, const Weight& gate, const Weight& up) {
    Shapes s("moe_glu");
    s.expect(x, {"T", "D"});
    s.expect(norm, {"one", "D"});
    s.expect(logits, {"T", "E"});
    s.expect(gate, {"E", "F", "D"});
    s.expect(up, {"E", "F", "D"});
    CHECK(router.top_k > 0 && router.top_k <= gate.experts, "moe_glu: {} of {} experts", router.top_k,
          gate.experts);
    Tensor y = temporary({x.shape[0], router.top_k, gate.out});
    add(MoeGlu{step_, slots_, x, norm, logits, router, gate, up, eps, Activation::silu, y});
    return y;
}

void Tape::moe_down_add(const Tensor& h, const Tensor& logits, const Router& router, const Weight& down,
                        const SharedExpert& shared, const Tensor& x) {
    Shapes s("moe_down_add");
    s.expect(h, {"T", "K", "F"});
    s.bind("K", router.top_k);
    s.expect(logits, {"T", "E"});
    s.expect(down, {"E", "D", "F"});
    s.expect(x, {"T", "D"});
    if (shared.down.data) {
        s.expect(shared.gate, {"T", "Fs"});
        s.expect(shared.up, {"T", "Fs"});
        s.expect(shared.down, {"D", "Fs"});
        if (shared.scalar) s.expect(shared.scalar, {"T", "one"});
    }
    add(MoeDownAdd{step_, slots_, h, logits, router, down, shared.gate, shared.up, shared.scalar, shared.down,
                   Activation::silu, x});
}

void Tape::output(const Tensor& x, const Weight& norm, float eps, const Weight& head, const Batch& batch) {
    if (batch.output == OutputKind::none) return;
    Shapes s("output");
    s.expect(x, {"T", "D"});
    s.expect(norm, {"one", "D"});
    s.expect(head, {"V", "D"});
    CHECK(batch.outputs > 0 && batch.outputs <= x.shape[0], "output: {} of {} rows", batch.outputs,
          x.shape[0]);
    Output op{step_, slots_, x, norm, head, eps, batch.output, batch.top, {}, batch.results, {}};
    if (batch.output == OutputKind::select || batch.output == OutputKind::logprobs)
        op.scratch = temporary({std::min(batch.outputs, 64), head.out});
    else
        op.rows = {batch.rows_out,
                   batch.output == OutputKind::logits ? head.out : x.shape[1],
                   {batch.outputs, batch.output == OutputKind::logits ? head.out : x.shape[1], 1},
                   2,
                   DType::f32};
    add(op);
}

}  // namespace sparkinfer
