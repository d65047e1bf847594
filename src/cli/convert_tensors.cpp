#include "cli/convert_tensors.h"

#include <cmath>
#include <cstring>

#include "core/check.h"
#include "quant/decode.h"
#include "quant/encode.h"

namespace sparkinfer {

namespace {

constexpr int kHead = 128;  // width of a head of the gated delta rule, in rows or columns

bool is_float(Quant q) { return q == Quant::f32 || q == Quant::f16 || q == Quant::bf16; }

// Pairs of a rotary head from halves (i, i + d/2) to neighbours (2i, 2i + 1): what GGUF's `llama` rotates.
std::vector<int32_t> neighbour_rows(int32_t heads, int32_t width) {
    std::vector<int32_t> order;
    for (int32_t row = 0; row < heads * width; ++row) {
        const int32_t head = row / width, i = row % width / 2, second = row % 2;
        order.push_back(head * width + second * width / 2 + i);
    }
    return order;
}

class Planner {
  public:
    Planner(Checkpoint& checkpoint, const Config& config) : checkpoint_(checkpoint), c_(config) {
        const bool nested = checkpoint.find("model.language_model.embed_tokens.weight") != nullptr;
        root_ = nested ? "model.language_model." : "model.";
        hybrid_ = config.architecture.starts_with("qwen35");
    }

    Result<ConversionPlan> run() {
        prefix_ = root_;
        TRY_VOID(matrix("token_embd", "embed_tokens", c_.vocab, c_.dim));
        TRY_VOID(vector("output_norm.weight", "norm.weight", c_.dim, gain()));
        prefix_ = "";
        if (!c_.tied) TRY_VOID(matrix("output", "lm_head", c_.vocab, c_.dim));
        for (int32_t i = 0; i < c_.layers; ++i) {
            target_ = fmt::format("blk.{}.", i);
            prefix_ = fmt::format("{}layers.{}.", root_, i);
            TRY_VOID(layer(c_.is_recurrent(i)));
        }
        if (hybrid_ && checkpoint_.find("mtp.fc.weight")) TRY_VOID(mtp());
        return std::move(plan_);
    }

  private:
    enum class Change { none, plus_one, minus_exp };

    // Hugging Face stores the gains of the hybrids' norms minus one.
    Change gain() const { return hybrid_ ? Change::plus_one : Change::none; }

    // What the value heads' order makes of `count` entries, `unit` a head, behind `fixed` that stay: a group
    // of heads shares a key head; here they follow each other, in GGUF each group's first head comes first.
    std::vector<int32_t> tiled(int32_t fixed, int32_t unit) const {
        const int32_t keys = c_.key_heads, values = c_.value_heads, group = values / keys;
        std::vector<int32_t> order;
        if (keys == values) return order;
        for (int32_t i = 0; i < fixed; ++i) order.push_back(i);
        for (int32_t head = 0; head < values; ++head) {
            const int32_t from = head % keys * group + head / keys;
            for (int32_t i = 0; i < unit; ++i) order.push_back(fixed + from * unit + i);
        }
        return order;
    }

    ConvertedTensor& add(const std::string& name, const Weight& source, std::vector<int64_t> shape,
                         Quant type) {
        plan_.tensors.push_back({target_ + name, std::move(shape), source, type, {}, {}});
        return plan_.tensors.back();
    }
    void add_matrix(const std::string& name, const Weight& w, bool stack) {
        const bool plain = is_float(w.quant) && w.scale_count == 0;
        plan_.decoded += !plain;
        std::vector<int64_t> shape = {w.out, w.in};
        if (stack) shape.insert(shape.begin(), w.experts);
        add(name + ".weight", w, std::move(shape), plain ? w.quant : Quant::f32);
    }

