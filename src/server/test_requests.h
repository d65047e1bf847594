// test_requests.h — canonical requests as JSON, so that tests compare them as texts.
#pragma once
#include "core/json.h"
#include "server/chat.h"

namespace sparkinfer {

inline JsonObject message_json(const ChatMessage& m) {
    static const char* kRoles[] = {"system", "user", "assistant", "tool"};
    JsonObject json = {{"role", kRoles[int(m.role)]}, {"content", m.content}};
    if (m.reasoning) json["reasoning"] = *m.reasoning;
    JsonArray calls;
    for (const ToolCall& c : m.calls)
        calls.push_back(JsonObject{{"id", c.id}, {"name", c.name}, {"arguments", c.arguments}});
    if (!calls.empty()) json["calls"] = std::move(calls);
    if (!m.call_id.empty()) json["call_id"] = m.call_id;
    if (m.is_error) json["is_error"] = true;
    if (!m.id.empty()) json["id"] = m.id;
    return json;
}

// What differs from the default of each field.
inline JsonObject chat_json(const ChatRequest& r) {
    static const char* kChoices[] = {"auto", "none", "required", "named"};
    static const char* kFormats[] = {"text", "json_object", "json_schema", "regex", "choice", "lark"};
    JsonArray messages, tools;
    for (const ChatMessage& m : r.messages) messages.push_back(message_json(m));
    for (const ToolSpec& t : r.tools)
        tools.push_back(JsonObject{{"name", t.name},
                                   {"description", t.description},
                                   {"parameters", t.parameters},
                                   {"strict", t.strict}});
    JsonObject json = {{"model", r.model}, {"messages", std::move(messages)}, {"tools", std::move(tools)}};
    const auto put = [&](const char* key, const auto& value) {
        if (value) json[key] = *value;
    };
    json["tool_choice"] = kChoices[int(r.tool_choice.kind)];
    if (!r.tool_choice.name.empty()) json["tool_name"] = r.tool_choice.name;
    json["parallel_tool_calls"] = r.parallel_tool_calls;
    if (r.format.kind != ResponseFormat::Kind::text) json["format"] = kFormats[int(r.format.kind)];
    if (!r.format.schema.is_null() && r.format.kind == ResponseFormat::Kind::json_schema)
        json["schema"] = r.format.schema;
    put("thinking", r.thinking.enabled);
    if (!r.thinking.effort.empty()) json["effort"] = r.thinking.effort;
    put("thinking_budget", r.thinking.budget);
    if (!r.template_kwargs.empty()) json["template_kwargs"] = r.template_kwargs;
    if (r.continue_final_message) json["continue_final_message"] = true;
    if (!r.add_generation_prompt) json["add_generation_prompt"] = false;
    const AnswerParams& p = r.params;
    put("temperature", p.temperature);
    put("top_p", p.top_p);
    put("top_k", p.top_k);
    put("max_tokens", p.max_tokens);
    put("seed", p.seed);
    JsonArray stop;
    for (const std::string& s : p.stop) stop.emplace_back(s);
    if (!stop.empty()) json["stop"] = std::move(stop);
    if (p.logprobs >= 0) json["logprobs"] = p.logprobs;
    return json;
}

}  // namespace sparkinfer
