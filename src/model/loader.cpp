#include "model/loader.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace sparkinfer {

Loader::Loader(Checkpoint& checkpoint, const Config& config, FloatStore& store)
    : checkpoint_(checkpoint), config_(config), store_(store) {
    if (config.hf())
        root_ =
            checkpoint.find("model.language_model.embed_tokens.weight") ? "model.language_model." : "model.";
    prefix_ = root_;
}

void Loader::enter_layer(int32_t layer) {
    if (layer < 0)
        prefix_ = root_;
    else
        prefix_ = config_.hf() ? fmt::format("{}layers.{}.", root_, layer) : fmt::format("blk.{}.", layer);
}

// A leading '/' names a tensor at the top whatever the prefix ("lm_head").
std::string Loader::pick(const Name& name) const {
    const std::string& leaf = config_.hf() ? name.hf : name.gguf;
    return leaf.starts_with('/') ? leaf.substr(1) : prefix_ + leaf;
}

void Loader::problem(const Error& error) { problem(error.message); }
void Loader::problem(std::string sentence) { problems_.push_back(std::move(sentence)); }

static int64_t elements(const Weight& w) { return int64_t(w.experts) * w.out * w.in; }

Weight Loader::checked(const std::string& module, Result<Weight> found, int32_t experts, int32_t out,
                       int32_t in) {
    if (!found.ok()) {
        problem(found.error());
        return {};
    }
    Weight w = found.value();
    if (w.experts != experts || w.out != out || w.in != in) {
        auto shape = [](int32_t e, int32_t o, int32_t i) {
            return e == 1 ? fmt::format("[{}, {}]", o, i) : fmt::format("[{}, {}, {}]", e, o, i);
        };
        problem(fmt::format("{}: tensor '{}' has shape {}, expected {}", checkpoint_.path(), module,
                            shape(w.experts, w.out, w.in), shape(experts, out, in)));
        return {};
    }
    parameters_ += elements(w);
    return w;
}

Weight Loader::matrix(const Name& module, int32_t out, int32_t in) {
    const std::string name = pick(module);
    if (!checkpoint_.has_weight(name)) {
        missing_.push_back(name);
        return {};
    }
    return checked(name, checkpoint_.weight(name), 1, out, in);
}

Weight Loader::experts(const Name& module, int32_t experts, int32_t out, int32_t in) {
    const std::string name = pick(module);
    if (checkpoint_.has_weight(name)) {
        Result<Weight> w = checkpoint_.weight(name);
        // One expert is stored as a plain matrix by neither container; [1, out, in] reads the same here.
        return checked(name, std::move(w), experts, out, in);
    }
    if (!config_.hf()) {
        missing_.push_back(name);
        return {};
    }
    // Un-fused: …experts.<leaf> becomes …experts.0.<leaf>, …experts.1.<leaf>, ….
    const size_t dot = name.rfind('.');
    std::vector<std::string> modules;
    for (int32_t e = 0; e < experts; ++e) {
        modules.push_back(fmt::format("{}.{}{}", name.substr(0, dot), e, name.substr(dot)));
        if (!checkpoint_.has_weight(modules.back())) {
            missing_.push_back(modules.back());
            return {};
        }
    }
    return checked(name, checkpoint_.stacked(modules), experts, out, in);
}

void Loader::experts_gate_up(int32_t experts, int32_t ffn, int32_t dim, Weight* gate, Weight* up) {
    const Name fused{"ffn_gate_up_exps", "mlp.experts.gate_up_proj"};
    const std::string name = pick(fused);
    if (!checkpoint_.has_weight(name)) {
        *gate = this->experts({"ffn_gate_exps", "mlp.experts.gate_proj"}, experts, ffn, dim);
        *up = this->experts({"ffn_up_exps", "mlp.experts.up_proj"}, experts, ffn, dim);
        return;
    }
    Weight both = checked(name, checkpoint_.weight(name), experts, 2 * ffn, dim);
    if (!both.data) return;
    if (both.scales) {
        problem(fmt::format(
            "{}: tensor '{}' is fused and {}; fused experts are read in self-contained formats only",
            checkpoint_.path(), name, quant_name(both.quant)));
        return;
    }
    *gate = both;
    gate->out = ffn;
    gate->expert_rows = 2 * ffn;
    *up = *gate;
    up->data = static_cast<const std::byte*>(both.data) + ffn * row_bytes(both);
}

