#include "cli/serve_load.h"

#include <algorithm>
#include <random>

namespace sparkinfer {
namespace {

// Common words, most of which are one token in every vocabulary.
constexpr const char* kWords[] = {
    "time",  "year",       "people", "way",      "day",    "man",     "thing",  "woman",   "life",
    "child", "world",      "school", "state",    "family", "student", "group",  "country", "problem",
    "hand",  "part",       "place",  "case",     "week",   "company", "system", "program", "question",
    "work",  "government", "number", "night",    "point",  "home",    "water",  "room",    "mother",
    "area",  "money",      "story",  "fact",     "month",  "lot",     "right",  "study",   "book",
    "eye",   "job",        "word",   "business", "issue",  "side",    "kind",   "head",    "house"};

std::string_view text_of(const Json& value) {
    if (!value.is_string()) return {};
    return {value.as_string().data(), value.as_string().size()};
}

std::string_view text_field(const JsonObject& object, std::string_view key) {
    const Json* value = json_find(object, key);
    return value ? text_of(*value) : std::string_view();
}

const JsonObject* object_field(const JsonObject& object, std::string_view key) {
    const Json* value = json_find(object, key);
    return value && value->is_object() ? &value->as_object() : nullptr;
}

int64_t count_field(const JsonObject* object, std::string_view key) {
    const Json* value = object ? json_find(*object, key) : nullptr;
    int64_t count = 0;
    return value && json_is_int(*value, &count) ? count : 0;
}

// The sentence of an error's body.
std::string error_text(std::string_view body) {
    const Result<Json> parsed = parse_json(body, "the answer");
    const JsonObject* object =
        parsed.ok() && parsed.value().is_object() ? &parsed.value().as_object() : nullptr;
    const JsonObject* error = object ? object_field(*object, "error") : nullptr;
    if (error && !text_field(*error, "message").empty()) return std::string(text_field(*error, "message"));
    return std::string(body.substr(0, 200));
}

}  // namespace

bool AnswerStream::take(std::string_view data) {
    if (data == "[DONE]") {
        finished_ = true;
        return false;
    }
    const Result<Json> parsed = parse_json(data, "an event");
    if (!parsed.ok() || !parsed.value().is_object()) {
        if (error_.empty())
            error_ = fmt::format("an event is '{}', expected a JSON object", data.substr(0, 80));
        return false;
    }
    const JsonObject& event = parsed.value().as_object();
    if (json_find(event, "error") && error_.empty()) error_ = error_text(data);
    if (const JsonObject* usage = object_field(event, "usage")) {
        prompt_tokens_ = count_field(usage, "prompt_tokens");
        completion_tokens_ = count_field(usage, "completion_tokens");
        cached_tokens_ = count_field(object_field(*usage, "prompt_tokens_details"), "cached_tokens");
    }
    const Json* choices = json_find(event, "choices");
    if (!choices || !choices->is_array() || choices->as_array().empty()) return false;
    const Json& choice = choices->as_array().front();
    return choice.is_object() && take_choice(choice.as_object());
}

bool AnswerStream::take_choice(const JsonObject& choice) {
    const size_t before = content_.size() + reasoning_.size();
    content_ += text_field(choice, "text");
    const JsonObject* delta = object_field(choice, "delta");
    if (!delta) return content_.size() + reasoning_.size() > before;
    content_ += text_field(*delta, "content");
    reasoning_ += text_field(*delta, "reasoning_content");
    const Json* calls = json_find(*delta, "tool_calls");
    const bool called = calls && calls->is_array() && take_calls(calls->as_array());
    return called || content_.size() + reasoning_.size() > before;
}

bool AnswerStream::take_calls(const JsonArray& calls) {
    for (const Json& value : calls) {
        if (!value.is_object()) continue;
        const JsonObject& call = value.as_object();
        const int64_t index = count_field(&call, "index");
        if (index < 0 || index > int64_t(calls_.size())) continue;
        if (index == int64_t(calls_.size())) calls_.emplace_back();
        Call& known = calls_[size_t(index)];
        known.id += text_field(call, "id");
        if (const JsonObject* function = object_field(call, "function")) {
            known.name += text_field(*function, "name");
            known.arguments += text_field(*function, "arguments");
        }
    }
    return !calls.empty();
}

JsonObject AnswerStream::message() const {
    JsonObject message{{"role", "assistant"}, {"content", content_}};
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    JsonArray calls;
    for (const Call& call : calls_)
        calls.push_back(
            JsonObject{{"id", call.id},
                       {"type", "function"},
                       {"function", JsonObject{{"name", call.name}, {"arguments", call.arguments}}}});
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    return message;
}

void AnswerStream::count(LoadResult& result) const {
    result.prompt_tokens = prompt_tokens_;
    result.cached_tokens = cached_tokens_;
    result.completion_tokens = completion_tokens_;
}

LoadResult run_request(HttpClient& client, const LoadRequest& request, const std::string& key,
                       std::chrono::steady_clock::time_point began, double due_s, AnswerStream& answer) {
    LoadResult result;
    result.due_s = due_s;
    const auto now_s = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    ClientEvents events;
    std::string refusal;
    double last = 0;
    const auto body = [&](const ClientResponse& response, std::string_view part) {
        if (response.status() != 200) {
            refusal += part;
            return true;
        }
        const double now = now_s();
        bool piece = false;
        events.push(part, [&](std::string_view data) { piece = answer.take(data) || piece; });
        if (!piece) return true;
        if (result.first_s == 0)
            result.first_s = now;
        else
            result.gaps_s.push_back(now - last);
        last = now;
        return true;
    };
    const Result<ClientResponse> response = client.send({"POST", request.path, request.body, key}, body);
    result.end_s = now_s();
    if (result.first_s == 0) result.first_s = result.end_s;
    answer.count(result);
    if (!response.ok())
        result.error = response.error().message;
    else if (response.value().status() != 200)
        result.error = fmt::format("status {}: {}", response.value().status(), error_text(refusal));
    else if (!answer.error().empty())
        result.error = answer.error();
    else if (!answer.finished())
        result.error = "the stream ended without [DONE]";
    return result;
}

Result<LoadTarget> look_at_server(HttpClient& client, const std::string& model, const std::string& key) {
    LoadTarget target{model, key, {}};
    TRY(const auto listed, client.fetch({"GET", "/v1/models", "", key}));
    if (listed.first != 200)
        return bad_input("/v1/models: status {}: {}", listed.first, error_text(listed.second));
    if (model.empty()) {
        TRY(const Json models, parse_json(listed.second, "/v1/models"));
        TRY(const JsonObject* object, json_object(models, "/v1/models"));
        const Json* data = json_find(*object, "data");
        if (data && data->is_array() && !data->as_array().empty() && data->as_array()[0].is_object())
            target.model = text_field(data->as_array()[0].as_object(), "id");
        if (target.model.empty()) return bad_input("/v1/models lists no model, expected one");
    }
    std::string text;
    for (const char* word : kWords) text.append(1, ' ').append(word);
    const std::string body = to_json(JsonObject{{"content", text}, {"add_special", false}});
    TRY(const auto tokens, client.fetch({"POST", "/tokenize", body, key}));
    const Result<Json> parsed = parse_json(tokens.second, "/tokenize");
    if (tokens.first != 200 || !parsed.ok() || !parsed.value().is_object()) return target;
    const Json* ids = json_find(parsed.value().as_object(), "tokens");
    if (!ids || !ids->is_array()) return target;
    for (const Json& id : ids->as_array())
        if (int64_t value = 0; json_is_int(id, &value)) target.words.push_back(value);
    return target;
}

std::string random_text(int64_t words, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string text;
    for (int64_t i = 0; i < words; ++i) {
        if (i > 0) text += ' ';
        text += kWords[random() % std::size(kWords)];
    }
    return text;
}

LoadRequest completion_request(const LoadTarget& target, int64_t prompt, int64_t generate, uint64_t seed) {
    JsonObject body{{"model", target.model}, {"max_tokens", generate},
                    {"temperature", 0},      {"ignore_eos", true},
                    {"stream", true},        {"stream_options", JsonObject{{"include_usage", true}}}};
    if (target.words.empty()) {
        body["prompt"] = random_text(prompt, seed);
    } else {
        std::mt19937_64 random(seed);
        JsonArray ids;
        for (int64_t i = 0; i < prompt; ++i) ids.push_back(target.words[random() % target.words.size()]);
        body["prompt"] = std::move(ids);
    }
    return {"/v1/completions", to_json(body)};
}

}  // namespace sparkinfer
