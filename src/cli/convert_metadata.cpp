// convert_metadata.cpp — hyper-parameters; convert_tokenizer.cpp has the rest.
#include "cli/convert_metadata.h"

#include "core/json.h"
#include "load/gguf_writer.h"

namespace sparkinfer {

namespace {

// Appends keys under the architecture's name.
struct Pairs {
    std::string architecture;
    GgufPairs list = {};
    void u32(const char* key, int64_t value) { put(key, gguf_u32(uint32_t(value))); }
    void f32(const char* key, double value) { put(key, gguf_f32(float(value))); }
    void put(const char* key, std::string value) {
        list.emplace_back(architecture + "." + key, std::move(value));
    }
};

Result<void> add_rope(const Metadata& folder, const Config& c, Pairs* pairs) {
    pairs->f32("rope.freq_base", c.rope.theta);
    if (c.architecture == "llama" || c.rope.dims != c.head_width)
        pairs->u32("rope.dimension_count", c.rope.dims);
    if (c.rope.sections[0] > 0)
        pairs->put("rope.dimension_sections",
                   gguf_i32s({c.rope.sections[0], c.rope.sections[1], c.rope.sections[2], 0}));
    // llama3's factors become a tensor.
    if (c.rope.scaling.empty() || c.rope.scaling == "llama3") return {};
    if (c.rope.attention_factor != 0 || c.rope.beta_fast != 32 || c.rope.beta_slow != 1)
        return bad_input(
            "{}: rope scaling '{}' has factors of its own (attention_factor, beta_fast or beta_slow), "
            "which this conversion does not know",
            folder.source(), c.rope.scaling);
    pairs->put("rope.scaling.type", gguf_text(c.rope.scaling));
    pairs->f32("rope.scaling.factor", c.rope.factor);
    if (c.rope.scaling == "yarn")
        pairs->u32("rope.scaling.original_context_length", int64_t(c.rope.original_context));
    return {};
}

void add_recurrent(const Config& c, int32_t mtp_layers, Pairs* pairs) {
    pairs->u32("ssm.conv_kernel", c.taps);
    pairs->u32("ssm.state_size", c.state_width);
    pairs->u32("ssm.group_count", c.key_heads);
    pairs->u32("ssm.time_step_rank", c.value_heads);
    pairs->u32("ssm.inner_size", int64_t(c.value_heads) * c.state_width);
    std::vector<bool> recurrent = c.recurrent;
    recurrent.resize(size_t(c.layers) + size_t(mtp_layers), false);
    pairs->put("attention.recurrent_layers", gguf_bools(recurrent));
    if (mtp_layers > 0) pairs->u32("nextn_predict_layers", mtp_layers);
}

// Sampling that generation_config.json recommends.
Result<void> add_sampling(const Metadata& folder, GgufPairs* list) {
    TRY(const std::string text, folder.string_or("generation_config.json", ""));
    if (text.empty()) return {};
    TRY(const Json json, parse_json(text, folder.source() + "/generation_config.json"));
    TRY(const JsonObject* const object, json_object(json, folder.source() + "/generation_config.json"));
    const Json* top_k = json_find(*object, "top_k");
    int64_t k = 0;
    if (top_k && json_is_int(*top_k, &k) && k >= 0 && k <= INT32_MAX)
        list->emplace_back("general.sampling.top_k", gguf_i32(int32_t(k)));
    const Json* top_p = json_find(*object, "top_p");
    if (top_p && top_p->is_number())
        list->emplace_back("general.sampling.top_p", gguf_f32(top_p->to_number<float>()));
    const Json* temperature = json_find(*object, "temperature");
    if (temperature && temperature->is_number())
        list->emplace_back("general.sampling.temp", gguf_f32(temperature->to_number<float>()));
    return {};
}

}  // namespace

Result<GgufPairs> convert_hyperparameters(const Metadata& folder, const Config& c, int32_t mtp_layers,
                                          const std::string& name) {
    Pairs pairs{c.architecture};
    pairs.list = {{"general.architecture", gguf_text(c.architecture)},
                  {"general.type", gguf_text("model")},
                  {"general.name", gguf_text(name)},
                  {"general.quantization_version", gguf_u32(2)}};
    TRY_VOID(add_sampling(folder, &pairs.list));
    pairs.u32("block_count", c.layers + mtp_layers);
    pairs.u32("context_length", c.context);
    pairs.u32("embedding_length", c.dim);
    pairs.u32("attention.head_count", c.heads);
    pairs.u32("attention.head_count_kv", c.kv_heads);
    pairs.f32("attention.layer_norm_rms_epsilon", double(c.eps));
    pairs.u32("attention.key_length", c.head_width);
    pairs.u32("attention.value_length", c.head_width);
    TRY_VOID(add_rope(folder, c, &pairs));
    const std::string prefix =
        folder.contains("config.text_config.hidden_size") ? "config.text_config." : "config.";
    TRY(const int64_t ffn, folder.int_or(prefix + "intermediate_size", c.ffn, 0, INT32_MAX));
    if (ffn > 0) pairs.u32("feed_forward_length", ffn);
    if (c.architecture == "llama") pairs.u32("vocab_size", c.vocab);
    if (c.moe()) {
        if (!c.renormalise)
            return bad_input("{}: norm_topk_prob is false, and GGUF files of '{}' mean true", folder.source(),
                             c.architecture);
        pairs.u32("expert_count", c.experts);
        pairs.u32("expert_used_count", c.experts_used);
        pairs.u32("expert_feed_forward_length", c.expert_ffn);
        if (c.shared_ffn > 0) pairs.u32("expert_shared_feed_forward_length", c.shared_ffn);
    }
    if (!c.recurrent.empty()) {
        add_recurrent(c, mtp_layers, &pairs);
        TRY(const int64_t interval, folder.int_or(prefix + "full_attention_interval", 4, 1, INT32_MAX));
        pairs.u32("full_attention_interval", interval);
    }
    return pairs.list;
}

}  // namespace sparkinfer
