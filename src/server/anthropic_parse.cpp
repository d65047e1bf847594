#include "server/anthropic.h"
#include "server/json_fields.h"
#include "server/left_out.h"
#include "server/openai_params.h"

namespace sparkinfer {

namespace {

struct Parser {
    MessagesRequest out = {};
    LeftOut blocks = {}, tools = {};

    ApiResult<void> body(const Fields& body);
    ApiResult<void> system(const Fields& body);
    ApiResult<void> message(const Fields& message);
    ApiResult<void> user_blocks(const JsonArray& content, const std::string& path);
    ApiResult<void> assistant_blocks(const JsonArray& content, const std::string& path, ChatMessage& to);
    ApiResult<ChatMessage> tool_result(const Fields& block);
    ApiResult<std::string> text(const Json& content, const std::string& path);
    ApiResult<std::string> text_block(const Fields& block, const std::string& type);
    ApiResult<void> tool(const Fields& tool);
    ApiResult<void> tool_choice(const Fields& body);
    ApiResult<void> thinking(const Fields& body);
    ApiResult<void> output_format(const Fields& config, std::string_view key);
    ApiResult<void> params(const Fields& body);
};

ApiError no_media(const Fields& block, const std::string& type) {
    return bad_request(block.path(), "{} is {} {}, expected text: this server reads no other content",
                       block.path(), type == "image" ? "an" : "a", type);
}

// The text of a block of that type where it has one; types that nobody knows yet have none.
ApiResult<std::string> Parser::text_block(const Fields& block, const std::string& type) {
    if (type == "text") return block.required_string("text");
    if (type == "tool_reference") return block.required_string("tool_name");
    if (type == "image" || type == "document" || type == "audio" || type == "video")
        return no_media(block, type);
    blocks.add(type);
    return std::string();
}

ApiResult<std::string> Parser::text(const Json& content, const std::string& path) {
    if (content.is_string()) return string_value(content, path);
    if (!content.is_array()) return wrong_field(path, content, "a string or an array of blocks");
    std::string joined;
    for (size_t i = 0; i < content.get_array().size(); ++i) {
        TRY(const Fields block, Fields::element(content.get_array(), path, i));
        TRY(const std::string type, block.required_string("type"));
        TRY(const std::string part, text_block(block, type));
        joined += part;
    }
    return joined;
}

ApiResult<ChatMessage> Parser::tool_result(const Fields& block) {
    ChatMessage result{.role = Role::tool};
    TRY(result.call_id, block.required_string("tool_use_id"));
    TRY(const std::optional<bool> is_error, block.boolean("is_error"));
    result.is_error = is_error.value_or(false);
    if (const Json* content = block.find("content")) {
        TRY(result.content, text(*content, block.at("content")));
    }
    return result;
}

// Results of tools become messages of their own where they stand among the texts.
ApiResult<void> Parser::user_blocks(const JsonArray& content, const std::string& path) {
    std::optional<std::string> pending;
    const auto flush = [&] {
        if (pending) out.chat.messages.push_back({.role = Role::user, .content = std::move(*pending)});
        pending.reset();
    };
    if (content.empty()) pending = "";
    for (size_t i = 0; i < content.size(); ++i) {
        TRY(const Fields block, Fields::element(content, path, i));
        TRY(const std::string type, block.required_string("type"));
        if (type == "tool_result") {
            flush();
            TRY(ChatMessage result, tool_result(block));
            out.chat.messages.push_back(std::move(result));
            continue;
        }
        TRY(const std::string part, text_block(block, type));
        pending = pending.value_or("") + part;
    }
    flush();
    return {};
}

ApiResult<void> Parser::assistant_blocks(const JsonArray& content, const std::string& path, ChatMessage& to) {
    for (size_t i = 0; i < content.size(); ++i) {
        TRY(const Fields block, Fields::element(content, path, i));
        TRY(const std::string type, block.required_string("type"));
        if (type == "tool_use") {
            ToolCall call;
            TRY(call.id, block.required_string("id"));
            TRY(call.name, block.required_string("name"));
            const Json* input = block.find("input");
            if (input && !input->is_object()) return wrong_field(block.at("input"), *input, "an object");
            call.arguments = input ? to_json(*input) : "{}";
            to.calls.push_back(std::move(call));
        } else if (type == "thinking") {
            TRY(const auto thought, block.string("thinking"));
            TRY(const auto signature, block.string("signature"));
            // Without its text only the signature says what was reasoned.
            if (thought && !thought->empty()) to.reasoning = to.reasoning.value_or("") + *thought;
            if (signature && signature->starts_with(kMessagesIdPrefix)) to.id = *signature;
        } else if (type != "redacted_thinking") {
            TRY(const std::string part, text_block(block, type));
            to.content += part;
        }
    }
    return {};
}

ApiResult<void> Parser::message(const Fields& message) {
    TRY(const std::string role, message.required_string("role"));
    const Json* content = message.find("content");
    if (!content) return missing_field(message.at("content"), "a string or an array of blocks");
    const std::string path = message.at("content");
    if (role == "user" && content->is_array()) return user_blocks(content->get_array(), path);
    ChatMessage to;
    if (role == "assistant")
        to.role = Role::assistant;
    else if (role == "system")
        to.role = Role::system;
    else if (role != "user")
        return message.unknown_value("role", role, "user, assistant or system");
    if (role == "assistant" && content->is_array()) {
        TRY_VOID(assistant_blocks(content->get_array(), path, to));
    } else {
        TRY(to.content, text(*content, path));
    }
    out.chat.messages.push_back(std::move(to));
    return {};
}

ApiResult<void> Parser::system(const Fields& body) {
    const Json* system = body.find("system");
    if (!system) return {};
    TRY(std::string joined, text(*system, body.at("system")));
    if (!joined.empty()) out.chat.messages.push_back({.role = Role::system, .content = std::move(joined)});
    return {};
}

// What has a schema is a function of the client's, whatever else stands beside it; the rest would have to be
// run by the server.
ApiResult<void> Parser::tool(const Fields& tool) {
    TRY(const auto type, tool.string("type"));
    if (type && *type != "custom" && !tool.has("input_schema")) {
        tools.add(*type);
        return {};
    }
    ToolSpec spec;
    TRY(spec.name, tool.required_string("name"));
    TRY(const auto description, tool.string("description"));
    TRY(const auto strict, tool.boolean("strict"));
    TRY(const Fields schema, tool.required_fields("input_schema"));
    spec.description = description.value_or("");
    spec.strict = strict.value_or(false);
    spec.parameters = schema.object();
    out.chat.tools.push_back(std::move(spec));
    return {};
}

ApiResult<void> Parser::tool_choice(const Fields& body) {
    TRY(const auto choice, body.fields("tool_choice"));
    if (!choice) return {};
    TRY(const std::string type, choice->required_string("type"));
    TRY(const auto single, choice->boolean("disable_parallel_tool_use"));
    out.chat.parallel_tool_calls = !single.value_or(false);
    if (type == "auto") {
        out.chat.tool_choice.kind = ToolChoice::Kind::automatic;
    } else if (type == "none") {
        out.chat.tool_choice.kind = ToolChoice::Kind::none;
    } else if (type == "any") {
        out.chat.tool_choice.kind = ToolChoice::Kind::required;
    } else if (type == "tool") {
        out.chat.tool_choice.kind = ToolChoice::Kind::named;
        TRY(out.chat.tool_choice.name, choice->required_string("name"));
    } else {
        return choice->unknown_value("type", type, "auto, any, none or tool");
    }
    return {};
}

ApiResult<void> Parser::thinking(const Fields& body) {
    TRY(const auto thinking, body.fields("thinking"));
    if (!thinking) return {};
    TRY(const std::string type, thinking->required_string("type"));
    TRY(const auto budget, thinking->integer("budget_tokens", {0, INT32_MAX}));
    TRY(const auto display, thinking->string("display"));
    if (type == "enabled") out.chat.thinking.enabled = true;
    if (type == "disabled") out.chat.thinking.enabled = false;
    if (budget && type != "disabled") out.chat.thinking.budget = int32_t(*budget);
    out.omit_thinking = display == "omitted";
    return {};
}

ApiResult<void> Parser::output_format(const Fields& config, std::string_view key) {
    TRY(const auto format, config.fields(key));
    if (!format) return {};
    TRY(const std::string type, format->required_string("type"));
    if (type != "json_schema") return format->unknown_value("type", type, "json_schema");
    TRY(const Fields schema, format->required_fields("schema"));
    out.chat.format.kind = ResponseFormat::Kind::json_schema;
    out.chat.format.schema = schema.object();
    return {};
}

ApiResult<void> Parser::params(const Fields& body) {
    AnswerParams& to = out.chat.params;
    TRY(to, parse_answer_params(body));
    to.n = 1;
    TRY(to.max_tokens, body.integer("max_tokens", {0, INT32_MAX}));
    TRY(const std::vector<std::string> stops, body.strings("stop_sequences"));
    if (int64_t(stops.size()) > kMaxStops)
        return bad_request("stop_sequences", "stop_sequences has {} strings, expected at most {}",
                           stops.size(), kMaxStops);
    if (!stops.empty()) to.stop = stops;
    TRY(out.chat.cache_salt, parse_cache_salt(body));
    return {};
}

ApiResult<void> Parser::body(const Fields& body) {
    TRY(const auto model, body.string("model"));
    out.chat.model = model.value_or("");
    TRY(const auto stream, body.boolean("stream"));
    out.stream = stream.value_or(false);
    TRY_VOID(system(body));
    TRY(const JsonArray* messages, body.required_array("messages"));
    if (messages->empty()) return bad_request("messages", "messages is empty, expected at least one message");
    for (size_t i = 0; i < messages->size(); ++i) {
        TRY(const Fields next, Fields::element(*messages, "messages", i));
        TRY_VOID(message(next));
    }
    TRY(const JsonArray* list, body.array("tools"));
    for (size_t i = 0; list && i < list->size(); ++i) {
        TRY(const Fields next, Fields::element(*list, "tools", i));
        TRY_VOID(tool(next));
    }
    TRY_VOID(tool_choice(body));
    TRY_VOID(thinking(body));
    TRY_VOID(output_format(body, "output_format"));
    TRY(const auto config, body.fields("output_config"));
    if (config) {
        TRY(const auto effort, config->string("effort"));
        out.chat.thinking.effort = effort.value_or("");
        TRY_VOID(output_format(*config, "format"));
    }
    TRY_VOID(params(body));
    // An assistant's text at the end is the beginning of the answer.
    const ChatMessage& last = out.chat.messages.back();
    out.chat.continue_final_message = last.role == Role::assistant && last.calls.empty();
    out.chat.add_generation_prompt = !out.chat.continue_final_message;
    blocks.note("blocks of these types are left out of messages", out.notices);
    tools.note("tools that the server would have to run are left out", out.notices);
    return {};
}

}  // namespace

ApiResult<MessagesRequest> parse_messages(const Json& body) {
    TRY(const Fields fields, Fields::of(body, ""));
    Parser parser;
    TRY_VOID(parser.body(fields));
    return std::move(parser.out);
}

}  // namespace sparkinfer
