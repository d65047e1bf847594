#include "server/openai_completions.h"

#include "server/errors.h"

namespace sparkinfer {
namespace {

using Kind = AnswerEvent::Kind;
using Prompt = std::variant<std::string, std::vector<TokenId>>;

constexpr const char* kPath = "/v1/completions";
constexpr int64_t kMaxAnswers = 1024;  // prompts × n

ApiResult<std::vector<TokenId>> parse_ids(const JsonArray& array, const std::string& path) {
    std::vector<TokenId> ids;
    ids.reserve(array.size());
    for (size_t i = 0; i < array.size(); ++i) {
        TRY(const int64_t id, int_value(array[i], item_path(path, i), {0, INT32_MAX}));
        ids.push_back(TokenId(int32_t(id)));
    }
    if (ids.empty()) return bad_request(path, "{} is empty, expected at least one token id", path);
    return ids;
}

ApiResult<Prompt> parse_prompt(const Json& value, const std::string& path) {
    if (value.is_string()) {
        TRY(std::string text, string_value(value, path));
        return Prompt(std::move(text));
    }
    const JsonArray* array = value.if_array();
    if (!array) return wrong_field(path, value, "a string or an array of token ids");
    TRY(std::vector<TokenId> ids, parse_ids(*array, path));
    return Prompt(std::move(ids));
}

// A string, a list of token ids, or a list of either.
ApiResult<std::vector<Prompt>> parse_prompts(const Fields& body) {
    const Json* value = body.find("prompt");
    if (!value) return missing_field("prompt", "a string, an array of strings or token ids");
    std::vector<Prompt> prompts;
    const JsonArray* array = value->if_array();
    if (!array || (!array->empty() && array->front().is_number())) {
        TRY(Prompt prompt, parse_prompt(*value, "prompt"));
        prompts.push_back(std::move(prompt));
        return prompts;
    }
    if (array->empty()) return bad_request("prompt", "prompt is empty, expected at least one prompt");
    for (size_t i = 0; i < array->size(); ++i) {
        TRY(Prompt prompt, parse_prompt((*array)[i], item_path("prompt", i)));
        prompts.push_back(std::move(prompt));
    }
    return prompts;
}

ApiResult<void> parse_limits(const Fields& body, AnswerParams* p) {
    TRY(const auto predict, body.integer("n_predict", {-1, INT32_MAX}));
    if (predict && *predict >= 0) p->max_tokens = predict;
    TRY(const auto most, body.integer("max_tokens", {0, INT32_MAX}));  // 0: nothing but the prompt
    if (most) p->max_tokens = most;
    if (p->max_tokens && p->min_tokens > *p->max_tokens)
        return bad_request("min_tokens", "min_tokens is {}, expected at most max_tokens, {}", p->min_tokens,
                           *p->max_tokens);
    TRY(const auto logprobs, body.integer("logprobs", {0, kMaxAlternatives}));
    p->logprobs = int32_t(logprobs.value_or(-1));
    TRY(const auto best_of, body.integer("best_of", {1, kMaxChoices}));
    if (best_of && *best_of != p->n)
        return bad_request("best_of", "best_of is {}, expected n, {}: answers are not ranked", *best_of,
                           p->n);
    return {};
}

ApiResult<void> refuse_suffix(const Fields& body) {
    TRY(const auto suffix, body.string("suffix"));
    if (!suffix || suffix->empty()) return {};
    return bad_request("suffix",
                       "suffix is not supported, expected none: texts are gone on with at their end only");
}

std::string chunk_prefix(const CompletionHead& head) {
    std::string json = to_json(JsonObject{{"id", head.id},
                                          {"object", "text_completion"},
                                          {"created", head.created},
                                          {"model", head.model},
                                          {"system_fingerprint", head.fingerprint}});
    json.pop_back();  // }
    return "data: " + json + ",\"choices\":[";
}

// A token's text. One that is no whole character by its bytes, so that no two of them look the same.
std::string token_text(std::string_view bytes) {
    if (is_utf8(bytes)) return std::string(bytes);
    std::string text = "bytes:";
    for (const char c : bytes) text += fmt::format("\\x{:02x}", uint8_t(c));
    return text;
}

JsonObject choice_json(int32_t index, std::string_view text, Json logprobs) {
    return {{"index", index}, {"text", text}, {"logprobs", std::move(logprobs)}, {"finish_reason", nullptr}};
}

void set_finish(JsonObject* choice, AnswerFinish finish, const std::string& stop) {
    (*choice)["finish_reason"] = finish == AnswerFinish::length ? "length" : "stop";
    (*choice)["stop_reason"] = stop.empty() ? Json(nullptr) : Json(stop);
}

}  // namespace

ApiResult<CompletionCall> parse_completion(const Json& json) {
    TRY(const Fields body, Fields::of(json, ""));
    CompletionCall call;
    TextRequest request;
    TRY(auto model, body.string("model"));
    request.model = std::move(model).value_or("");
    TRY(std::vector<Prompt> prompts, parse_prompts(body));
    TRY_VOID(refuse_unsupported(body));
    TRY_VOID(refuse_suffix(body));
    TRY(call.stream, parse_stream_options(body));
    TRY(request.params, parse_answer_params(body));
    TRY_VOID(parse_limits(body, &request.params));
    TRY(const auto echo, body.boolean("echo"));
    call.echo = request.echo = echo.value_or(false);
    request.prompt_logprobs = request.echo && request.params.logprobs >= 0;
    TRY(request.format, parse_response_format(body));
    TRY(request.cache_salt, parse_cache_salt(body));
    if (int64_t(prompts.size()) * request.params.n > kMaxAnswers)
        return bad_request("prompt", "{} prompts with n = {} make {} answers, expected at most {}",
                           prompts.size(), request.params.n, int64_t(prompts.size()) * request.params.n,
                           kMaxAnswers);
    for (Prompt& prompt : prompts) {
        call.requests.push_back(request);
        call.requests.back().prompt = std::move(prompt);
    }
    return call;
}

void LogprobColumns::add(const TextLogprob& token) {
    const std::string text = token_text(token.bytes);
    tokens_.emplace_back(text);
    offsets_.emplace_back(characters_);
    for (const char c : token.bytes) characters_ += (uint8_t(c) & 0xc0) != 0x80;
    if (!token.logprob) {  // the first token of a prompt: nothing comes before it
        logprobs_.emplace_back(nullptr);
        top_.emplace_back(nullptr);
        return;
    }
    logprobs_.emplace_back(clamp_logprob(*token.logprob));
    JsonObject top;
    for (size_t i = 0; i < token.top.size() && i < token.top_bytes.size(); ++i)
        top[token_text(token.top_bytes[i])] = clamp_logprob(token.top[i].second);
    top[text] = clamp_logprob(*token.logprob);  // the token itself is always among them
    top_.push_back(std::move(top));
}

Json LogprobColumns::take() {
    JsonObject columns{{"tokens", std::move(tokens_)},
                       {"token_logprobs", std::move(logprobs_)},
                       {"top_logprobs", std::move(top_)},
                       {"text_offset", std::move(offsets_)}};
    tokens_ = logprobs_ = top_ = offsets_ = JsonArray();
    return columns;
}

CompletionStream::CompletionStream(CompletionHead head)
    : head_(std::move(head)), prefix_(chunk_prefix(head_)) {}

void CompletionStream::write(const AnswerEvent& event, std::string* out) {
    if (event.usage.prompt_tokens > 0) usage_ = event.usage;
    if (event.kind != Kind::content && event.kind != Kind::finished) return;
    if (event.kind == Kind::content && event.text.empty() && event.logprobs.empty()) return;
    Json logprobs = nullptr;
    if (head_.logprobs && !event.logprobs.empty()) {
        LogprobColumns& columns = columns_[event.choice];
        for (const TextLogprob& token : event.logprobs) columns.add(token);
        logprobs = columns.take();
    }
    JsonObject choice =
        choice_json(event.choice, event.kind == Kind::content ? event.text : "", std::move(logprobs));
    if (event.kind == Kind::finished) set_finish(&choice, event.finish, event.stop);
    *out += prefix_;
    *out += to_json(choice);
    *out += ']';
    if (head_.stream.continuous_usage)
        *out += ",\"usage\":" + to_json(usage_json(usage_));
    else if (head_.stream.include_usage)
        *out += ",\"usage\":null";
    *out += "}\n\n";
}

void CompletionStream::end(const Usage& usage, std::string* out) {
    if (head_.stream.include_usage) *out += prefix_ + "],\"usage\":" + to_json(usage_json(usage)) + "}\n\n";
    *out += "data: [DONE]\n\n";
}

void CompletionStream::fail(const ApiError& error, std::string* out) {
    *out += "data: " + error_body(kPath, error) + "\n\n";
}

void CompletionCollector::write(const AnswerEvent& event, std::string*) {
    Choice& choice = choices_[event.choice];
    if (head_.logprobs)
        for (const TextLogprob& token : event.logprobs) choice.columns.add(token);
    if (event.kind == Kind::content) choice.text += event.text;
    if (event.kind != Kind::finished) return;
    choice.finish = event.finish;
    choice.stop = event.stop;
}

void CompletionCollector::end(const Usage& usage, std::string* out) {
    JsonArray choices;
    for (auto& [index, choice] : choices_) {
        JsonObject json =
            choice_json(index, choice.text, head_.logprobs ? choice.columns.take() : Json(nullptr));
        set_finish(&json, choice.finish, choice.stop);
        choices.push_back(std::move(json));
    }
    *out += to_json(JsonObject{{"id", head_.id},
                               {"object", "text_completion"},
                               {"created", head_.created},
                               {"model", head_.model},
                               {"system_fingerprint", head_.fingerprint},
                               {"choices", std::move(choices)},
                               {"usage", usage_json(usage)}});
}

}  // namespace sparkinfer
