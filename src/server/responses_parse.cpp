#include <algorithm>

#include "server/json_fields.h"
#include "server/left_out.h"
#include "server/openai_params.h"
#include "server/responses.h"

namespace sparkinfer {

namespace {

struct Parser {
    const ItemLookup& lookup;
    ResponsesRequest out = {};
    LeftOut items = {}, parts = {}, tools = {}, twins = {};
    bool answering = false;  // the last message is an assistant's that the next item may belong to

    ApiResult<void> body(const Fields& body);
    ApiResult<void> refused(const Fields& body);
    ApiResult<void> input(const Fields& body);
    ApiResult<void> item(const Fields& item);
    ApiResult<void> message(const Fields& item);
    ApiResult<void> reasoning(const Fields& item);
    ApiResult<void> call(const Fields& item);
    ApiResult<void> call_output(const Fields& item);
    ApiResult<std::string> text(const Json& content, const std::string& path);
    ChatMessage& answer(const std::string& id, bool fits);
    ApiResult<void> tool_list(const Fields& body);
    ApiResult<void> tool(const Fields& tool, const std::string& space);
    ApiResult<void> tool_choice(const Fields& body);
    ApiResult<void> allowed_tools(const Fields& choice);
    ApiResult<void> format(const Fields& body);
    ApiResult<void> params(const Fields& body);
    void echo(const Fields& body);
};

std::string offered_name(const std::string& space, const std::string& name) {
    return space.empty() ? name : space + "__" + name;
}

// The text of a list of parts; `input_text`, `output_text`, `reasoning_text`, … all have it in `text`.
ApiResult<std::string> Parser::text(const Json& content, const std::string& path) {
    if (content.is_string()) return string_value(content, path);
    if (!content.is_array()) return wrong_field(path, content, "a string or an array of parts");
    std::string joined;
    for (size_t i = 0; i < content.get_array().size(); ++i) {
        TRY(const Fields part, Fields::element(content.get_array(), path, i));
        TRY(const std::string type, part.required_string("type"));
        if (type == "text" || type.ends_with("_text")) {
            TRY(const std::string text, part.required_string("text"));
            joined += text;
        } else if (type == "refusal") {
            TRY(const std::string text, part.required_string("refusal"));
            joined += text;
        } else if (type == "input_image" || type == "input_file" || type == "input_audio") {
            return bad_request(part.path(), "{} is '{}', expected text: this server reads no other content",
                               part.path(), type);
        } else {
            parts.add(type);
        }
    }
    return joined;
}

// The message that an item of the model's belongs to. An answer's items name it; of others one `fits` into
// the message before it or begins one.
ChatMessage& Parser::answer(const std::string& id, bool fits) {
    ChatMessage* last = answering ? &out.chat.messages.back() : nullptr;
    const bool same = last && !id.empty() && id == last->id;
    const bool other = last && !id.empty() && !last->id.empty() && id != last->id;
    if (!last || other || (!same && !fits))
        last = &out.chat.messages.emplace_back(ChatMessage{.role = Role::assistant});
    if (last->id.empty()) last->id = id;
    answering = true;
    return *last;
}

ApiResult<void> Parser::message(const Fields& item) {
    TRY(const std::string role, item.required_string("role"));
    const Json* content = item.find("content");
    if (!content) return missing_field(item.at("content"), "a string or an array of parts");
    TRY(std::string said, text(*content, item.at("content")));
    if (role == "assistant") {
        TRY(const auto id, item.string("id"));
        const bool fits =
            answering && out.chat.messages.back().content.empty() && out.chat.messages.back().calls.empty();
        answer(response_of_item(id.value_or("")), fits).content += said;
        return {};
    }
    ChatMessage to{.role = Role::user, .content = std::move(said)};
    if (role == "system" || role == "developer")
        to.role = Role::system;
    else if (role != "user")
        return item.unknown_value("role", role, "user, assistant, system or developer");
    out.chat.messages.push_back(std::move(to));
    answering = false;
    return {};
}

ApiResult<void> Parser::reasoning(const Fields& item) {
    TRY(const auto id, item.string("id"));
    TRY(const auto encrypted, item.string("encrypted_content"));
    std::string thought;
    if (const Json* content = item.find("content")) {
        TRY(thought, text(*content, item.at("content")));
    }
    std::string answer_id = response_of_item(id.value_or(""));
    if (encrypted && encrypted->starts_with(kResponsesIdPrefix)) answer_id = *encrypted;
    ChatMessage& to = answer(answer_id, false);
    // Without its text only the id says what was reasoned.
    if (!thought.empty()) to.reasoning = to.reasoning.value_or("") + thought;
    return {};
}

ApiResult<void> Parser::call(const Fields& item) {
    ToolCall call;
    TRY(const auto id, item.string("id"));
    TRY(call.id, item.required_string("call_id"));
    TRY(const std::string name, item.required_string("name"));
    TRY(const auto space, item.string("namespace"));
    TRY(call.arguments, item.required_string("arguments"));
    call.name = offered_name(space.value_or(""), name);
    answer(response_of_item(id.value_or("")), true).calls.push_back(std::move(call));
    return {};
}

ApiResult<void> Parser::call_output(const Fields& item) {
    ChatMessage to{.role = Role::tool};
    TRY(to.call_id, item.required_string("call_id"));
    const Json* output = item.find("output");
    if (!output) return missing_field(item.at("output"), "a string or an array of parts");
    TRY(to.content, text(*output, item.at("output")));
    out.chat.messages.push_back(std::move(to));
    answering = false;
    return {};
}

ApiResult<void> Parser::item(const Fields& item) {
    TRY(const auto type, item.string("type"));
    if (!type || *type == "message") return message(item);
    if (*type == "function_call") return call(item);
    if (*type == "function_call_output") return call_output(item);
    if (*type == "reasoning") return reasoning(item);
    if (*type == "item_reference") {
        TRY(const std::string id, item.required_string("id"));
        const std::optional<JsonObject> found = lookup(id);
        if (!found)
            return bad_request(item.at("id"), "{} is '{}', which is not stored here", item.at("id"), id);
        return this->item(Fields(*found, item.path()));
    }
    items.add(*type);
    return {};
}

ApiResult<void> Parser::input(const Fields& body) {
    const Json* input = body.find("input");
    if (!input) return missing_field("input", "a string or an array of items");
    if (input->is_string()) {
        TRY(std::string text, string_value(*input, "input"));
        out.chat.messages.push_back({.role = Role::user, .content = std::move(text)});
        return {};
    }
    if (!input->is_array()) return wrong_field("input", *input, "a string or an array of items");
    for (size_t i = 0; i < input->get_array().size(); ++i) {
        TRY(const Fields next, Fields::element(input->get_array(), "input", i));
        TRY_VOID(item(next));
    }
    return {};
}

ApiResult<void> Parser::tool(const Fields& tool, const std::string& space) {
    TRY(const std::string type, tool.required_string("type"));
    if (type == "namespace" && space.empty()) {
        TRY(const std::string name, tool.required_string("name"));
        TRY(const JsonArray* nested, tool.required_array("tools"));
        for (size_t i = 0; i < nested->size(); ++i) {
            TRY(const Fields next, Fields::element(*nested, tool.at("tools"), i));
            TRY_VOID(this->tool(next, name));
        }
        return {};
    }
    if (type != "function") {
        tools.add(type);
        return {};
    }
    ToolSpec spec;
    TRY(const std::string name, tool.required_string("name"));
    TRY(const auto description, tool.string("description"));
    TRY(const auto strict, tool.boolean("strict"));
    TRY(const auto parameters, tool.fields("parameters"));
    spec.name = offered_name(space, name);
    spec.description = description.value_or("");
    spec.strict = strict.value_or(false);
    if (parameters) spec.parameters = parameters->object();
    const auto same = [&](const ToolSpec& other) { return other.name == spec.name; };
    if (std::any_of(out.chat.tools.begin(), out.chat.tools.end(), same)) {
        twins.add(spec.name);
        return {};
    }
    if (!space.empty()) out.namespaces[spec.name] = {space, name};
    out.chat.tools.push_back(std::move(spec));
    return {};
}

ApiResult<void> Parser::tool_list(const Fields& body) {
    TRY(const JsonArray* list, body.array("tools"));
    for (size_t i = 0; list && i < list->size(); ++i) {
        TRY(const Fields next, Fields::element(*list, "tools", i));
        TRY_VOID(tool(next, ""));
    }
    return {};
}

// Only these may be called: the others are not offered.
ApiResult<void> Parser::allowed_tools(const Fields& choice) {
    TRY(const auto mode, choice.string("mode"));
    TRY(const JsonArray* list, choice.required_array("tools"));
    std::vector<std::string> names;
    for (size_t i = 0; i < list->size(); ++i) {
        TRY(const Fields next, Fields::element(*list, choice.at("tools"), i));
        TRY(const auto name, next.string("name"));
        TRY(const auto space, next.string("namespace"));
        if (name) names.push_back(offered_name(space.value_or(""), *name));
    }
    std::erase_if(out.chat.tools, [&](const ToolSpec& tool) {
        return std::find(names.begin(), names.end(), tool.name) == names.end();
    });
    if (mode == "required")
        out.chat.tool_choice.kind = ToolChoice::Kind::required;
    else if (mode && mode != "auto")
        return choice.unknown_value("mode", *mode, "auto or required");
    return {};
}

ApiResult<void> Parser::tool_choice(const Fields& body) {
    const Json* value = body.find("tool_choice");
    if (!value) return {};
    ToolChoice& to = out.chat.tool_choice;
    if (value->is_string()) {
        TRY(const std::string word, string_value(*value, "tool_choice"));
        if (word == "none")
            to.kind = ToolChoice::Kind::none;
        else if (word == "required")
            to.kind = ToolChoice::Kind::required;
        else if (word != "auto")
            return body.unknown_value("tool_choice", word, "auto, none, required or an object");
        return {};
    }
    TRY(const Fields choice, Fields::of(*value, "tool_choice"));
    TRY(const std::string type, choice.required_string("type"));
    if (type == "allowed_tools") return allowed_tools(choice);
    if (type != "function") return choice.unknown_value("type", type, "function or allowed_tools");
    TRY(const std::string name, choice.required_string("name"));
    TRY(const auto space, choice.string("namespace"));
    to.kind = ToolChoice::Kind::named;
    to.name = offered_name(space.value_or(""), name);
    return {};
}

ApiResult<void> Parser::format(const Fields& body) {
    TRY(const auto text, body.fields("text"));
    if (!text) return {};
    TRY(const auto format, text->fields("format"));
    if (!format) return {};
    TRY(const std::string type, format->required_string("type"));
    if (type == "json_object") {
        out.chat.format.kind = ResponseFormat::Kind::json_object;
    } else if (type == "json_schema") {
        TRY(const Fields schema, format->required_fields("schema"));
        out.chat.format.kind = ResponseFormat::Kind::json_schema;
        out.chat.format.schema = schema.object();
    } else if (type != "text") {
        return format->unknown_value("type", type, "text, json_object or json_schema");
    }
    return {};
}

ApiResult<void> Parser::params(const Fields& body) {
    AnswerParams& to = out.chat.params;
    TRY(to, parse_answer_params(body));
    to.n = 1;
    TRY(to.max_tokens, body.integer("max_output_tokens", {1, INT32_MAX}));
    TRY(out.chat.cache_salt, parse_cache_salt(body));
    TRY(const auto parallel, body.boolean("parallel_tool_calls"));
    out.chat.parallel_tool_calls = parallel.value_or(true);
    TRY(const std::vector<std::string> include, body.strings("include"));
    const auto asked = [&](const char* what) {
        return std::find(include.begin(), include.end(), what) != include.end();
    };
    TRY(const auto alternatives, body.integer("top_logprobs", {0, kMaxAlternatives}));
    if (alternatives || asked("message.output_text.logprobs"))
        to.logprobs = int32_t(alternatives.value_or(0));
    out.encrypted_reasoning = asked("reasoning.encrypted_content");
    TRY(const auto reasoning, body.fields("reasoning"));
    if (reasoning) {
        TRY(const auto effort, reasoning->string("effort"));
        if (effort == "none") out.chat.thinking.enabled = false;
        if (effort && effort != "none") out.chat.thinking.effort = *effort;
    }
    return {};
}

ApiResult<void> Parser::refused(const Fields& body) {
    TRY(const auto truncation, body.string("truncation"));
    if (truncation && *truncation != "disabled")
        return bad_request(
            "truncation", "truncation is '{}', expected disabled: nothing is cut from a prompt", *truncation);
    TRY(const auto background, body.boolean("background"));
    if (background.value_or(false))
        return bad_request("background",
                           "background is true, expected false: answers are not made unattended");
    for (const char* key : {"conversation", "prompt"})
        if (body.has(key))
            return bad_request(key,
                               "{} is not supported here; send the conversation in input, or "
                               "previous_response_id",
                               key);
    return {};
}

void Parser::echo(const Fields& body) {
    const auto as_sent = [&](const char* key, Json otherwise) {
        const Json* value = body.find(key);
        out.echo[key] = value ? *value : std::move(otherwise);
    };
    for (const char* key : {"instructions", "max_output_tokens"}) as_sent(key, nullptr);
    as_sent("metadata", JsonObject{});
    as_sent("parallel_tool_calls", true);
    as_sent("previous_response_id", nullptr);
    as_sent("reasoning", JsonObject{{"effort", nullptr}, {"summary", nullptr}});
    out.echo["store"] = out.store;
    as_sent("temperature", nullptr);
    as_sent("text", JsonObject{{"format", JsonObject{{"type", "text"}}}});
    as_sent("tool_choice", "auto");
    as_sent("tools", JsonArray{});
    as_sent("top_logprobs", 0);
    as_sent("top_p", nullptr);
    out.echo["truncation"] = "disabled";
    out.echo["background"] = false;
    as_sent("user", nullptr);
}

ApiResult<void> Parser::body(const Fields& body) {
    TRY(const auto model, body.string("model"));
    out.chat.model = model.value_or("");
    TRY_VOID(refused(body));
    TRY(const auto stream, body.boolean("stream"));
    TRY(const auto store, body.boolean("store"));
    TRY(const auto previous, body.string("previous_response_id"));
    TRY(const auto instructions, body.string("instructions"));
    TRY(const auto metadata, body.fields("metadata"));
    out.stream = stream.value_or(false);
    out.store = store.value_or(true);
    out.previous = previous.value_or("");
    out.instructions = instructions.value_or("");
    TRY_VOID(input(body));
    TRY_VOID(tool_list(body));
    TRY_VOID(tool_choice(body));
    TRY_VOID(format(body));
    TRY_VOID(params(body));
    echo(body);
    items.note("items of these types are left out of input", out.notices);
    parts.note("parts of these types are left out of input", out.notices);
    tools.note("tools of these types are left out", out.notices);
    twins.note("tools of these names are offered twice, the first is taken", out.notices);
    return {};
}

}  // namespace

ApiResult<ResponsesRequest> parse_responses(const Json& body, const ItemLookup& lookup) {
    TRY(const Fields fields, Fields::of(body, ""));
    Parser parser{lookup};
    TRY_VOID(parser.body(fields));
    return std::move(parser.out);
}

}  // namespace sparkinfer
