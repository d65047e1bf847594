// convert_tokenizer.cpp — tokenizer.json and tokenizer_config.json as GGUF metadata: byte-level BPE.
#include <algorithm>
#include <optional>

#include "cli/convert_metadata.h"
#include "core/json.h"
#include "load/gguf_writer.h"

namespace sparkinfer {

namespace {

// Values of tokenizer.ggml.token_type.
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// Pre-tokenizers by the pattern that tokenizer.json splits with. GGUF files carry only their names.
struct PreTokenizer {
    const char* name;
    const char* pattern;
};
#define SPARKINFER_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define SPARKINFER_SPACES "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
constexpr PreTokenizer kPreTokenizers[] = {
    {"qwen2",
     SPARKINFER_CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+" SPARKINFER_SPACES},
    {"qwen35", SPARKINFER_CONTRACTIONS
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+" SPARKINFER_SPACES},
    {"llama-bpe", SPARKINFER_CONTRACTIONS
     "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" SPARKINFER_SPACES},
};
#undef SPARKINFER_CONTRACTIONS
#undef SPARKINFER_SPACES

// Reads fields that may be missing; the source is for messages.
struct Object {
    const JsonObject* object;
    std::string source;

    const Json* find(const char* key) const { return object ? json_find(*object, key) : nullptr; }
    std::string text(const char* key) const {
        const Json* v = find(key);
        return v && v->is_string() ? std::string(v->get_string()) : std::string();
    }
    bool flag(const char* key) const {
        const Json* v = find(key);
        return v && v->is_bool() && v->get_bool();
    }
    Object inner(const char* key) const {
        const Json* v = find(key);
        return {v ? v->if_object() : nullptr, source};
    }
    // The objects of a list; of one object that may be a sequence of them, itself or its parts.
    std::vector<Object> items(const char* key) const {
        const Json* v = find(key);
        std::vector<Object> found;
        if (const JsonArray* array = v ? v->if_array() : nullptr)
            for (const Json& item : *array) found.push_back({item.if_object(), source});
        return found;
    }
    std::vector<Object> sequence(const char* key, const char* parts) const {
        const Object one = inner(key);
        if (!one.object) return {};
        return one.text("type") == "Sequence" ? one.items(parts) : std::vector<Object>{one};
    }
};

// Which of the pre-tokenizers that GGUF files name this one is.
Result<std::string> pre_tokenizer_name(const Object& tokenizer) {
    bool digits = false, byte_level = false, own_pattern = false;
    std::string pattern;
    for (const Object& part : tokenizer.sequence("pre_tokenizer", "pretokenizers")) {
        const std::string type = part.text("type");
        if (type == "Split") pattern = part.inner("pattern").text("Regex");
        if (type == "Digits") digits = part.flag("individual_digits");
        if (type == "ByteLevel") {
            byte_level = true;
            const Json* use_regex = part.find("use_regex");
            own_pattern = !use_regex || part.flag("use_regex");
        }
    }
    if (!byte_level)
        return bad_input("{}: has no ByteLevel pre-tokenizer; only byte-level BPE can be converted",
                         tokenizer.source);
    if (digits && own_pattern && pattern.empty()) return std::string("smollm");
    for (const PreTokenizer& known : kPreTokenizers)
        if (!digits && !own_pattern && pattern == known.pattern) return std::string(known.name);
    return bad_input(
        "{}: splits with a pattern that has no name here ('{}'), expected that of smollm, qwen2, qwen35 "
        "or llama-bpe",
        tokenizer.source, pattern.substr(0, 100));
}

// A control token by its looks, whatever the file says of it: llama.cpp takes it for one.
bool looks_special(const std::string& token) {
    return (token.starts_with("<|") && token.ends_with("|>")) ||
           (token.starts_with("<｜") && token.ends_with("｜>")) || token == "<pad>" || token == "<mask>" ||
           token == "<s>" || token == "</s>" || token == "<unk>";
}

struct Vocabulary {
    std::vector<std::string> tokens;
    std::vector<int32_t> kinds;

    std::optional<uint32_t> id(const std::string& token) const {
        const auto found = std::find(tokens.begin(), tokens.end(), token);
        if (token.empty() || found == tokens.end()) return std::nullopt;
        return uint32_t(found - tokens.begin());
    }
};

// Puts `token` at its place. Errors: an id beyond the embedding table.
Result<void> place(const Object& from, const std::string& token, const Json* id, int32_t kind,
                   Vocabulary* v) {
    int64_t at = -1;
    if (!id || !json_is_int(*id, &at) || at < 0 || at >= int64_t(v->tokens.size()))
        return bad_input("{}: token {} has the id {}, expected one of the model's, 0 to {}", from.source,
                         json_quote(token), id ? to_json(*id) : "nothing", v->tokens.size() - 1);
    if (v->kinds[size_t(at)] != kUnused && v->tokens[size_t(at)] != token)
        return bad_input("{}: tokens {} and {} have the same id {}", from.source,
                         json_quote(v->tokens[size_t(at)]), json_quote(token), at);
    v->tokens[size_t(at)] = token;
    v->kinds[size_t(at)] = kind;
    return {};
}

Result<Vocabulary> read_vocabulary(const Object& tokenizer, int32_t size) {
    Vocabulary v{std::vector<std::string>(size_t(size)), std::vector<int32_t>(size_t(size), kUnused)};
    for (int32_t i = 0; i < size; ++i) v.tokens[size_t(i)] = fmt::format("[PAD{}]", i);
    const Object vocab = tokenizer.inner("model").inner("vocab");
    if (!vocab.object) return bad_input("{}: 'model' has no 'vocab'", tokenizer.source);
    for (const auto& [token, id] : *vocab.object)
        TRY_VOID(place(tokenizer, std::string(token), &id, kNormal, &v));
    for (const Object& added : tokenizer.items("added_tokens")) {
        const std::string token = added.text("content");
        const bool control = added.flag("special") || looks_special(token);
        TRY_VOID(place(tokenizer, token, added.find("id"), control ? kControl : kUserDefined, &v));
    }
    return v;
}

Result<std::vector<std::string>> read_merges(const Object& tokenizer) {
    const Json* list = tokenizer.inner("model").find("merges");
    if (!list || !list->is_array()) return bad_input("{}: 'model' has no 'merges'", tokenizer.source);
    std::vector<std::string> merges;
    for (const Json& merge : list->get_array()) {
        const JsonArray* pair = merge.if_array();
        if (merge.is_string()) {
            merges.emplace_back(merge.get_string());
        } else if (pair && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
            merges.push_back(std::string((*pair)[0].get_string()) + " " +
                             std::string((*pair)[1].get_string()));
        } else {
            return bad_input("{}: merge {} is {}, expected two tokens", tokenizer.source, merges.size(),
                             to_json(merge).substr(0, 100));
        }
    }
    return merges;
}

// "<|im_end|>", or {"content": "<|im_end|>"}.
std::string special_token(const Object& config, const std::string& key) {
    const std::string plain = config.text(key.c_str());
    return plain.empty() ? config.inner(key.c_str()).text("content") : plain;
}

void add_special_ids(const Object& config, const Metadata& folder, const Vocabulary& v, GgufPairs* pairs) {
    static constexpr std::pair<const char*, const char*> kSpecials[] = {
        {"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"pad", "padding"}};
    for (const auto& [ours, gguf] : kSpecials) {
        std::optional<uint32_t> id = v.id(special_token(config, fmt::format("{}_token", ours)));
        if (!id) {
            const auto stated =
                folder.int_or(fmt::format("config.{}_token_id", ours), -1, INT64_MIN, INT64_MAX);
            if (stated.ok() && stated.value() >= 0 && stated.value() < int64_t(v.tokens.size()))
                id = uint32_t(stated.value());
        }
        if (id) pairs->emplace_back(fmt::format("tokenizer.ggml.{}_token_id", gguf), gguf_u32(*id));
    }
}

// Whether texts get a token in front or behind: said outright, else by the template of the post-processor.
void add_flags(const Object& tokenizer, const Object& config, GgufPairs* pairs) {
    std::optional<bool> first, last;
    for (const Object& part : tokenizer.sequence("post_processor", "processors")) {
        if (part.text("type") != "TemplateProcessing") continue;
        const std::vector<Object> single = part.items("single");
        if (single.empty()) continue;
        first = single.front().find("SpecialToken") != nullptr;
        last = single.size() > 1 && single.back().find("SpecialToken") != nullptr;
    }
    if (const Json* said = config.find("add_bos_token"); said && said->is_bool()) first = said->get_bool();
    if (const Json* said = config.find("add_eos_token"); said && said->is_bool()) last = said->get_bool();
    if (first) pairs->emplace_back("tokenizer.ggml.add_bos_token", gguf_bool(*first));
    if (last) pairs->emplace_back("tokenizer.ggml.add_eos_token", gguf_bool(*last));
}

Result<void> add_template(const Object& config, const Metadata& folder, GgufPairs* pairs) {
    TRY(std::string text, folder.string_or("chat_template.jinja", ""));
    if (text.empty()) text = config.text("chat_template");
    for (const Object& named : config.items("chat_template")) {
        const std::string name = named.text("name");
        if (name == "default" && text.empty()) text = named.text("template");
        if (name != "default" && !name.empty())
            pairs->emplace_back("tokenizer.chat_template." + name, gguf_text(named.text("template")));
    }
    if (!text.empty()) pairs->emplace_back("tokenizer.chat_template", gguf_text(text));
    return {};
}

}  // namespace

Result<GgufPairs> convert_tokenizer(const Metadata& folder, int32_t vocab) {
    if (!folder.contains("tokenizer.json"))
        return bad_input("{}: tokenizer.json is missing", folder.source());
    const std::string path = folder.source() + "/tokenizer.json";
    TRY(const std::string text, folder.require_string("tokenizer.json"));
    TRY(const Json json, parse_json(text, path));
    TRY(const JsonObject* const object, json_object(json, path));
    const Object tokenizer{object, path};
    TRY(const std::string config_text, folder.string_or("tokenizer_config.json", "{}"));
    TRY(const Json config_json, parse_json(config_text, folder.source() + "/tokenizer_config.json"));
    TRY(const JsonObject* const config_object,
        json_object(config_json, folder.source() + "/tokenizer_config.json"));
    const Object config{config_object, folder.source() + "/tokenizer_config.json"};

    const Object model = tokenizer.inner("model");
    if (const std::string type = model.text("type"); type != "BPE" || model.flag("byte_fallback"))
        return bad_input("{}: is of type '{}'{}, expected byte-level BPE", path, type,
                         model.flag("byte_fallback") ? " with byte_fallback" : "");
    if (const std::string type = tokenizer.inner("normalizer").text("type"); !type.empty() && type != "NFC")
        return bad_input("{}: normalises by '{}', expected nothing or NFC", path, type);
    TRY(const std::string pre, pre_tokenizer_name(tokenizer));
    TRY(const Vocabulary v, read_vocabulary(tokenizer, vocab));
    TRY(const std::vector<std::string> merges, read_merges(tokenizer));
    GgufPairs pairs = {{"tokenizer.ggml.model", gguf_text("gpt2")},
                       {"tokenizer.ggml.pre", gguf_text(pre)},
                       {"tokenizer.ggml.tokens", gguf_texts(v.tokens)},
                       {"tokenizer.ggml.token_type", gguf_i32s(v.kinds)},
                       {"tokenizer.ggml.merges", gguf_texts(merges)}};
    add_special_ids(config, folder, v, &pairs);
    add_flags(tokenizer, config, &pairs);
    TRY_VOID(add_template(config, folder, &pairs));
    return pairs;
}

}  // namespace sparkinfer
