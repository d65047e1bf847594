#include "text/json_facts.h"

#include "core/json.h"

namespace sparkinfer {
namespace {

// The object in a file's text.
Result<Json> parse_object(std::string_view text, const char* file, std::string_view source) {
    const std::string name = fmt::format("{}/{}", source, file);
    TRY(Json value, parse_json(text, name));
    TRY([[maybe_unused]] const JsonObject* object, json_object(value, name));
    return value;
}

std::string to_string(const boost::json::string& s) { return {s.data(), s.size()}; }

// A token is given as its text, or as an object with "content".
std::optional<std::string> token_text(const Json& value) {
    if (value.is_string()) return to_string(value.as_string());
    if (!value.is_object()) return std::nullopt;
    const Json* content = json_find(value.as_object(), "content");
    if (!content || !content->is_string()) return std::nullopt;
    return to_string(content->as_string());
}

}  // namespace

Result<SpecialTexts> special_texts(std::string_view tokenizer_config, std::string_view source) {
    SpecialTexts texts;
    if (tokenizer_config.empty()) return texts;
    TRY(const Json config, parse_object(tokenizer_config, "tokenizer_config.json", source));
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
        const Json* value = json_find(config.as_object(), name);
        if (!value) continue;
        if (std::optional<std::string> text = token_text(*value)) texts.emplace(name, std::move(*text));
    }
    return texts;
}

Result<std::vector<int64_t>> eos_ids(std::string_view generation_config, std::string_view source) {
    std::vector<int64_t> ids;
    if (generation_config.empty()) return ids;
    TRY(const Json config, parse_object(generation_config, "generation_config.json", source));
    const Json* value = json_find(config.as_object(), "eos_token_id");
    if (!value || value->is_null()) return ids;
    const auto wrong = [&] {
        return bad_input("{}: generation_config.json: eos_token_id is no integer or list of integers",
                         source);
    };
    if (value->is_int64()) return std::vector<int64_t>{value->as_int64()};
    if (!value->is_array()) return wrong();
    for (const Json& item : value->as_array()) {
        if (!item.is_int64()) return wrong();
        ids.push_back(item.as_int64());
    }
    return ids;
}

Result<std::optional<std::string>> config_template(std::string_view tokenizer_config,
                                                   std::string_view source) {
    std::optional<std::string> none;
    if (tokenizer_config.empty()) return none;
    TRY(const Json config, parse_object(tokenizer_config, "tokenizer_config.json", source));
    const Json* value = json_find(config.as_object(), "chat_template");
    if (!value || value->is_null()) return none;
    if (value->is_string()) return std::optional(to_string(value->as_string()));
    if (value->is_array()) {
        for (const Json& item : value->as_array()) {
            if (!item.is_object()) continue;
            const Json* name = json_find(item.as_object(), "name");
            const Json* text = json_find(item.as_object(), "template");
            if (name && text && text->is_string() && name->is_string() && name->as_string() == "default")
                return std::optional(to_string(text->as_string()));
        }
    }
    return bad_input(
        "{}: tokenizer_config.json: chat_template is neither a string nor a list with a 'default'", source);
}

std::string to_json(const SpecialTexts& texts) {
    JsonObject out;
    for (const auto& [name, text] : texts) out[name] = text;
    return to_json(Json(std::move(out)));
}

}  // namespace sparkinfer
