#include "cli/serve_trace.h"

#include <algorithm>

#include "cli/streams.h"

namespace sparkinfer {
namespace {

bool has_role(const JsonObject& message, std::string_view role) {
    const Json* found = json_find(message, "role");
    return found && found->is_string() && std::string_view(found->as_string()) == role;
}

Result<SessionTurn> turn_of(std::string_view line, const std::string& where) {
    TRY(const Json value, parse_json(line, where));
    TRY(const JsonObject* object, json_object(value, where));
    const Json* messages = json_find(*object, "messages");
    if (!messages) return bad_input("{}: 'messages' is missing, expected an array of messages", where);
    TRY(const JsonArray* array, json_array(*messages, where, "messages"));
    SessionTurn turn;
    for (const Json& message : *array) {
        TRY([[maybe_unused]] const JsonObject* checked, json_object(message, where, "a message"));
        turn.messages.push_back(message);
    }
    if (turn.messages.empty()) return bad_input("{}: messages is empty, expected at least one", where);
    if (json_find(*object, "max_tokens")) {
        TRY(turn.max_tokens, json_int(*object, "max_tokens", where));
    }
    if (const Json* tools = json_find(*object, "tools")) turn.tools = *tools;
    return turn;
}

}  // namespace

Result<SessionTrace> read_trace(const std::string& path) {
    TRY(const std::string text, read_text(TextSource{{}, path}, "the trace"));
    SessionTrace trace;
    std::string_view rest = text;
    for (int line = 1; !rest.empty(); ++line) {
        const std::string_view now = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(now.size() + 1, rest.size()));
        if (now.find_first_not_of(" \t\r") == now.npos) continue;
        TRY(SessionTurn turn, turn_of(now, fmt::format("{}:{}", path, line)));
        trace.push_back(std::move(turn));
    }
    if (trace.empty()) return bad_input("{}: no turn, expected one JSON object a line", path);
    return trace;
}

SessionTrace made_trace(int64_t prompt, int64_t turns, int64_t words, uint64_t seed) {
    SessionTrace trace;
    for (int64_t i = 0; i < turns; ++i) {
        SessionTurn turn;
        if (i == 0 && prompt > 0)
            turn.messages.push_back(JsonObject{{"role", "system"}, {"content", random_text(prompt, seed)}});
        const uint64_t turn_seed = seed + uint64_t(i) + 1;
        turn.messages.push_back(JsonObject{{"role", "user"}, {"content", random_text(words, turn_seed)}});
        trace.push_back(std::move(turn));
    }
    return trace;
}

LoadRequest ReplayedSession::request() {
    const SessionTurn& turn = (*trace_)[next_++];
    size_t call = 0;
    const bool recorded = has_role(turn.messages.front().as_object(), "assistant");
    if (answer_ && !recorded) messages_.push_back(*answer_);
    for (const Json& message : turn.messages) append(message.as_object(), call);
    answer_.reset();
    if (turn.tools) tools_ = turn.tools;
    JsonObject body{{"model", target_->model},
                    {"messages", messages_},
                    {"max_tokens", turn.max_tokens.value_or(generate_)},
                    {"temperature", 0},
                    {"stream", true},
                    {"stream_options", JsonObject{{"include_usage", true}}}};
    if (tools_) body["tools"] = *tools_;
    return {"/v1/chat/completions", to_json(body)};
}

void ReplayedSession::append(JsonObject message, size_t& call) {
    if (has_role(message, "tool") && !json_find(message, "tool_call_id")) {
        const Json* calls = answer_ ? json_find(*answer_, "tool_calls") : nullptr;
        const bool known = calls && call < calls->as_array().size();
        message["tool_call_id"] = known ? calls->as_array()[call].as_object().at("id") : Json("none");
        ++call;
    }
    messages_.push_back(std::move(message));
}

}  // namespace sparkinfer