    Result<void> matrix(const std::string& name, const std::string& module, int32_t out, int32_t in,
                        std::vector<int32_t> rows = {}) {
        TRY(const Weight w, checkpoint_.weight(prefix_ + module));
        if (w.out != out || w.in != in || w.experts != 1)
            return bad_input("{}: tensor '{}{}' has shape [{}, {}], expected [{}, {}]", checkpoint_.path(),
                             prefix_, module, w.out, w.in, out, in);
        add_matrix(name, w, false);
        plan_.tensors.back().row_order = std::move(rows);
        return {};
    }
    Result<void> vector(const std::string& name, const std::string& tensor, int32_t n,
                        Change change = Change::none) {
        TRY(std::vector<float> values, checkpoint_.floats(prefix_ + tensor, n));
        for (float& v : values) {
            if (change == Change::plus_one) v += 1;
            if (change == Change::minus_exp) v = float(-std::exp(double(v)));
        }
        own(name, std::move(values), {n});
        return {};
    }
    ConvertedTensor& own(const std::string& name, std::vector<float> values, std::vector<int64_t> shape) {
        plan_.owned.push_back(std::make_unique<std::vector<float>>(std::move(values)));
        Weight w;
        w.data = plan_.owned.back()->data();
        w.in = int32_t(shape.back());
        w.out = shape.size() > 1 ? int32_t(shape[0]) : 1;
        return add(name, w, std::move(shape), Quant::f32);
    }

    Result<void> layer(bool recurrent) {
        TRY_VOID(vector("attn_norm.weight", "input_layernorm.weight", c_.dim, gain()));
        if (recurrent)
            TRY_VOID(delta());
        else
            TRY_VOID(attention());
        TRY_VOID(vector(hybrid_ ? "post_attention_norm.weight" : "ffn_norm.weight",
                        "post_attention_layernorm.weight", c_.dim, gain()));
        if (c_.moe()) return experts();
        return mlp("mlp.", "", c_.ffn);
    }

    Result<void> attention() {
        const bool llama = c_.architecture == "llama";
        const int32_t q = c_.heads * c_.head_width, kv = c_.kv_heads * c_.head_width;
        std::vector<int32_t> q_rows, k_rows;
        if (llama) q_rows = neighbour_rows(c_.heads, c_.head_width);
        if (llama) k_rows = neighbour_rows(c_.kv_heads, c_.head_width);
        TRY_VOID(matrix("attn_q", "self_attn.q_proj", hybrid_ ? 2 * q : q, c_.dim, std::move(q_rows)));
        TRY_VOID(matrix("attn_k", "self_attn.k_proj", kv, c_.dim, std::move(k_rows)));
        TRY_VOID(matrix("attn_v", "self_attn.v_proj", kv, c_.dim));
        TRY_VOID(matrix("attn_output", "self_attn.o_proj", c_.dim, q));
        if (llama) return {};
        TRY_VOID(vector("attn_q_norm.weight", "self_attn.q_norm.weight", c_.head_width, gain()));
        return vector("attn_k_norm.weight", "self_attn.k_norm.weight", c_.head_width, gain());
    }

    Result<void> delta() {
        const int32_t keys = 2 * c_.key_heads * kHead, values = c_.value_heads * kHead, n = c_.value_heads;
        TRY_VOID(matrix("attn_qkv", "linear_attn.in_proj_qkv", keys + values, c_.dim, tiled(keys, kHead)));
        TRY_VOID(matrix("attn_gate", "linear_attn.in_proj_z", values, c_.dim, tiled(0, kHead)));
        TRY_VOID(matrix("ssm_beta", "linear_attn.in_proj_b", n, c_.dim, tiled(0, 1)));
        TRY_VOID(matrix("ssm_alpha", "linear_attn.in_proj_a", n, c_.dim, tiled(0, 1)));
        TRY(std::vector<float> taps,
            checkpoint_.floats(prefix_ + "linear_attn.conv1d.weight", int64_t(keys + values) * c_.taps));
        own("ssm_conv1d.weight", std::move(taps), {keys + values, c_.taps}).row_order = tiled(keys, kHead);
        TRY_VOID(vector("ssm_a", "linear_attn.A_log", n, Change::minus_exp));
        plan_.tensors.back().column_order = tiled(0, 1);
        TRY_VOID(vector("ssm_dt.bias", "linear_attn.dt_bias", n));
        plan_.tensors.back().column_order = tiled(0, 1);
        TRY_VOID(vector("ssm_norm.weight", "linear_attn.norm.weight", kHead));
        TRY_VOID(matrix("ssm_out", "linear_attn.out_proj", c_.dim, values));
        plan_.tensors.back().column_order = tiled(0, kHead);
        return {};
    }

    Result<void> mlp(const std::string& module, const std::string& suffix, int32_t width) {
        TRY_VOID(matrix("ffn_gate" + suffix, module + "gate_proj", width, c_.dim));
        TRY_VOID(matrix("ffn_up" + suffix, module + "up_proj", width, c_.dim));
        return matrix("ffn_down" + suffix, module + "down_proj", c_.dim, width);
    }

