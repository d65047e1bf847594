#include "server/errors.h"
#include "server/openai_chat.h"
#include "server/responses.h"
#include "server/sse.h"

namespace sparkinfer {

namespace {

JsonObject responses_usage(const Usage& usage) {
    return {
        {"input_tokens", usage.prompt_tokens},
        {"input_tokens_details",
         JsonObject{{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
        {"output_tokens", usage.completion_tokens},
        {"output_tokens_details", JsonObject{{"reasoning_tokens", usage.reasoning_tokens}}},
        {"total_tokens", int64_t(usage.prompt_tokens) + usage.completion_tokens},
    };
}

JsonObject text_part(std::string_view text, JsonArray logprobs) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", JsonArray{}},
            {"logprobs", std::move(logprobs)}};
}

JsonObject reasoning_part(std::string_view text) { return {{"type", "reasoning_text"}, {"text", text}}; }

}  // namespace

std::string response_of_item(std::string_view item_id) {
    const size_t begin = item_id.find('_'), end = item_id.rfind('_');
    const std::string_view prefix = item_id.substr(0, begin);
    if (begin == end || (prefix != "rs" && prefix != "msg" && prefix != "fc")) return {};
    return std::string("resp_").append(item_id.substr(begin + 1, end - begin - 1));
}

std::string ResponsesAnswer::event(const char* type, JsonObject fields) {
    JsonObject data = {{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : fields) data.emplace(key, std::move(value));
    return sse_event(type, data);
}

// An event of the last item.
std::string ResponsesAnswer::item_event(const char* type, JsonObject fields) {
    JsonObject data = {{"item_id", items_.back().id}, {"output_index", items_.size() - 1}};
    for (auto& [key, value] : fields) data.emplace(key, std::move(value));
    return event(type, std::move(data));
}

std::string ResponsesAnswer::add(const AnswerEvent& e) {
    std::string out;
    if (sequence_ == 0) out = event("response.created", {{"response", response()}});
    switch (e.kind) {
        case AnswerEvent::Kind::started:
            return out + event("response.in_progress", {{"response", response()}});
        case AnswerEvent::Kind::reasoning: return out + grow(Kind::reasoning, e);
        case AnswerEvent::Kind::content: return out + grow(Kind::message, e);
        case AnswerEvent::Kind::call_started:
            return out + open({.kind = Kind::call, .call_id = e.id, .name = e.text});
        case AnswerEvent::Kind::call_arguments: return out + grow(Kind::call, e);
        case AnswerEvent::Kind::call_finished: return out + close("completed");
        case AnswerEvent::Kind::finished: return out + finish(e);
        case AnswerEvent::Kind::failed: return out + fail(e.error);
    }
    return out;
}

std::string ResponsesAnswer::open(Item item) {
    std::string out = close("completed");
    const char* prefix = item.kind == Kind::reasoning ? "rs" : item.kind == Kind::message ? "msg" : "fc";
    const std::string_view answer = std::string_view(head_.id).substr(head_.id.find('_') + 1);
    item.id = fmt::format("{}_{}_{}", prefix, answer, items_.size());
    item.status = "in_progress";
    items_.push_back(std::move(item));
    open_ = true;
    JsonObject empty = item_json(items_.back());
    if (items_.back().kind != Kind::call) empty["content"] = JsonArray{};
    out += event("response.output_item.added",
                 {{"output_index", items_.size() - 1}, {"item", std::move(empty)}});
    if (items_.back().kind == Kind::call) return out;
    return out + item_event("response.content_part.added",
                            {{"content_index", 0}, {"part", part_json(items_.back())}});
}

std::string ResponsesAnswer::grow(Kind kind, const AnswerEvent& e) {
    if (e.text.empty() && (kind != Kind::message || e.logprobs.empty())) return {};
    std::string out;
    if (!open_ || items_.back().kind != kind) out = open({.kind = kind});
    items_.back().text += e.text;
    if (kind == Kind::call)
        return out + item_event("response.function_call_arguments.delta", {{"delta", e.text}});
    JsonObject fields = {{"content_index", 0}, {"delta", e.text}};
    if (kind == Kind::reasoning) return out + item_event("response.reasoning_text.delta", std::move(fields));
    // Those of this piece's tokens; none where nobody asked for them.
    const Json logprobs = chat_logprobs_json(e.logprobs).at("content");
    for (const Json& token : logprobs.get_array()) items_.back().logprobs.push_back(token);
    fields["logprobs"] = logprobs;
    return out + item_event("response.output_text.delta", std::move(fields));
}

std::string ResponsesAnswer::close(const char* status) {
    if (!open_) return {};
    open_ = false;
    Item& item = items_.back();
    item.status = status;
    std::string out;
    if (item.kind == Kind::call) {
        out = item_event("response.function_call_arguments.done",
                         {{"name", item_json(item).at("name")}, {"arguments", item.text}});
    } else {
        JsonObject done = {{"content_index", 0}, {"text", item.text}};
        if (item.kind == Kind::message) done["logprobs"] = item.logprobs;
        out = item_event(
            item.kind == Kind::message ? "response.output_text.done" : "response.reasoning_text.done",
            std::move(done));
        out += item_event("response.content_part.done", {{"content_index", 0}, {"part", part_json(item)}});
    }
    return out + event("response.output_item.done",
                       {{"output_index", items_.size() - 1}, {"item", item_json(item)}});
}

std::string ResponsesAnswer::finish(const AnswerEvent& e) {
    usage_ = responses_usage(e.usage);
    const bool cut = e.finish == AnswerFinish::length;
    std::string out = close(cut ? "incomplete" : "completed");
    status_ = cut ? "incomplete" : "completed";
    if (cut) incomplete_ = JsonObject{{"reason", "max_output_tokens"}};
    return out + event(cut ? "response.incomplete" : "response.completed", {{"response", response()}});
}

std::string ResponsesAnswer::fail(const ApiError& error) {
    std::string out = close("incomplete");
    status_ = "failed";
    const Json said = error_json("/v1/responses", error);
    const JsonObject& inner = said.at("error").get_object();
    const Json& code = inner.at("code");
    error_ =
        JsonObject{{"code", code.is_null() ? Json("server_error") : code}, {"message", inner.at("message")}};
    return out + event("response.failed", {{"response", response()}});
}

JsonObject ResponsesAnswer::part_json(const Item& item) const {
    return item.kind == Kind::message ? text_part(item.text, item.logprobs) : reasoning_part(item.text);
}

JsonObject ResponsesAnswer::item_json(const Item& item) const {
    if (item.kind == Kind::message)
        return {{"id", item.id},
                {"type", "message"},
                {"role", "assistant"},
                {"status", item.status},
                {"content", JsonArray{part_json(item)}}};
    if (item.kind == Kind::reasoning) {
        JsonObject json = {{"id", item.id},
                           {"type", "reasoning"},
                           {"summary", JsonArray{}},
                           {"content", JsonArray{part_json(item)}},
                           {"status", item.status}};
        if (head_.encrypted_reasoning) json["encrypted_content"] = head_.id;
        return json;
    }
    JsonObject json = {{"id", item.id},     {"type", "function_call"}, {"call_id", item.call_id},
                       {"name", item.name}, {"arguments", item.text},  {"status", item.status}};
    if (const auto found = head_.namespaces.find(item.name); found != head_.namespaces.end()) {
        json["namespace"] = found->second.first;
        json["name"] = found->second.second;
    }
    return json;
}

JsonObject ResponsesAnswer::response() const {
    JsonArray output;
    for (const Item& item : items_) output.push_back(item_json(item));
    JsonObject json = {{"id", head_.id},
                       {"object", "response"},
                       {"created_at", head_.created},
                       {"status", status_},
                       {"error", error_},
                       {"incomplete_details", incomplete_},
                       {"model", head_.model},
                       {"output", std::move(output)}};
    for (const auto& [key, value] : head_.echo) json.emplace(key, value);
    json["usage"] = usage_;
    return json;
}

ChatMessage ResponsesAnswer::message() const {
    ChatMessage message{.role = Role::assistant, .id = head_.id};
    for (const Item& item : items_) {
        if (item.kind == Kind::message) message.content += item.text;
        if (item.kind == Kind::reasoning) message.reasoning = message.reasoning.value_or("") + item.text;
        if (item.kind == Kind::call) message.calls.push_back({item.call_id, item.name, item.text});
    }
    return message;
}

}  // namespace sparkinfer
