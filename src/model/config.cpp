#include "model/config.h"

#include <algorithm>
#include <cmath>

namespace sparkinfer {
namespace {

constexpr int64_t kMost = 1 << 24;  // no hyper-parameter of a model that fits a machine is larger

// Reads either container's keys under one prefix; the first error sticks.
class Reader {
  public:
    Reader(const Metadata& m, std::string prefix) : m_(m), prefix_(std::move(prefix)) {}

    std::string key(const char* name) const { return prefix_ + name; }
    bool has(const char* name) const { return m_.contains(key(name)); }
    int32_t need(const char* name) { return int32_t(keep(m_.require_int(key(name), 1, kMost))); }
    int32_t size(const char* name, int32_t fallback) {
        return int32_t(keep(m_.int_or(key(name), fallback, 0, kMost)));
    }
    double number(const char* name, double fallback) { return keep(m_.number_or(key(name), fallback)); }
    bool flag(const char* name, bool fallback) { return keep(m_.bool_or(key(name), fallback)); }
    std::string text(const char* name, const char* fallback) {
        return keep(m_.string_or(key(name), fallback));
    }
    double positive(const char* name, double fallback) {
        double v = number(name, fallback);
        if (ok() && !(v > 0 && std::isfinite(v)))
            fail(bad_input("{}: metadata key '{}' is {}, expected a positive number", m_.source(), key(name),
                           v));
        return v;
    }
    // A scalar, or an array with one entry a layer whose non-zero entries agree.
    int32_t per_layer(const char* name, int32_t fallback, bool required) {
        const MetadataValue* v = m_.find(key(name));
        if (!v || !std::holds_alternative<std::vector<int64_t>>(*v))
            return required ? need(name) : size(name, fallback);
        int64_t found = 0;
        for (int64_t n : std::get<std::vector<int64_t>>(*v)) {
            if (n == 0 || n == found) continue;
            if (found || n < 0 || n > kMost) {
                fail(bad_input(
                    "{}: metadata key '{}' has different values for its layers ({} and {}), expected one",
                    m_.source(), key(name), found, n));
                return 0;
            }
            found = n;
        }
        return int32_t(found);
    }
    const Metadata& metadata() const { return m_; }
    bool ok() const { return !error_; }
    const Error& error() const { return *error_; }
    void fail(Error e) {
        if (!error_) error_ = std::move(e);
    }

