// json_facts.h — the few facts that text needs from the JSON files beside a tokenizer.json.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

// "bos_token" → "<s>": the named special tokens of a tokenizer_config.json.
using SpecialTexts = std::map<std::string, std::string, std::less<>>;

// All three take a file's text (empty: the file is missing, an empty answer) and the model's name for errors.
Result<SpecialTexts> special_texts(std::string_view tokenizer_config, std::string_view source);
// eos_token_id of a generation_config.json, a number or a list.
Result<std::vector<int64_t>> eos_ids(std::string_view generation_config, std::string_view source);
// chat_template of a tokenizer_config.json: a string, or the entry "default" of a list of {name, template}.
Result<std::optional<std::string>> config_template(std::string_view tokenizer_config,
                                                   std::string_view source);

// A JSON object of strings.
std::string to_json(const SpecialTexts& texts);

}  // namespace sparkinfer