    // The experts' matrices of one kind, which lie in the files together or one by one.
    Result<Weight> expert_stack(const char* kind) {
        const std::string fused = fmt::format("{}mlp.experts.{}", prefix_, kind);
        if (checkpoint_.has_weight(fused)) return checkpoint_.weight(fused);
        std::vector<std::string> modules(static_cast<size_t>(c_.experts));
        for (int32_t e = 0; e < c_.experts; ++e)
            modules[size_t(e)] = fmt::format("{}mlp.experts.{}.{}", prefix_, e, kind);
        return checkpoint_.stacked(modules);
    }

    Result<void> experts() {
        TRY_VOID(matrix("ffn_gate_inp", "mlp.gate", c_.experts, c_.dim));
        plan_.tensors.back().type = Quant::f32;  // near ties between experts are decided here
        if (checkpoint_.has_weight(prefix_ + "mlp.experts.gate_up_proj")) {
            TRY(Weight gate, expert_stack("gate_up_proj"));
            if (gate.scales)
                return bad_input(
                    "{}: tensor '{}mlp.experts.gate_up_proj' is fused and {}, expected plain floats",
                    checkpoint_.path(), prefix_, quant_name(gate.quant));
            gate.out = c_.expert_ffn;
            gate.expert_rows = 2 * c_.expert_ffn;
            Weight up = gate;
            up.data = static_cast<const std::byte*>(gate.data) + c_.expert_ffn * row_bytes(gate);
            add_matrix("ffn_gate_exps", gate, true);
            add_matrix("ffn_up_exps", up, true);
        } else {
            TRY(const Weight gate, expert_stack("gate_proj"));
            TRY(const Weight up, expert_stack("up_proj"));
            add_matrix("ffn_gate_exps", gate, true);
            add_matrix("ffn_up_exps", up, true);
        }
        TRY(const Weight down, expert_stack("down_proj"));
        add_matrix("ffn_down_exps", down, true);
        if (c_.shared_ffn == 0) return {};
        TRY_VOID(vector("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", c_.dim));
        plan_.tensors.back().shape = {1, c_.dim};
        return mlp("mlp.shared_expert.", "_shexp", c_.shared_ffn);
    }

    // The block that predicts a token further: a layer with full attention behind the others, and what feeds
    // it.
    Result<void> mtp() {
        plan_.mtp_layers = 1;
        target_ = fmt::format("blk.{}.", c_.layers);
        prefix_ = "mtp.";
        TRY_VOID(matrix("nextn.eh_proj", "fc", c_.dim, 2 * c_.dim));
        TRY_VOID(vector("nextn.enorm.weight", "pre_fc_norm_embedding.weight", c_.dim, gain()));
        TRY_VOID(vector("nextn.hnorm.weight", "pre_fc_norm_hidden.weight", c_.dim, gain()));
        TRY_VOID(vector("nextn.shared_head_norm.weight", "norm.weight", c_.dim, gain()));
        prefix_ = "mtp.layers.0.";
        return layer(false);
    }

    Checkpoint& checkpoint_;
    const Config& c_;
    std::string root_, prefix_, target_;
    bool hybrid_ = false;
    ConversionPlan plan_;
};

}  // namespace

uint64_t ConvertedTensor::bytes() const {
    return uint64_t(source.experts) * uint64_t(source.out) * uint64_t(row_bytes(type, source.in));
}

Result<ConversionPlan> plan_conversion(Checkpoint& checkpoint, const Config& config) {
    return Planner(checkpoint, config).run();
}

void convert_row(const ConvertedTensor& t, int expert, int row, std::vector<float>* scratch, std::byte* out) {
    const auto n = size_t(t.source.in);
    const int from = t.row_order.empty() ? row : t.row_order[size_t(row)];
    if (t.type == t.source.quant && t.column_order.empty() && t.source.scale_count == 0) {
        const auto bytes = size_t(row_bytes(t.source));
        std::memcpy(out,
                    static_cast<const std::byte*>(t.source.data) +
                        weight_row(t.source, expert, from) * int64_t(bytes),
                    bytes);
        return;
    }
    scratch->resize(2 * n);
    float* values = scratch->data();
    decode_row(t.source, expert, from, values);
    if (!t.column_order.empty()) {
        for (size_t i = 0; i < n; ++i) values[n + i] = values[size_t(t.column_order[i])];
        values += n;
    }
    encode_row(t.type, values, t.source.in, nullptr, out);
}

}  // namespace sparkinfer
