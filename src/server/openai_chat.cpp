#include "server/openai_chat.h"

#include "server/errors.h"

namespace sparkinfer {
namespace {

using Kind = AnswerEvent::Kind;

constexpr const char* kPath = "/v1/chat/completions";

// The beginning of every chunk; what follows is the choices and, where asked for, the usage.
std::string chunk_prefix(const ChatHead& head) {
    std::string json = to_json(JsonObject{{"id", head.id},
                                          {"object", "chat.completion.chunk"},
                                          {"created", head.created},
                                          {"model", head.model},
                                          {"system_fingerprint", head.fingerprint}});
    json.pop_back();  // }
    return "data: " + json + ",\"choices\":[";
}

JsonArray bytes_json(std::string_view bytes) {
    JsonArray out;
    for (const char c : bytes) out.emplace_back(uint8_t(c));
    return out;
}

JsonObject token_json(std::string_view bytes, float logprob) {
    return {{"token", bytes}, {"logprob", clamp_logprob(logprob)}, {"bytes", bytes_json(bytes)}};
}

Json call_json(const ToolCall& call) {
    return JsonObject{{"id", call.id},
                      {"type", "function"},
                      {"function", JsonObject{{"name", call.name}, {"arguments", call.arguments}}}};
}

Json stop_json(const std::string& stop) { return stop.empty() ? Json(nullptr) : Json(stop); }

}  // namespace

const char* chat_finish_reason(AnswerFinish finish, bool has_calls, const ChatHead& head) {
    if (finish == AnswerFinish::length) return "length";
    if (!has_calls || finish == AnswerFinish::cancelled) return "stop";
    return head.calls_end_with_stop ? "stop" : "tool_calls";
}

Json chat_logprobs_json(const std::vector<TextLogprob>& logprobs) {
    JsonArray content;
    for (const TextLogprob& l : logprobs) {
        JsonObject token = token_json(l.bytes, l.logprob.value_or(0));
        JsonArray top;
        for (size_t i = 0; i < l.top.size() && i < l.top_bytes.size(); ++i)
            top.push_back(token_json(l.top_bytes[i], l.top[i].second));
        token["top_logprobs"] = std::move(top);
        content.push_back(std::move(token));
    }
    return JsonObject{{"content", std::move(content)}, {"refusal", nullptr}};
}

ChatStream::ChatStream(ChatHead head) : head_(std::move(head)), prefix_(chunk_prefix(head_)) {}

// One chunk of one choice. `event` gives the logprobs, and at its end the finish.
void ChatStream::chunk(int32_t choice, JsonObject delta, const AnswerEvent& event, std::string* out) {
    JsonObject json{{"index", choice}, {"delta", std::move(delta)}};
    if (head_.logprobs)
        json["logprobs"] = event.logprobs.empty() ? Json(nullptr) : chat_logprobs_json(event.logprobs);
    json["finish_reason"] = nullptr;
    if (event.kind == Kind::finished) {
        json["finish_reason"] = chat_finish_reason(event.finish, choices_[choice].calls > 0, head_);
        json["stop_reason"] = stop_json(event.stop);
    }
    *out += prefix_;
    *out += to_json(json);
    *out += ']';
    if (head_.stream.continuous_usage)
        *out += ",\"usage\":" + to_json(usage_json(usage_));
    else if (head_.stream.include_usage)
        *out += ",\"usage\":null";
    *out += "}\n\n";
}

void ChatStream::write(const AnswerEvent& event, std::string* out) {
    if (event.usage.prompt_tokens > 0) usage_ = event.usage;
    if (event.kind == Kind::started) return;
    if (event.kind == Kind::reasoning && !head_.include_reasoning) return;
    const bool text = event.kind == Kind::reasoning || event.kind == Kind::content;
    if (text && event.text.empty() && event.logprobs.empty()) return;
    Choice& choice = choices_[event.choice];
    if (!choice.begun) {
        // Only now: clients take the first chunk for the first token.
        choice.begun = true;
        chunk(event.choice, {{"role", "assistant"}, {"content", ""}}, {Kind::started}, out);
    }
    if (event.kind == Kind::reasoning)
        return chunk(event.choice, {{"reasoning_content", event.text}}, event, out);
    if (event.kind == Kind::content) return chunk(event.choice, {{"content", event.text}}, event, out);
    if (event.kind == Kind::finished) return chunk(event.choice, {}, event, out);
    write_call(event, choice, out);
}

void ChatStream::write_call(const AnswerEvent& event, Choice& choice, std::string* out) {
    JsonObject call{{"index", event.call}};
    if (event.kind == Kind::call_started) {
        choice.calls++;
        choice.argued = false;
        call["id"] = event.id;
        call["type"] = "function";
        call["function"] = JsonObject{{"name", event.text}, {"arguments", ""}};
    } else {
        const bool nothing = event.kind == Kind::call_finished ? choice.argued : event.text.empty();
        if (nothing) return;
        choice.argued = true;
        // A call without a single piece takes no arguments: that is an empty object, not an empty text.
        const std::string piece = event.kind == Kind::call_finished ? "{}" : event.text;
        call["function"] = JsonObject{{"arguments", piece}};
    }
    chunk(event.choice, {{"tool_calls", JsonArray{std::move(call)}}}, event, out);
}

void ChatStream::end(const Usage& usage, std::string* out) {
    if (head_.stream.include_usage) *out += prefix_ + "],\"usage\":" + to_json(usage_json(usage)) + "}\n\n";
    *out += "data: [DONE]\n\n";
}

// No [DONE] after it: that would say that the answer is whole.
void ChatStream::fail(const ApiError& error, std::string* out) {
    *out += "data: " + error_body(kPath, error) + "\n\n";
}

void ChatCollector::write(const AnswerEvent& event, std::string*) {
    Choice& choice = choices_[event.choice];
    if (event.kind == Kind::reasoning && !head_.include_reasoning) return;
    choice.logprobs.insert(choice.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    switch (event.kind) {
        case Kind::reasoning: choice.reasoning += event.text; break;
        case Kind::content: choice.content += event.text; break;
        case Kind::call_started: choice.calls.push_back({event.id, event.text, ""}); break;
        case Kind::call_arguments:
            if (!choice.calls.empty()) choice.calls.back().arguments += event.text;
            break;
        case Kind::call_finished:
            if (!choice.calls.empty() && choice.calls.back().arguments.empty())
                choice.calls.back().arguments = "{}";
            break;
        case Kind::finished:
            choice.finish = event.finish;
            choice.stop = event.stop;
            break;
        case Kind::started:
        case Kind::failed: break;
    }
}

Json ChatCollector::choice_json(int32_t index, const Choice& c) const {
    JsonObject message{{"role", "assistant"}, {"content", c.content}, {"refusal", nullptr}};
    if (c.content.empty() && !c.calls.empty()) message["content"] = nullptr;
    if (head_.include_reasoning && !c.reasoning.empty()) message["reasoning_content"] = c.reasoning;
    if (!c.calls.empty()) {
        JsonArray calls;
        for (const ToolCall& call : c.calls) calls.push_back(call_json(call));
        message["tool_calls"] = std::move(calls);
    }
    return JsonObject{{"index", index},
                      {"message", std::move(message)},
                      {"logprobs", head_.logprobs ? chat_logprobs_json(c.logprobs) : Json(nullptr)},
                      {"finish_reason", chat_finish_reason(c.finish, !c.calls.empty(), head_)},
                      {"stop_reason", stop_json(c.stop)}};
}

void ChatCollector::end(const Usage& usage, std::string* out) {
    JsonArray choices;
    for (const auto& [index, choice] : choices_) choices.push_back(choice_json(index, choice));
    *out += to_json(JsonObject{{"id", head_.id},
                               {"object", "chat.completion"},
                               {"created", head_.created},
                               {"model", head_.model},
                               {"system_fingerprint", head_.fingerprint},
                               {"choices", std::move(choices)},
                               {"usage", usage_json(usage)}});
}

}  // namespace sparkinfer
