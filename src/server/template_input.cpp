#include "server/template_input.h"

#include <algorithm>

namespace sparkinfer {
namespace {

const char* role_name(Role role) {
    switch (role) {
        case Role::system: return "system";
        case Role::user: return "user";
        case Role::assistant: return "assistant";
        case Role::tool: return "tool";
    }
    return "?";
}

JsonArray calls_json(const std::vector<ToolCall>& calls) {
    JsonArray array;
    for (const ToolCall& call : calls) {
        JsonObject function;
        function["name"] = call.name;
        function["arguments"] = call.arguments;
        JsonObject entry;
        entry["id"] = call.id;
        entry["type"] = "function";
        entry["function"] = std::move(function);
        array.emplace_back(std::move(entry));
    }
    return array;
}

// The name of the function that a tool message answers, which some templates print.
std::string called_name(const std::vector<ChatMessage>& messages, size_t before, const std::string& id) {
    for (size_t i = before; i-- > 0;)
        for (const ToolCall& call : messages[i].calls)
            if (call.id == id) return call.name;
    return "";
}

JsonObject message_json(const ChatRequest& request, size_t i, const TemplateTraits& traits) {
    const ChatMessage& message = request.messages[i];
    JsonObject object;
    const bool late = message.role == Role::system && i > 0 && !traits.late_system;
    object["role"] = late ? "user" : role_name(message.role);
    object["content"] = late ? traits.system_marker + message.content : message.content;
    if (message.role == Role::assistant) {
        if (message.reasoning) object["reasoning_content"] = *message.reasoning;
        if (!message.calls.empty()) object["tool_calls"] = calls_json(message.calls);
    }
    if (message.role == Role::tool) {
        object["tool_call_id"] = message.call_id;
        if (std::string name = called_name(request.messages, i, message.call_id); !name.empty())
            object["name"] = std::move(name);
    }
    return object;
}

std::string tools_json(const std::vector<ToolSpec>& tools) {
    JsonArray array;
    for (const ToolSpec& tool : tools) {
        JsonObject function;
        function["name"] = tool.name;
        function["description"] = tool.description;
        function["parameters"] = tool.parameters;
        JsonObject entry;
        entry["type"] = "function";
        entry["function"] = std::move(function);
        array.emplace_back(std::move(entry));
    }
    return to_json(Json(std::move(array)));
}

bool mentions(const TemplateTraits& traits, std::string_view word) {
    return traits.source.find(word) != std::string::npos;
}

// An effort in the words of a template: of the levels that one may know, the nearest that it mentions.
std::string effort_word(const std::string& effort, const TemplateTraits& traits) {
    if (effort == "minimal" && !mentions(traits, "minimal")) return "low";
    if (effort == "high" && mentions(traits, "xhigh") && !mentions(traits, "'high'") &&
        !mentions(traits, "\"high\""))
        return "xhigh";
    if ((effort == "xhigh" || effort == "max") && !mentions(traits, effort)) return "high";
    return effort;
}

std::string kwargs_json(const ChatRequest& request, const TemplateTraits& traits) {
    JsonObject kwargs = request.template_kwargs;
    const Thinking& thinking = request.thinking;
    if (thinking.effort == "none")
        kwargs["enable_thinking"] = false;
    else if (thinking.enabled)
        kwargs["enable_thinking"] = *thinking.enabled;
    if (!thinking.effort.empty() && thinking.effort != "none" && mentions(traits, "reasoning_effort") &&
        !kwargs.contains("reasoning_effort"))
        kwargs["reasoning_effort"] = effort_word(thinking.effort, traits);
    return kwargs.empty() ? "" : to_json(Json(std::move(kwargs)));
}

}  // namespace

TemplateInput template_input(const ChatRequest& request, const TemplateTraits& traits) {
    TemplateInput input;
    JsonArray messages;
    for (size_t i = 0; i < request.messages.size(); ++i)
        messages.emplace_back(message_json(request, i, traits));
    input.messages = to_json(Json(std::move(messages)));
    if (!request.tools.empty() && request.tool_choice.kind != ToolChoice::Kind::none)
        input.tools = tools_json(request.tools);
    input.kwargs = kwargs_json(request, traits);
    return input;
}

}  // namespace sparkinfer
