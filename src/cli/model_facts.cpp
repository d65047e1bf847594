#include "cli/model_facts.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/log.h"

namespace sparkinfer {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// What a run needs beside weights and cache: activations, vocabulary, the program itself.
constexpr int64_t kOtherBytes = int64_t(512) << 20;

// A number from the command line, else the file's (checked), else `fallback`.
struct NumberSource {
    const std::optional<double>& given;
    const char* key;
    double min, max;
};
Result<float> number(const NumberSource& source, const Metadata& metadata, float fallback) {
    if (source.given) return float(*source.given);
    TRY(const double value, metadata.number_or(source.key, fallback));
    if (!(value >= source.min && value <= source.max && std::isfinite(value)))
        return bad_input("{}: metadata key '{}' is {}, expected {} to {}", metadata.source(), source.key,
                         value, source.min, source.max);
    return float(value);
}

Result<int32_t> integer(const std::optional<int64_t>& given, const char* key, int64_t min,
                        const Metadata& metadata, int32_t fallback) {
    if (given) return int32_t(*given);
    TRY(const int64_t value, metadata.int_or(key, fallback, min, INT32_MAX));
    return int32_t(value);
}

}  // namespace

std::vector<TypeCount> quant_census(const std::vector<StoredTensor>& tensors) {
    std::vector<TypeCount> census;
    for (const StoredTensor& tensor : tensors) {
        auto found = std::find_if(census.begin(), census.end(),
                                  [&](const TypeCount& c) { return c.type == tensor.type; });
        if (found == census.end()) found = census.insert(census.end(), TypeCount{tensor.type});
        int64_t elements = 1;
        for (const int64_t extent : tensor.shape) elements *= extent;
        found->tensors += 1;
        found->elements += elements;
        found->bytes += int64_t(tensor.bytes);
    }
    std::sort(census.begin(), census.end(), [](const TypeCount& a, const TypeCount& b) {
        return std::pair(-a.bytes, a.type) < std::pair(-b.bytes, b.type);
    });
    return census;
}

Result<ModelFacts> model_facts(const std::string& path) {
    TRY(const std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(path));
    TRY(const std::unique_ptr<Model> model, load_model(*checkpoint));
    ModelFacts facts;
    facts.metadata = checkpoint->metadata();
    facts.shape = model->shape();
    for (const CheckpointFile& file : checkpoint->files()) {
        facts.files.push_back(file.path);
        facts.file_bytes += int64_t(file.bytes);
    }
    const std::vector<TypeCount> census = quant_census(checkpoint->tensors());
    for (const TypeCount& count : census) {
        facts.tensor_bytes += count.bytes;
        facts.tensor_elements += count.elements;
    }
    if (!census.empty()) facts.main_type = census.front().type;
    return facts;
}

Result<Metadata> model_metadata(const std::string& path) {
    TRY(const std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(path));
    return checkpoint->metadata();
}

int64_t kv_bytes_per_token(const ModelShape& shape, DType type) {
    int64_t bytes = 0;
    for (const KvLayer& layer : shape.kv) bytes += int64_t(2) * layer.heads * layer.width * dtype_bytes(type);
    return bytes;
}

int32_t context_that_fits(const ModelFacts& facts, int64_t memory, int64_t bytes_per_token) {
    const int64_t own = facts.shape.context;
    if (bytes_per_token <= 0) return int32_t(own);
    const int64_t room = std::max(memory - facts.file_bytes - kOtherBytes, int64_t(0));
    const int64_t fits = room / bytes_per_token / kPageTokens * kPageTokens;
    return int32_t(std::min(own, std::max<int64_t>(fits, std::min<int64_t>(own, kPageTokens))));
}

Result<int32_t> choose_context(const ModelFacts& facts, const ContextNeed& need) {
    const int64_t own = facts.shape.context;
    if (need.asked && *need.asked > own)
        return usage_error("--ctx is {}, but {} was made for a context of at most {} tokens", *need.asked,
                           facts.metadata.source(), own);
    int64_t context = need.asked.value_or(own);
    if (need.prompt >= context)
        return bad_input("the prompt has {} tokens and the context is {}: no room is left for an answer",
                         need.prompt, context);
    if (need.asked) return int32_t(context);
    if (need.answer >= 0) return int32_t(std::min(own, need.prompt + need.answer));
    const int64_t fits = context_that_fits(facts, need.memory, need.bytes_per_token);
    if (fits >= context) return int32_t(context);
    context = std::max(fits, std::min(own, need.prompt + kPageTokens));
    log_warning(
        "the context is {} tokens, not the model's {}: {:.1f} GB of memory are at hand; --ctx decides "
        "otherwise",
        context, own, double(need.memory) * 1e-9);
    return int32_t(context);
}

Result<SamplingParams> resolve_sampling(const SamplingOptions& o, const Metadata& m) {
    SamplingParams p;
    TRY(p.temperature, number({o.temperature, "general.sampling.temp", 0, kInfinity}, m, p.temperature));
    TRY(p.top_k, integer(o.top_k, "general.sampling.top_k", 0, m, p.top_k));
    TRY(p.top_p, number({o.top_p, "general.sampling.top_p", 1e-6, 1}, m, p.top_p));
    TRY(p.min_p, number({o.min_p, "general.sampling.min_p", 0, 1}, m, p.min_p));
    TRY(p.repeat_penalty,
        number({o.repeat_penalty, "general.sampling.penalty_repeat", 1e-6, kInfinity}, m, p.repeat_penalty));
    TRY(p.repeat_last_n, integer(o.repeat_last_n, "general.sampling.penalty_last_n", -1, m, p.repeat_last_n));
    p.presence_penalty = float(o.presence_penalty.value_or(0));
    p.frequency_penalty = float(o.frequency_penalty.value_or(0));
    p.seed = o.seed ? *o.seed : std::random_device{}();
    for (const auto& [id, value] : o.logit_bias) p.logit_bias.emplace_back(TokenId(id), value);
    return p;
}

}  // namespace sparkinfer