bool Loader::has(const Name& tensor) const { return checkpoint_.find(pick(tensor)) != nullptr; }

Weight Loader::own(std::vector<float> values, int32_t out, int32_t in) {
    CHECK(int64_t(values.size()) == int64_t(out) * in, "{} values for [{}, {}]", values.size(), out, in);
    store_.push_back(std::move(values));
    Weight w;
    w.data = store_.back().data();
    w.out = out;
    w.in = in;
    return w;
}

Weight Loader::vector(const Name& tensor, int32_t n, Transform transform) {
    const std::string name = pick(tensor);
    if (!checkpoint_.find(name)) {
        missing_.push_back(name);
        return {};
    }
    Result<std::vector<float>> values = checkpoint_.floats(name, n);
    if (!values.ok()) {
        problem(values.error());
        return {};
    }
    std::vector<float> v = std::move(values).value();
    parameters_ += n;
    if (transform == Transform::plus_one)
        for (float& f : v) f += 1;
    if (transform == Transform::minus_exp)
        for (float& f : v) f = -std::exp(f);
    return own(std::move(v), 1, n);
}

Weight Loader::taps(const Name& tensor, int32_t channels, int32_t taps) {
    Weight w = vector(tensor, channels * taps);
    if (!w.data) return w;
    w.out = channels;
    w.in = taps;
    return w;
}

std::vector<float> Loader::optional_floats(const Name& tensor, int32_t n) {
    const std::string name = pick(tensor);
    if (!checkpoint_.find(name)) return {};
    Result<std::vector<float>> values = checkpoint_.floats(name, n);
    if (values.ok()) return std::move(values).value();
    problem(values.error());
    return {};
}

// Tensors that a text model may leave alone: the MTP block, the vision tower, the scales of activations and
// of an 8-bit KV cache (both optional by their formats' own rules), tables that can be computed.
static bool kept_aside(const std::string& name, const Config& c) {
    if (!c.hf()) {
        for (int32_t i = c.layers; i < c.layers + c.mtp_layers; ++i)
            if (name.starts_with(fmt::format("blk.{}.", i))) return true;
        return name.ends_with(".input_scale");
    }
    for (const char* prefix : {"mtp.", "model.mtp.", "model.visual.", "visual.", "model.vision_tower."})
        if (name.starts_with(prefix)) return true;
    for (const char* suffix :
         {".input_scale", ".input_global_scale", ".k_scale", ".v_scale", ".rotary_emb.inv_freq"})
        if (name.ends_with(suffix)) return true;
    return c.tied && name == "lm_head.weight";
}

static std::string list_of(const std::vector<std::string>& names) {
    constexpr size_t kShown = 8;
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
    if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
    return text;
}

Result<std::vector<std::string>> Loader::finish() {
    if (!missing_.empty())
        return bad_input("{}: {} {} missing: {}", checkpoint_.path(), missing_.size(),
                         missing_.size() == 1 ? "tensor is" : "tensors are", list_of(missing_));
    if (!problems_.empty()) {
        if (problems_.size() == 1) return Error{ErrorKind::bad_input, problems_[0]};
        return Error{ErrorKind::bad_input,
                     fmt::format("{} (and {} more such problems)", problems_[0], problems_.size() - 1)};
    }
    std::vector<std::string> unused = checkpoint_.unused(), unexpected;
    for (const std::string& name : unused)
        if (!kept_aside(name, config_)) unexpected.push_back(name);
    if (!unexpected.empty())
        return bad_input("{}: {} {} not part of architecture '{}': {}", checkpoint_.path(), unexpected.size(),
                         unexpected.size() == 1 ? "tensor is" : "tensors are", config_.architecture,
                         list_of(unexpected));
    return unused;
}

}  // namespace sparkinfer
