#include "script.h"

#include <algorithm>
#include <cstdio>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"

namespace sparkinfer::test {
namespace {

constexpr size_t kTail = 2000;
constexpr std::string_view kAssistant = "<|im_start|>assistant";

Result<std::vector<std::string>> texts(const JsonObject& rule, std::string_view key,
                                       std::string_view source) {
    std::vector<std::string> all;
    const Json* value = json_find(rule, key);
    if (!value) return all;
    TRY(const JsonArray* list, json_array(*value, source, key));
    for (const Json& item : *list) {
        if (!item.is_string())
            return bad_input("{}: {} has {}, expected strings", source, key, json_type_name(item));
        all.emplace_back(item.get_string());
    }
    return all;
}

Result<Rule> rule_of(const Json& value, std::string_view source) {
    TRY(const JsonObject* object, json_object(value, source, "a rule"));
    for (const auto& field : *object) {
        constexpr std::string_view known[] = {"turn", "contains", "lacks", "tail", "think", "say"};
        if (std::find(std::begin(known), std::end(known), std::string_view(field.key())) == std::end(known))
            return bad_input("{}: a rule has '{}', expected turn, contains, lacks, tail, think and say",
                             source, std::string_view(field.key()));
    }
    Rule rule;
    if (json_find(*object, "turn")) {
        TRY(const int64_t turn, json_int(*object, "turn", source));
        if (turn < 1 || turn > 1000) return bad_input("{}: turn is {}, expected 1 to 1000", source, turn);
        rule.turn = int(turn);
    }
    TRY(rule.contains, texts(*object, "contains", source));
    TRY(rule.lacks, texts(*object, "lacks", source));
    TRY(rule.tail, texts(*object, "tail", source));
    if (json_find(*object, "think")) {
        TRY(const std::string_view think, json_string(*object, "think", source));
        rule.think = think;
    }
    TRY(const std::string_view say, json_string(*object, "say", source));
    rule.say = say;
    return rule;
}

bool has_any(std::string_view text, const std::vector<std::string>& parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return text.find(part) != text.npos; });
}

bool has_all(std::string_view text, const std::vector<std::string>& parts) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return text.find(part) != text.npos; });
}

int count(std::string_view text, std::string_view part) {
    int n = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
    return n;
}

std::string_view tail_of(std::string_view text) {
    return text.substr(text.size() - std::min(text.size(), kTail));
}

}  // namespace

Result<Script> Script::parse(std::string_view text, std::string_view source) {
    TRY(const Json value, parse_json(text, source));
    TRY(const JsonObject* object, json_object(value, source));
    Script script;
    if (json_find(*object, "step_ms")) {
        TRY(script.step_ms, json_number(*object, "step_ms", source));
        if (!(script.step_ms >= 0 && script.step_ms <= 10000))
            return bad_input("{}: step_ms is {}, expected 0 to 10000", source, script.step_ms);
    }
    const Json* rules = json_find(*object, "rules");
    if (!rules) return bad_input("{}: 'rules' is missing", source);
    TRY(const JsonArray* list, json_array(*rules, source, "rules"));
    for (const Json& item : *list) {
        TRY(Rule rule, rule_of(item, source));
        script.rules.push_back(std::move(rule));
    }
    return script;
}

Result<Script> Script::read(const std::string& path) {
    TRY(const std::string text, read_text_file(path, 16 << 20));
    return parse(text, path);
}

Result<void> ScriptReport::write_to(const std::string& path) {
    FILE* file = std::fopen(path.c_str(), "w");
    if (!file) return bad_input("{}: the report cannot be written", path);
    std::fclose(file);
    path_ = path;
    return {};
}

void ScriptReport::line(const std::string& text) {
    if (path_.empty()) return;
    if (FILE* file = std::fopen(path_.c_str(), "a")) {
        std::fprintf(file, "%s\n", text.c_str());
        std::fclose(file);
    }
}

void ScriptReport::answer(int rule, int prompt_tokens) {
    const std::lock_guard lock(mutex_);
    ++answers_;
    line(to_json(JsonObject{{"event", "answer"}, {"rule", rule}, {"prompt_tokens", prompt_tokens}}));
}

void ScriptReport::unmatched(std::string_view tail) {
    const std::lock_guard lock(mutex_);
    ++failures_;
    line(to_json(JsonObject{{"event", "unmatched"}, {"tail", tail}}));
}

void ScriptReport::refused(std::string_view token, std::string_view after) {
    const std::lock_guard lock(mutex_);
    ++failures_;
    line(to_json(JsonObject{{"event", "refused"}, {"token", token}, {"after", after}}));
}

int ScriptReport::answers() const {
    const std::lock_guard lock(mutex_);
    return answers_;
}

int ScriptReport::failures() const {
    const std::lock_guard lock(mutex_);
    return failures_;
}

TokenId Speaker::end() const {
    return tokenizer_.eos().value_or(tokenizer_.end_tokens().empty() ? TokenId(0)
                                                                     : tokenizer_.end_tokens()[0]);
}

std::vector<TokenId> Speaker::answer(std::span<const TokenId> prompt, ScriptReport& report) const {
    const std::string text = tokenizer_.decode(prompt, true);
    const int turn = count(text, kAssistant);
    const auto fits = [&](const Rule& rule) {
        return (!rule.turn || rule.turn == turn) && has_all(text, rule.contains) &&
               !has_any(text, rule.lacks) && has_all(tail_of(text), rule.tail);
    };
    const auto rule = std::find_if(script_.rules.begin(), script_.rules.end(), fits);
    if (rule == script_.rules.end()) {
        report.unmatched(tail_of(text));
        return {};
    }
    const bool open = text.ends_with("<think>\n") || text.ends_with("<think>");
    const std::string said = (open ? rule->think + "\n</think>\n\n" : "") + rule->say;
    auto tokens = tokenizer_.encode(said, Tokenizer::Specials::parse, false);
    CHECK(tokens.ok(), "a script says what is no text: {}", tokens.error().message);
    report.answer(int(rule - script_.rules.begin()), int(prompt.size()));
    tokens.value().push_back(end());
    return std::move(tokens).value();
}

}  // namespace sparkinfer::test
