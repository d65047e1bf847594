#include "text/json_facts.h"

#include <boost/json.hpp>

namespace sparkinfer {
namespace {

namespace json = boost::json;

// Boost.JSON limits nesting to 32 by default; files of models are flatter.
Result<json::object> parse_object(std::string_view text, const char* file, std::string_view source) {
    json::error_code error;
    json::value value = json::parse(json::string_view(text.data(), text.size()), error);
    if (error) return bad_input("{}: {} is not valid JSON: {}", source, file, error.message());
    if (!value.is_object()) return bad_input("{}: {} holds no JSON object", source, file);
    return std::move(value.as_object());
}

std::string to_string(const json::string& s) { return {s.data(), s.size()}; }

// A token is given as its text, or as an object with "content".
std::optional<std::string> token_text(const json::value& value) {
    if (value.is_string()) return to_string(value.as_string());
    if (!value.is_object()) return std::nullopt;
    const json::value* content = value.as_object().if_contains("content");
    if (!content || !content->is_string()) return std::nullopt;
    return to_string(content->as_string());
}

}  // namespace

Result<SpecialTexts> special_texts(std::string_view tokenizer_config, std::string_view source) {
    SpecialTexts texts;
    if (tokenizer_config.empty()) return texts;
    TRY(const json::object config, parse_object(tokenizer_config, "tokenizer_config.json", source));
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
        const json::value* value = config.if_contains(name);
        if (!value) continue;
        if (std::optional<std::string> text = token_text(*value)) texts.emplace(name, std::move(*text));
    }
    return texts;
}

Result<std::vector<int64_t>> eos_ids(std::string_view generation_config, std::string_view source) {
    std::vector<int64_t> ids;
    if (generation_config.empty()) return ids;
    TRY(const json::object config, parse_object(generation_config, "generation_config.json", source));
    const json::value* value = config.if_contains("eos_token_id");
    if (!value || value->is_null()) return ids;
    const auto wrong = [&] {
        return bad_input("{}: generation_config.json: eos_token_id is no integer or list of integers",
                         source);
    };
    if (value->is_int64()) return std::vector<int64_t>{value->as_int64()};
    if (!value->is_array()) return wrong();
    for (const json::value& item : value->as_array()) {
        if (!item.is_int64()) return wrong();
        ids.push_back(item.as_int64());
    }
    return ids;
}

Result<std::optional<std::string>> config_template(std::string_view tokenizer_config,
                                                   std::string_view source) {
    std::optional<std::string> none;
    if (tokenizer_config.empty()) return none;
    TRY(const json::object config, parse_object(tokenizer_config, "tokenizer_config.json", source));
    const json::value* value = config.if_contains("chat_template");
    if (!value || value->is_null()) return none;
    if (value->is_string()) return std::optional(to_string(value->as_string()));
    if (value->is_array()) {
        for (const json::value& item : value->as_array()) {
            if (!item.is_object()) continue;
            const json::value* name = item.as_object().if_contains("name");
            const json::value* text = item.as_object().if_contains("template");
            if (name && text && text->is_string() && name->is_string() && name->as_string() == "default")
                return std::optional(to_string(text->as_string()));
        }
    }
    return bad_input(
        "{}: tokenizer_config.json: chat_template is neither a string nor a list with a 'default'", source);
}

Result<std::vector<std::string>> control_texts(std::string_view tokenizer_json, std::string_view source) {
    std::vector<std::string> texts;
    TRY(const json::object file, parse_object(tokenizer_json, "tokenizer.json", source));
    const json::value* added = file.if_contains("added_tokens");
    if (!added || !added->is_array()) return texts;
    for (const json::value& item : added->as_array()) {
        if (!item.is_object()) continue;
        const json::value* special = item.as_object().if_contains("special");
        if (!special || !special->is_bool() || !special->as_bool()) continue;
        if (std::optional<std::string> text = token_text(item)) texts.push_back(std::move(*text));
    }
    return texts;
}

std::string to_json(const SpecialTexts& texts) {
    json::object out;
    for (const auto& [name, text] : texts) out[name] = text;
    return json::serialize(out);
}

}  // namespace sparkinfer
