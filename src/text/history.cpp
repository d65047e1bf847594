#include "text/history.h"

#include <algorithm>
#include <iterator>

#include "core/json.h"

namespace sparkinfer {
namespace {

using Role = HistoryMessage::Role;

const char* role_name(Role role) {
    switch (role) {
        case Role::system: return "system";
        case Role::user: return "user";
        case Role::assistant: return "assistant";
        case Role::tool: return "tool";
    }
    return "user";
}

// Whether the template prints these messages, each once and in their order.
bool prints_in_order(const ChatTemplate& chat, std::span<const HistoryMessage> messages) {
    std::vector<std::string> notices;
    const Result<Rendered> prompt = chat.render(history_json(messages, notices));
    if (!prompt.ok()) return false;
    size_t at = 0;
    for (const HistoryMessage& message : messages) {
        at = prompt.value().text.find(message.content, at);
        if (at == std::string::npos) return false;
        at += message.content.size();
        if (prompt.value().text.find(message.content, at) != std::string::npos) return false;
    }
    return true;
}

void join_texts(std::string& text, std::string_view next) {
    if (!text.empty() && !next.empty()) text += "\n\n";
    text += next;
}

size_t system_messages_first(std::span<const HistoryMessage> messages) {
    size_t count = 0;
    while (count < messages.size() && messages[count].role == Role::system) ++count;
    return count;
}

std::vector<HistoryMessage> arrange_system(std::vector<HistoryMessage> messages,
                                           const TemplateHabits& habits) {
    std::vector<HistoryMessage> out;
    const size_t first = system_messages_first(messages);
    for (size_t i = 0; i < messages.size(); ++i) {
        HistoryMessage& message = messages[i];
        const bool taken = i < first ? habits.system : habits.system_later;
        if (message.role == Role::system && !taken) {
            message.role = Role::user;
            message.content = fmt::format("{}\n{}", kSystemMarker, message.content);
        } else if (message.role == Role::system && i > 0 && i < first && !habits.system_run) {
            join_texts(out.back().content, message.content);
            continue;
        }
        out.push_back(std::move(message));
    }
    return out;
}

std::vector<HistoryMessage> join_users(std::vector<HistoryMessage> messages) {
    std::vector<HistoryMessage> out;
    for (HistoryMessage& message : messages) {
        if (message.role == Role::user && !out.empty() && out.back().role == Role::user)
            join_texts(out.back().content, message.content);
        else
            out.push_back(std::move(message));
    }
    return out;
}

// The calls of messages[caller] that no tool message up to the next assistant message answers. A result
// without an id is the next open call's.
std::vector<const HistoryCall*> unanswered(std::span<const HistoryMessage> messages, size_t caller) {
    std::vector<const HistoryCall*> open;
    for (const HistoryCall& call : messages[caller].calls) open.push_back(&call);
    for (size_t i = caller + 1; i < messages.size() && messages[i].role != Role::assistant; ++i) {
        if (messages[i].role != Role::tool || open.empty()) continue;
        const std::string& id = messages[i].call_id;
        const auto found = std::find_if(
            open.begin(), open.end(), [&](const HistoryCall* call) { return id.empty() || call->id == id; });
        if (found != open.end()) open.erase(found);
    }
    return open;
}

Result<std::vector<HistoryMessage>> fill_results(std::vector<HistoryMessage> messages,
                                                 const HistoryOptions& options,
                                                 std::vector<std::string>& notices) {
    std::vector<HistoryMessage> out;
    std::vector<HistoryMessage> missing;  // to come after the results that are there
    for (size_t i = 0; i < messages.size(); ++i) {
        if (messages[i].role != Role::tool)
            std::move(missing.begin(), missing.end(), std::back_inserter(out));
        if (messages[i].role != Role::tool) missing.clear();
        const bool goes_on = options.continue_final_message && i + 1 == messages.size();
        if (messages[i].role == Role::assistant && !goes_on) {
            for (const HistoryCall* call : unanswered(messages, i)) {
                if (options.refuse_missing_results)
                    return bad_input(
                        "messages[{}]: the call '{}' of '{}' has no result, expected a tool message", i,
                        call->id, call->name);
                notices.push_back(
                    fmt::format("messages[{}]: the call '{}' of '{}' has no result, which the model is told",
                                i, call->id, call->name));
                missing.push_back(
                    {.role = Role::tool, .content = std::string(kMissingResult), .call_id = call->id});
            }
        }
        out.push_back(std::move(messages[i]));
    }
    std::move(missing.begin(), missing.end(), std::back_inserter(out));
    return out;
}

JsonArray calls_json(std::span<const HistoryCall> calls, std::vector<std::string>& notices) {
    JsonArray out;
    for (const HistoryCall& call : calls) {
        JsonObject function{{"name", call.name}, {"arguments", object_arguments(call, notices)}};
        out.push_back(JsonObject{{"id", call.id}, {"type", "function"}, {"function", std::move(function)}});
    }
    return out;
}

// The function whose result a tool message before `end` is; some templates print it.
const HistoryCall* call_of(std::span<const HistoryMessage> messages, size_t end) {
    for (size_t i = end; i-- > 0;)
        for (const HistoryCall& call : messages[i].calls)
            if (call.id == messages[end].call_id) return &call;
    return nullptr;
}

}  // namespace

TemplateHabits template_habits(const ChatTemplate& chat) {
    const HistoryMessage user{.role = Role::user, .content = "first-question"};
    const HistoryMessage answer{.role = Role::assistant, .content = "first-answer"};
    const HistoryMessage next{.role = Role::user, .content = "next-question"};
    const HistoryMessage system{.role = Role::system, .content = "system-text"};
    const HistoryMessage more{.role = Role::system, .content = "more-of-system"};
    return {.system = prints_in_order(chat, std::vector{system, user}),
            .system_run = prints_in_order(chat, std::vector{system, more, user}),
            .system_later = prints_in_order(chat, std::vector{user, answer, system, next}),
            .user_run = prints_in_order(chat, std::vector{user, next})};
}

Result<std::vector<HistoryMessage>> arrange_history(std::vector<HistoryMessage> messages,
                                                    const TemplateHabits& habits,
                                                    const HistoryOptions& options,
                                                    std::vector<std::string>& notices) {
    TRY(messages, fill_results(std::move(messages), options, notices));
    messages = arrange_system(std::move(messages), habits);
    if (!habits.user_run) messages = join_users(std::move(messages));
    return messages;
}

std::string object_arguments(const HistoryCall& call, std::vector<std::string>& notices) {
    if (call.arguments.find_first_not_of(" \t\r\n") == std::string::npos) return "{}";
    const Result<Json> parsed = parse_json(call.arguments, "arguments");
    if (parsed.ok() && parsed.value().is_object()) return call.arguments;
    if (parsed.ok() && parsed.value().is_null()) return "{}";
    notices.push_back(fmt::format(
        "the arguments of the call '{}' of '{}' are {}, expected a JSON object: they are kept as text",
        call.id, call.name, parsed.ok() ? json_type_name(parsed.value()) : "no JSON"));
    return to_json(JsonObject{{"arguments", call.arguments}});
}

std::string history_json(std::span<const HistoryMessage> messages, std::vector<std::string>& notices) {
    JsonArray out;
    for (size_t i = 0; i < messages.size(); ++i) {
        const HistoryMessage& message = messages[i];
        JsonObject object{{"role", role_name(message.role)}, {"content", message.content}};
        if (message.role == Role::assistant) {
            if (message.reasoning) object["reasoning_content"] = *message.reasoning;
            if (!message.calls.empty()) object["tool_calls"] = calls_json(message.calls, notices);
        } else if (message.role == Role::tool) {
            object["tool_call_id"] = message.call_id;
            if (const HistoryCall* call = call_of(messages, i)) object["name"] = call->name;
        }
        out.push_back(std::move(object));
    }
    return to_json(out);
}

}  // namespace sparkinfer
