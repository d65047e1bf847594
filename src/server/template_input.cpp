#include "server/template_input.h"

#include <algorithm>

namespace sparkinfer {
namespace {

HistoryMessage::Role history_role(Role role) {
    switch (role) {
        case Role::system: return HistoryMessage::Role::system;
        case Role::user: return HistoryMessage::Role::user;
        case Role::assistant: return HistoryMessage::Role::assistant;
        case Role::tool: return HistoryMessage::Role::tool;
    }
    return HistoryMessage::Role::user;
}

HistoryMessage history_message(const ChatMessage& from) {
    HistoryMessage to;
    to.role = history_role(from.role);
    to.content = from.content;
    to.reasoning = from.reasoning;
    for (const ToolCall& call : from.calls) to.calls.push_back({call.id, call.name, call.arguments});
    to.call_id = from.call_id;
    return to;
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

ApiResult<TemplateInput> template_input(const ChatRequest& request, const TemplateTraits& traits) {
    TemplateInput input;
    std::vector<HistoryMessage> history;
    for (const ChatMessage& message : request.messages) history.push_back(history_message(message));
    HistoryOptions options;
    options.continue_final_message = request.continue_final_message;
    auto arranged = arrange_history(std::move(history), traits.habits, options, input.notices);
    if (!arranged.ok()) return bad_request("messages", "{}", arranged.error().message);
    input.messages = history_json(arranged.value(), input.notices);
    if (!request.tools.empty() && request.tool_choice.kind != ToolChoice::Kind::none)
        input.tools = tools_json(request.tools);
    input.kwargs = kwargs_json(request, traits);
    return input;
}

}  // namespace sparkinfer