  private:
    template <class T>
    T keep(Result<T> r) {
        if (r.ok()) return std::move(r).value();
        fail(r.error());
        return T{};
    }
    const Metadata& m_;
    std::string prefix_;
    std::optional<Error> error_;
};

void check_scaling(Reader& r, const std::string& type) {
    if (type.empty() || type == "linear" || type == "yarn" || type == "llama3") return;
    r.fail(bad_input("{}: rope scaling '{}' is not supported, expected linear, yarn or llama3",
                     r.metadata().source(), type));
}

void rope_from_gguf(Reader& r, Config& c) {
    c.rope.theta = r.positive("rope.freq_base", 10000);
    c.rope.dims = r.size("rope.dimension_count", c.head_width);
    if (auto sections = r.metadata().ints(r.key("rope.dimension_sections")); !sections.ok()) {
        r.fail(sections.error());
    } else if (const auto* s = sections.value()) {
        for (size_t i = 0; i < 3 && i < s->size(); ++i)
            c.rope.sections[i] = int32_t(std::clamp<int64_t>((*s)[i], 0, 4096));
    }
    c.rope.scaling = r.text("rope.scaling.type", "");
    if (c.rope.scaling == "none") c.rope.scaling.clear();
    check_scaling(r, c.rope.scaling);
    c.rope.factor = r.number("rope.scaling.factor", 1);
    c.rope.original_context = r.number("rope.scaling.original_context_length", c.context);
}

void recurrent_from_gguf(Reader& r, Config& c) {
    c.taps = r.need("ssm.conv_kernel");
    c.state_width = r.need("ssm.state_size");
    c.key_heads = r.need("ssm.group_count");
    c.value_heads = r.need("ssm.time_step_rank");
    const int32_t inner = r.need("ssm.inner_size");
    if (r.ok() && inner != int64_t(c.value_heads) * c.state_width)
        r.fail(bad_input("{}: ssm.inner_size is {}, expected {} value heads × {}", r.metadata().source(),
                         inner, c.value_heads, c.state_width));
    c.recurrent.assign(c.layers, false);
    auto stated = r.metadata().bools(r.key("attention.recurrent_layers"));
    if (!stated.ok()) return r.fail(stated.error());
    if (const auto* list = stated.value()) {
        if (int64_t(list->size()) < c.layers)
            return r.fail(bad_input("{}: attention.recurrent_layers has {} entries, expected {}",
                                    r.metadata().source(), list->size(), c.layers));
        for (int32_t i = 0; i < c.layers; ++i) c.recurrent[i] = (*list)[i];
        return;
    }
    const int32_t interval = std::max(1, r.size("full_attention_interval", 4));
    for (int32_t i = 0; i < c.layers; ++i) c.recurrent[i] = (i + 1) % interval != 0;
}

Result<Config> from_gguf(const Metadata& m, const std::string& architecture) {
    Reader r(m, architecture + ".");
    Config c;
    c.architecture = architecture;
    c.container = Container::gguf;
    const int32_t blocks = r.need("block_count");
    c.mtp_layers = r.size("nextn_predict_layers", 0);
    if (r.ok() && c.mtp_layers >= blocks)
        return bad_input("{}: nextn_predict_layers is {} of {} layers", m.source(), c.mtp_layers, blocks);
    c.layers = blocks - c.mtp_layers;
    c.context = r.need("context_length");
    c.dim = r.need("embedding_length");
    c.heads = r.per_layer("attention.head_count", 0, true);
    c.kv_heads = r.per_layer("attention.head_count_kv", c.heads, false);
    c.head_width = r.size("attention.key_length", c.heads ? c.dim / c.heads : 0);
    if (int32_t value = r.size("attention.value_length", c.head_width); r.ok() && value != c.head_width)
        return bad_input("{}: keys are {} wide and values {}, expected the same", m.source(), c.head_width,
                         value);
    c.eps = float(r.positive("attention.layer_norm_rms_epsilon", 0));
    c.experts = r.size("expert_count", 0);
    c.ffn = r.per_layer("feed_forward_length", 0, c.experts == 0);
    if (c.experts) {
        c.experts_used = r.need("expert_used_count");
        c.expert_ffn = r.size("expert_feed_forward_length", c.experts_used ? c.ffn / c.experts_used : 0);
        c.shared_ffn = r.size("expert_shared_feed_forward_length", 0);
        if (int32_t gating = r.size("expert_gating_func", 1); r.ok() && gating != 0 && gating != 1)
            return bad_input("{}: expert_gating_func is {}, expected 1 (softmax)", m.source(), gating);
    }
    if (int32_t window = r.size("attention.sliding_window", 0); r.ok() && window && window < c.context)
        return bad_input(
            "{}: attention.sliding_window is {} of a context of {}: windows of attention are not supported",
            m.source(), window, c.context);
    rope_from_gguf(r, c);
    if (r.ok() && architecture.starts_with("qwen35")) recurrent_from_gguf(r, c);
    if (!r.ok()) return r.error();
    return c;
}

// transformers 5 keeps rope facts in rope_parameters; older configs beside it and in rope_scaling.
void rope_from_hf(Reader& r, Config& c) {
    auto either = [&](const char* in_parameters, const char* plain, double fallback) {
        return r.has(in_parameters) ? r.number(in_parameters, fallback) : r.number(plain, fallback);
    };
    c.rope.theta = either("rope_parameters.rope_theta", "rope_theta", 10000);
    const double partial = either("rope_parameters.partial_rotary_factor", "partial_rotary_factor", 1);
    if (!(partial > 0 && partial <= 1))
        return r.fail(
            bad_input("{}: partial_rotary_factor is {}, expected (0, 1]", r.metadata().source(), partial));
    c.rope.dims = int32_t(c.head_width * partial);
    const std::string group = r.has("rope_parameters.rope_type") ? "rope_parameters." : "rope_scaling.";
    auto name = [&](const char* leaf) { return group + leaf; };
    std::string type = r.text(name("rope_type").c_str(), r.text(name("type").c_str(), "").c_str());
    if (type == "default" || type == "mrope") type.clear();
    check_scaling(r, type);
    c.rope.scaling = type;
    c.rope.factor = r.number(name("factor").c_str(), 1);
    c.rope.original_context = r.number(name("original_max_position_embeddings").c_str(), c.context);
    c.rope.beta_fast = r.number(name("beta_fast").c_str(), 32);
    c.rope.beta_slow = r.number(name("beta_slow").c_str(), 1);
    c.rope.attention_factor = r.number(name("attention_factor").c_str(), 0);
    c.rope.low_frequency_factor = r.number(name("low_freq_factor").c_str(), 1);
    c.rope.high_frequency_factor = r.number(name("high_freq_factor").c_str(), 4);
    auto sections = r.metadata().ints(r.key("rope_parameters.mrope_section"));
    if (!sections.ok()) return r.fail(sections.error());
    if (const auto* s = sections.value())
        for (size_t i = 0; i < 3 && i < s->size(); ++i)
            c.rope.sections[i] = int32_t(std::clamp<int64_t>((*s)[i], 0, 4096));
}

void recurrent_from_hf(Reader& r, Config& c) {
    c.taps = r.need("linear_conv_kernel_dim");
    c.state_width = r.need("linear_key_head_dim");
    c.key_heads = r.need("linear_num_key_heads");
    c.value_heads = r.need("linear_num_value_heads");
    if (int32_t v = r.need("linear_value_head_dim"); r.ok() && v != c.state_width)
        return r.fail(bad_input("{}: linear_value_head_dim is {}, expected linear_key_head_dim's {}",
                                r.metadata().source(), v, c.state_width));
    c.recurrent.assign(c.layers, false);
    auto types = r.metadata().strings(r.key("layer_types"));
    if (!types.ok()) return r.fail(types.error());
    if (const auto* list = types.value()) {
        if (int64_t(list->size()) < c.layers)
            return r.fail(bad_input("{}: layer_types has {} entries, expected {}", r.metadata().source(),
                                    list->size(), c.layers));
        for (int32_t i = 0; i < c.layers; ++i) c.recurrent[i] = (*list)[i] == "linear_attention";
        return;
    }
    const int32_t interval = std::max(1, r.size("full_attention_interval", 4));
    for (int32_t i = 0; i < c.layers; ++i) c.recurrent[i] = (i + 1) % interval != 0;
}

// Attention with a window sees other tokens. A `sliding_window` alone asks for none: Qwen's files state one
// beside "use_sliding_window": false, and Llama has no use for it.
void refuse_windows_of_hf(Reader& r) {
    const std::string& source = r.metadata().source();
    if (r.flag("use_sliding_window", false))
        r.fail(bad_input(
            "{}: use_sliding_window is true, expected false: windows of attention are not supported",
            source));
    auto types = r.metadata().strings(r.key("layer_types"));
    if (!types.ok()) return r.fail(types.error());
    if (!types.value()) return;
    for (const std::string& type : *types.value())
        if (type != "full_attention" && type != "linear_attention")
            r.fail(bad_input("{}: layer_types has '{}', expected full_attention or linear_attention", source,
                             type));
}

Result<Config> from_hf(const Metadata& m, const std::string& architecture) {
    Reader r(m, m.contains("config.text_config.hidden_size") ? "config.text_config." : "config.");
    Config c;
    c.architecture = architecture;
    c.container = Container::safetensors;
    c.layers = r.need("num_hidden_layers");
    c.mtp_layers = r.size("mtp_num_hidden_layers", 0);
    c.context = r.need("max_position_embeddings");
    c.dim = r.need("hidden_size");
    c.vocab = r.need("vocab_size");
    c.heads = r.need("num_attention_heads");
    c.kv_heads = r.size("num_key_value_heads", c.heads);
    c.head_width = r.size("head_dim", c.heads ? c.dim / c.heads : 0);
    c.eps = float(r.positive("rms_norm_eps", 0));
    // The top level decides for multimodal checkpoints, the text part for plain ones.
    c.tied = r.flag("tie_word_embeddings", false);
    if (auto top = m.bool_or("config.tie_word_embeddings", c.tied); top.ok()) c.tied = top.value();
    const bool moe = architecture.ends_with("moe");
    if (moe) {
        c.experts = r.has("num_experts") ? r.need("num_experts") : r.need("num_local_experts");
        c.experts_used = r.need("num_experts_per_tok");
        c.expert_ffn = r.need("moe_intermediate_size");
        c.shared_ffn = r.size("shared_expert_intermediate_size", 0);
        c.renormalise = architecture == "qwen35moe" || r.flag("norm_topk_prob", false);
    } else {
        c.ffn = r.need("intermediate_size");
    }
    if (r.flag("attention_bias", false) || r.flag("mlp_bias", false))
        return bad_input("{}: attention_bias or mlp_bias is true; biases are not supported", m.source());
    if (std::string act = r.text("hidden_act", "silu"); act != "silu")
        return bad_input("{}: hidden_act is '{}', expected silu", m.source(), act);
    refuse_windows_of_hf(r);
    rope_from_hf(r, c);
    if (r.ok() && architecture.starts_with("qwen35")) recurrent_from_hf(r, c);
    if (!r.ok()) return r.error();
    return c;
}

// Before anything is made once a layer: what the file claims must fit 32 bits and what it holds.
Result<void> check_config(const Checkpoint& checkpoint, const Config& c) {
    const Metadata& m = checkpoint.metadata();
    const int64_t layers = int64_t(c.layers) + c.mtp_layers, tensors = int64_t(checkpoint.tensors().size());
    if (layers > tensors)
        return bad_input("{}: claims {} layers, but holds {} tensors", m.source(), layers, tensors);
    if (c.heads < 1 || c.kv_heads < 1 || c.heads % c.kv_heads != 0)
        return bad_input("{}: {} query heads over {} key/value heads, expected a multiple", m.source(),
                         c.heads, c.kv_heads);
    if (c.head_width < 2 || c.head_width > 1024)
        return bad_input("{}: heads are {} wide, expected 2 to 1024", m.source(), c.head_width);
    if (int64_t(c.heads) * c.head_width > kMost)
        return bad_input("{}: {} heads of width {}, expected at most {} values together", m.source(), c.heads,
                         c.head_width, kMost);
    if (c.rope.dims < 2 || c.rope.dims % 2 || c.rope.dims > c.head_width)
        return bad_input("{}: {} rotary dimensions of a head of {}, expected an even number up to it",
                         m.source(), c.rope.dims, c.head_width);
    if (c.moe() && (c.experts_used < 1 || c.experts_used > c.experts || c.experts > 4096 || c.expert_ffn < 1))
        return bad_input("{}: {} of {} experts of width {}", m.source(), c.experts_used, c.experts,
                         c.expert_ffn);
    if (!c.recurrent.empty() && (c.value_heads % c.key_heads || c.taps < 2 || c.taps > 16 ||
                                 c.state_width > 1024 || int64_t(c.value_heads) * c.state_width > kMost))
        return bad_input("{}: {} value heads over {} key heads, {} taps, state width {}", m.source(),
                         c.value_heads, c.key_heads, c.taps, c.state_width);
    return {};
}

}  // namespace

Result<Config> read_config(const Checkpoint& checkpoint, const std::string& architecture) {
    const Metadata& m = checkpoint.metadata();
    TRY(Config c,
        checkpoint.container() == Container::gguf ? from_gguf(m, architecture) : from_hf(m, architecture));
    // The table of embeddings has the last word on the vocabulary; GGUF has no key that every file carries.
    const bool hf = c.hf();
    const StoredTensor* table = checkpoint.find(hf ? "model.embed_tokens.weight" : "token_embd.weight");
    if (!table && hf) table = checkpoint.find("model.language_model.embed_tokens.weight");
    if (!table) return bad_input("{}: the table of token embeddings is missing", m.source());
    if (table->shape.size() != 2 || table->shape[0] < 1 || table->shape[0] > kMost)
        return bad_input("{}: tensor '{}' has {} dimensions, expected [vocabulary, {}]", m.source(),
                         table->name, table->shape.size(), c.dim);
    if (!hf) {
        c.vocab = int32_t(table->shape[0]);
        c.tied = checkpoint.find("output.weight") == nullptr;
    }
    TRY_VOID(check_config(checkpoint, c));
    return c;
}

}  // namespace sparkinfer
