#include "server/openai_chat.h"

namespace sparkinfer {
namespace {

constexpr int64_t kMaxTokens = INT32_MAX;
constexpr size_t kMaxToolName = 256;

// What a part of a message is that this server cannot read; empty: unknown.
std::string_view part_kind(std::string_view type) {
    if (type == "image_url" || type == "image" || type == "input_image") return "an image";
    if (type == "input_audio" || type == "audio_url" || type == "audio") return "audio";
    if (type == "video_url" || type == "video") return "a video";
    if (type == "file" || type == "input_file") return "a file";
    return {};
}

ApiResult<std::string> parse_part(const Json& value, const std::string& path) {
    if (value.is_string()) return string_value(value, path);
    TRY(const Fields part, Fields::of(value, path));
    TRY(const std::string type, part.required_string("type"));
    if (type == "text" || type == "input_text" || type == "output_text") return part.required_string("text");
    if (type == "refusal") return part.required_string("refusal");
    if (const std::string_view kind = part_kind(type); !kind.empty())
        return bad_request(path, "{} is {} ({}): this model reads text only", path, kind, json_quote(type));
    return part.unknown_value("type", type, "\"text\"");
}

// A string, or parts whose texts are joined; nullopt: null or missing.
ApiResult<std::optional<std::string>> parse_content(const Fields& message) {
    const Json* value = message.find("content");
    if (!value) return std::optional<std::string>();
    if (value->is_string()) return message.string("content");
    const JsonArray* parts = value->if_array();
    if (!parts) return wrong_field(message.at("content"), *value, "a string or an array of parts");
    std::string joined;
    for (size_t i = 0; i < parts->size(); ++i) {
        TRY(const std::string text, parse_part((*parts)[i], item_path(message.at("content"), i)));
        joined += text;
    }
    return std::optional(std::move(joined));
}

ApiResult<ToolCall> parse_call(const Fields& call) {
    TRY(const auto type, call.string("type"));
    if (type && *type != "function") return call.unknown_value("type", *type, "\"function\"");
    ToolCall out;
    TRY(const auto id, call.string("id"));
    out.id = id.value_or("");
    TRY(const Fields function, call.required_fields("function"));
    TRY(out.name, function.required_string("name"));
    const Json* arguments = function.find("arguments");
    if (!arguments) return out;
    // OpenAI has the text of an object here; some clients send the object itself.
    if (arguments->is_object()) {
        out.arguments = to_json(*arguments);
        return out;
    }
    if (!arguments->is_string())
        return wrong_field(function.at("arguments"), *arguments, "a string of JSON or an object");
    TRY(out.arguments, string_value(*arguments, function.at("arguments")));
    return out;
}

ApiResult<void> parse_assistant(const Fields& fields, ChatMessage* message) {
    if (fields.has("function_call"))
        return bad_request(fields.at("function_call"),
                           "{} is the old form of tool calls, expected tool_calls",
                           fields.at("function_call"));
    for (const char* key : {"reasoning_content", "reasoning"}) {
        TRY(auto reasoning, fields.string(key));
        if (!message->reasoning) message->reasoning = std::move(reasoning);
    }
    TRY(const JsonArray* calls, fields.array("tool_calls"));
    for (size_t i = 0; calls && i < calls->size(); ++i) {
        TRY(const Fields call, Fields::element(*calls, fields.at("tool_calls"), i));
        TRY(ToolCall parsed, parse_call(call));
        message->calls.push_back(std::move(parsed));
    }
    return {};
}

ApiResult<Role> parse_role(const Fields& fields) {
    TRY(const std::string role, fields.required_string("role"));
    if (role == "system" || role == "developer") return Role::system;
    if (role == "user") return Role::user;
    if (role == "assistant") return Role::assistant;
    if (role == "tool") return Role::tool;
    if (role == "function")
        return bad_request(fields.at("role"), "{} is \"function\", the old form, expected \"tool\"",
                           fields.at("role"));
    return fields.unknown_value("role", role,
                                "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
}

ApiResult<ChatMessage> parse_message(const Fields& fields) {
    ChatMessage message;
    TRY(message.role, parse_role(fields));
    TRY(auto content, parse_content(fields));
    const bool may_lack = message.role == Role::assistant || message.role == Role::tool;
    if (!content && !may_lack) return missing_field(fields.at("content"), "a string or an array of parts");
    message.content = std::move(content).value_or("");
    if (message.role == Role::assistant) TRY_VOID(parse_assistant(fields, &message));
    if (message.role == Role::tool) {
        TRY(const auto id, fields.string("tool_call_id"));
        message.call_id = id.value_or("");
    }
    return message;
}

ApiResult<ToolSpec> parse_tool(const Fields& tool) {
    TRY(const std::string type, tool.required_string("type"));
    if (type != "function") return tool.unknown_value("type", type, "\"function\"");
    TRY(const Fields function, tool.required_fields("function"));
    ToolSpec spec;
    TRY(spec.name, function.required_string("name"));
    if (spec.name.empty() || spec.name.size() > kMaxToolName)
        return bad_request(function.at("name"), "{} has {} bytes, expected 1 to {}", function.at("name"),
                           spec.name.size(), kMaxToolName);
    TRY(auto description, function.string("description"));
    spec.description = std::move(description).value_or("");
    TRY(const auto strict, function.boolean("strict"));
    spec.strict = strict.value_or(false);
    TRY(const auto parameters, function.fields("parameters"));
    // A function without parameters takes an empty object.
    spec.parameters =
        parameters ? parameters->object() : JsonObject{{"type", "object"}, {"properties", JsonObject{}}};
    return spec;
}

ApiResult<ToolChoice> named_tool(const Fields& choice, const std::vector<ToolSpec>& tools) {
    TRY(const Fields function, choice.required_fields("function"));
    ToolChoice named{ToolChoice::Kind::named};
    TRY(named.name, function.required_string("name"));
    for (const ToolSpec& tool : tools)
        if (tool.name == named.name) return named;
    return function.unknown_value("name", named.name, "the name of one of the tools");
}

// A word, or an object of that type.
ApiResult<ToolChoice> parse_tool_choice(const Fields& body, const std::vector<ToolSpec>& tools) {
    using Kind = ToolChoice::Kind;
    const Json* value = body.find("tool_choice");
    if (!value) return ToolChoice{};
    const Fields* at = &body;
    std::string_view key = "tool_choice";
    std::optional<Fields> choice;
    std::string word;
    if (value->is_string()) {
        TRY(word, string_value(*value, body.at(key)));
    } else {
        TRY(choice, body.fields(key));
        at = &*choice;
        key = "type";
        TRY(word, choice->required_string(key));
        if (word == "function") return named_tool(*choice, tools);
    }
    if (word == "auto") return ToolChoice{};
    if (word == "none") return ToolChoice{Kind::none};
    if (word != "required")
        return at->unknown_value(
            key, word, R"("auto", "none", "required" or {"type": "function", "function": {"name": …}})");
    if (tools.empty())
        return bad_request(body.at("tool_choice"), "tool_choice is \"required\" and there are no tools");
    return ToolChoice{Kind::required};
}

ApiResult<void> refuse_old_functions(const Fields& body) {
    for (const auto& [old, now] :
         {std::pair("functions", "tools"), std::pair("function_call", "tool_choice")})
        if (body.has(old))
            return bad_request(body.at(old), "{} is the old form and is not supported, expected {}", old,
                               now);
    return {};
}

// reasoning_effort's words. "none" turns reasoning off.
ApiResult<void> take_effort(const Fields& from, std::string_view key, Thinking* thinking) {
    TRY(auto effort, from.string(key));
    if (!effort) return {};
    for (const char* known : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
        if (*effort != known) continue;
        if (*effort == "none")
            thinking->enabled = false;
        else
            thinking->effort = *effort;
        return {};
    }
    return from.unknown_value(key, *effort,
                              "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
}

ApiResult<void> take_budget(const Fields& from, std::string_view key, Thinking* thinking) {
    TRY(const auto budget, from.integer(key, {-1, kMaxTokens}));
    if (budget && *budget >= 0) thinking->budget = int32_t(*budget);  // -1: no limit
    return {};
}

// {"type": "enabled" | "disabled", "budget_tokens": n}
ApiResult<void> take_thinking(const Fields& body, Thinking* thinking) {
    TRY(const auto fields, body.fields("thinking"));
    if (!fields) return {};
    TRY(const std::string type, fields->required_string("type"));
    if (type != "enabled" && type != "disabled" && type != "adaptive")
        return fields->unknown_value("type", type, "\"enabled\", \"disabled\" or \"adaptive\"");
    if (type != "adaptive") thinking->enabled = type == "enabled";
    return take_budget(*fields, "budget_tokens", thinking);
}

// Every spelling of: whether, how hard and how long to think.
ApiResult<void> parse_thinking(const Fields& body, ChatRequest* request) {
    Thinking* t = &request->thinking;
    TRY(const auto kwargs, body.fields("chat_template_kwargs"));
    if (kwargs) {
        request->template_kwargs = kwargs->object();
        TRY(t->enabled, kwargs->boolean("enable_thinking"));
        request->template_kwargs.erase("enable_thinking");  // one place says it: `thinking`
    }
    TRY(const auto enabled, body.boolean("enable_thinking"));
    if (enabled) t->enabled = enabled;
    TRY_VOID(take_thinking(body, t));
    TRY_VOID(take_effort(body, "reasoning_effort", t));
    for (const char* key :
         {"thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget"})
        TRY_VOID(take_budget(body, key, t));
    TRY(const auto reasoning, body.fields("reasoning"));
    if (!reasoning) return {};
    TRY_VOID(take_effort(*reasoning, "effort", t));
    TRY_VOID(take_budget(*reasoning, "max_tokens", t));
    TRY(const auto on, reasoning->boolean("enabled"));
    if (on) t->enabled = on;
    return {};
}

// Whether the reasoning is told.
ApiResult<bool> parse_include_reasoning(const Fields& body) {
    TRY(const auto include, body.boolean("include_reasoning"));
    if (include) return *include;
    TRY(const auto reasoning, body.fields("reasoning"));
    if (!reasoning) return true;
    TRY(const auto exclude, reasoning->boolean("exclude"));
    return !exclude.value_or(false);
}

ApiResult<void> parse_limits(const Fields& body, AnswerParams* p) {
    // The newest spelling counts; llama.cpp's n_predict may say -1, no limit.
    TRY(const auto predict, body.integer("n_predict", {-1, kMaxTokens}));
    if (predict && *predict >= 0) p->max_tokens = predict;
    for (const char* key : {"max_tokens", "max_completion_tokens"}) {
        TRY(const auto most, body.integer(key, {1, kMaxTokens}));
        if (most) p->max_tokens = most;
    }
    if (p->max_tokens && p->min_tokens > *p->max_tokens)
        return bad_request(body.at("min_tokens"), "min_tokens is {}, expected at most max_tokens, {}",
                           p->min_tokens, *p->max_tokens);
    TRY(const auto logprobs, body.boolean("logprobs"));
    TRY(const auto top, body.integer("top_logprobs", {0, kMaxAlternatives}));
    if (top && *top > 0 && !logprobs.value_or(false))
        return bad_request(body.at("top_logprobs"),
                           "top_logprobs is {}, expected logprobs to be true with it", *top);
    if (logprobs.value_or(false)) p->logprobs = int32_t(top.value_or(0));
    return {};
}

ApiResult<std::vector<ChatMessage>> parse_messages(const JsonArray& messages) {
    if (messages.empty()) return bad_request("messages", "messages is empty, expected at least one message");
    std::vector<ChatMessage> out;
    out.reserve(messages.size());
    for (size_t i = 0; i < messages.size(); ++i) {
        TRY(const Fields fields, Fields::element(messages, "messages", i));
        TRY(ChatMessage message, parse_message(fields));
        out.push_back(std::move(message));
    }
    return out;
}

ApiResult<std::vector<ToolSpec>> parse_tools(const Fields& body) {
    std::vector<ToolSpec> out;
    TRY(const JsonArray* tools, body.array("tools"));
    for (size_t i = 0; tools && i < tools->size(); ++i) {
        TRY(const Fields tool, Fields::element(*tools, body.at("tools"), i));
        TRY(ToolSpec spec, parse_tool(tool));
        out.push_back(std::move(spec));
    }
    return out;
}

}  // namespace

ApiResult<void> parse_conversation(const Fields& body, ChatRequest* r) {
    TRY(auto model, body.string("model"));
    r->model = std::move(model).value_or("");
    TRY(const JsonArray* messages, body.required_array("messages"));
    TRY(r->messages, parse_messages(*messages));
    TRY_VOID(refuse_old_functions(body));
    TRY(r->tools, parse_tools(body));
    TRY(r->tool_choice, parse_tool_choice(body, r->tools));
    TRY(const auto parallel, body.boolean("parallel_tool_calls"));
    r->parallel_tool_calls = parallel.value_or(true);
    TRY_VOID(parse_thinking(body, r));
    TRY(const auto go_on, body.boolean("continue_final_message"));
    r->continue_final_message = go_on.value_or(false);
    if (r->continue_final_message && r->messages.back().role != Role::assistant)
        return bad_request(body.at("continue_final_message"),
                           "continue_final_message is true, expected the last message to be the assistant's");
    TRY(const auto generation, body.boolean("add_generation_prompt"));
    if (r->continue_final_message && generation.value_or(false))
        return bad_request(
            body.at("add_generation_prompt"),
            "add_generation_prompt and continue_final_message are both true, expected one of them");
    r->add_generation_prompt = generation.value_or(!r->continue_final_message);
    return {};
}

ApiResult<ChatCall> parse_chat(const Json& json) {
    TRY(const Fields body, Fields::of(json, ""));
    ChatCall call;
    TRY_VOID(parse_conversation(body, &call.request));
    TRY_VOID(refuse_unsupported(body));
    TRY(call.stream, parse_stream_options(body));
    TRY(call.request.params, parse_answer_params(body));
    TRY_VOID(parse_limits(body, &call.request.params));
    TRY(call.request.format, parse_response_format(body));
    TRY(call.request.cache_salt, parse_cache_salt(body));
    TRY(call.include_reasoning, parse_include_reasoning(body));
    return call;
}

}  // namespace sparkinfer
