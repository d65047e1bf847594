#include "server/openai_params.h"
#include "server/openapi.h"

namespace sparkinfer {
namespace {

constexpr double kMost = INT32_MAX;

// One field of an object. `type`: "string", "boolean", "object", "number", "integer", "strings" (one or a
// list), "any", "list:NAME" or the name of a schema.
struct Field {
    const char* name;
    const char* type;
    double low = 0, high = 0;  // of numbers; equal: no limits
    bool above_low = false;    // low itself is not allowed
};

JsonObject ref(std::string_view name) { return {{"$ref", "#/components/schemas/" + std::string(name)}}; }
JsonObject list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
JsonObject any_of(JsonArray options) { return {{"anyOf", std::move(options)}}; }
JsonObject one_word(std::initializer_list<const char*> words) {
    JsonArray values;
    for (const char* word : words) values.emplace_back(word);
    return {{"type", "string"}, {"enum", std::move(values)}};
}

Json number_value(double d) { return d == double(int64_t(d)) ? Json(int64_t(d)) : Json(d); }

JsonObject plain_type(const Field& f) {
    const std::string_view type = f.type;
    if (type == "any") return {};
    if (type == "strings")
        return any_of({JsonObject{{"type", "string"}}, list_of(JsonObject{{"type", "string"}})});
    if (type.substr(0, 5) == "list:") return list_of(plain_type({f.name, f.type + 5, f.low, f.high}));
    if (type != "number" && type != "integer") {
        const bool simple = type == "string" || type == "boolean" || type == "object";
        return simple ? JsonObject{{"type", type}} : ref(type);
    }
    JsonObject schema{{"type", type}};
    if (f.low == f.high) return schema;
    schema[f.above_low ? "exclusiveMinimum" : "minimum"] = number_value(f.low);
    schema["maximum"] = number_value(f.high);
    return schema;
}

// Every field that is not required may also be null.
JsonObject object(std::initializer_list<Field> fields, std::initializer_list<const char*> required = {}) {
    JsonObject properties;
    JsonArray names;
    for (const char* name : required) names.emplace_back(name);
    for (const Field& f : fields) {
        bool needed = false;
        for (const char* name : required) needed = needed || std::string_view(name) == f.name;
        JsonObject schema = plain_type(f);
        const bool may_be_null = !needed && !schema.empty();
        properties[f.name] =
            may_be_null ? any_of({std::move(schema), JsonObject{{"type", "null"}}}) : std::move(schema);
    }
    JsonObject out{{"type", "object"}, {"properties", std::move(properties)}};
    if (!names.empty()) out["required"] = std::move(names);
    return out;
}

void add_fields(JsonObject* schema, const JsonObject& more) {
    for (const auto& [key, value] : more.at("properties").as_object())
        (*schema)["properties"].as_object()[key] = value;
}

// AnswerParams, by openai_params.cpp.
JsonObject answer_params() {
    return object({{"temperature", "number", 0, 2},
                   {"top_p", "number", 0, 1},
                   {"min_p", "number", 0, 1},
                   {"top_k", "integer", -1, kMost},
                   {"repetition_penalty", "number", 0, 10, true},
                   {"repeat_penalty", "number", 0, 10, true},
                   {"repeat_last_n", "integer", -1, kMost},
                   {"presence_penalty", "number", -2, 2},
                   {"frequency_penalty", "number", -2, 2},
                   {"seed", "integer", -1, 4294967295.0},
                   {"logit_bias", "LogitBias"},
                   {"stop", "strings"},
                   {"stop_token_ids", "list:integer", 0, kMost},
                   {"min_tokens", "integer", 0, kMost},
                   {"ignore_eos", "boolean"},
                   {"n", "integer", 1, double(kMaxChoices)},
                   {"stream", "boolean"},
                   {"stream_options", "StreamOptions"},
                   {"response_format", "ResponseFormat"},
                   {"guided_json", "object"},
                   {"guided_regex", "string"},
                   {"guided_choice", "strings"},
                   {"guided_grammar", "string"},
                   {"structured_outputs", "object"},
                   {"cache_prompt", "boolean"},
                   {"cache_salt", "string"},
                   {"n_predict", "integer", -1, kMost}});
}

void add_chat(JsonObject* all) {
    const JsonObject text_part = object({{"type", "string"}, {"text", "string"}}, {"type", "text"});
    JsonObject part = text_part;
    part["properties"].as_object()["type"] = one_word({"text"});
    (*all)["TextPart"] = std::move(part);
    (*all)["Content"] = any_of({JsonObject{{"type", "string"}}, list_of(ref("TextPart"))});
    (*all)["FunctionCall"] = object({{"name", "string"}, {"arguments", "string"}}, {"name"});
    (*all)["ToolCall"] = object({{"id", "string"}, {"function", "FunctionCall"}}, {"function"});
    JsonObject said =
        object({{"role", "string"}, {"content", "Content"}, {"name", "string"}}, {"role", "content"});
    said["properties"].as_object()["role"] = one_word({"system", "developer", "user"});
    JsonObject answered = object({{"role", "string"},
                                  {"content", "Content"},
                                  {"reasoning_content", "string"},
                                  {"tool_calls", "list:ToolCall"}},
                                 {"role"});
    answered["properties"].as_object()["role"] = one_word({"assistant"});
    JsonObject result =
        object({{"role", "string"}, {"content", "Content"}, {"tool_call_id", "string"}}, {"role", "content"});
    result["properties"].as_object()["role"] = one_word({"tool"});
    (*all)["Message"] = any_of({std::move(said), std::move(answered), std::move(result)});
    (*all)["Function"] = object(
        {{"name", "string"}, {"description", "string"}, {"parameters", "object"}, {"strict", "boolean"}},
        {"name"});
    (*all)["Tool"] = object({{"type", "string"}, {"function", "Function"}}, {"type", "function"});
    (*all)["Reasoning"] = object({{"effort", "string"},
                                  {"max_tokens", "integer", -1, kMost},
                                  {"enabled", "boolean"},
                                  {"exclude", "boolean"}});
    JsonObject conversation = object({{"model", "string"},
                                      {"messages", "list:Message"},
                                      {"tools", "list:Tool"},
                                      {"tool_choice", "any"},
                                      {"parallel_tool_calls", "boolean"},
                                      {"chat_template_kwargs", "object"},
                                      {"enable_thinking", "boolean"},
                                      {"reasoning_effort", "string"},
                                      {"reasoning", "Reasoning"},
                                      {"thinking_budget", "integer", -1, kMost},
                                      {"continue_final_message", "boolean"},
                                      {"add_generation_prompt", "boolean"}},
                                     {"messages"});
    conversation["properties"].as_object()["messages"].as_object()["minItems"] = 1;
    conversation["properties"].as_object()["reasoning_effort"] =
        one_word({"none", "minimal", "low", "medium", "high", "xhigh", "max"});
    (*all)["Conversation"] = conversation;
    add_fields(&conversation, answer_params());
    add_fields(&conversation, object({{"max_tokens", "integer", 1, kMost},
                                      {"max_completion_tokens", "integer", 1, kMost},
                                      {"logprobs", "boolean"},
                                      {"top_logprobs", "integer", 0, double(kMaxAlternatives)},
                                      {"include_reasoning", "boolean"}}));
    (*all)["ChatRequest"] = std::move(conversation);
    (*all)["ChatMessage"] = object({{"role", "string"},
                                    {"content", "string"},
                                    {"reasoning_content", "string"},
                                    {"tool_calls", "list:ToolCall"},
                                    {"refusal", "string"}},
                                   {"role"});
    (*all)["ChatChoice"] = object({{"index", "integer"},
                                   {"message", "ChatMessage"},
                                   {"logprobs", "object"},
                                   {"finish_reason", "string"},
                                   {"stop_reason", "string"}},
                                  {"index", "message", "finish_reason"});
}

void add_completions(JsonObject* all) {
    JsonObject request = object({{"model", "string"},
                                 {"prompt", "any"},
                                 {"max_tokens", "integer", 0, kMost},
                                 {"echo", "boolean"},
                                 {"logprobs", "integer", 0, double(kMaxAlternatives)}},
                                {"prompt"});
    const Json ids = list_of(JsonObject{{"type", "integer"}, {"minimum", 0}});
    const Json text = JsonObject{{"type", "string"}};
    JsonArray prompts{text, list_of(text), ids, list_of(ids)};
    request["properties"].as_object()["prompt"] = any_of(std::move(prompts));
    add_fields(&request, answer_params());
    (*all)["CompletionRequest"] = std::move(request);
    (*all)["CompletionChoice"] = object({{"index", "integer"},
                                         {"text", "string"},
                                         {"logprobs", "object"},
                                         {"finish_reason", "string"},
                                         {"stop_reason", "string"}},
                                        {"index", "text", "finish_reason"});
    for (const auto& [answer, choice] :
         {std::pair("ChatAnswer", "list:ChatChoice"), std::pair("CompletionAnswer", "list:CompletionChoice")})
        (*all)[answer] = object({{"id", "string"},
                                 {"object", "string"},
                                 {"created", "integer"},
                                 {"model", "string"},
                                 {"system_fingerprint", "string"},
                                 {"choices", choice},
                                 {"usage", "Usage"}},
                                {"id", "object", "created", "model", "choices", "usage"});
}

// Anthropic's messages and OpenAI's responses: their frame; the inside is checked by the parsers.
void add_other_protocols(JsonObject* all) {
    JsonObject messages = object({{"model", "string"},
                                  {"messages", "list:MessagesMessage"},
                                  {"system", "Content"},
                                  {"max_tokens", "integer", 0, kMost},
                                  {"stop_sequences", "strings"},
                                  {"stream", "boolean"},
                                  {"temperature", "number", 0, 2},
                                  {"top_p", "number", 0, 1},
                                  {"top_k", "integer", -1, kMost},
                                  {"tools", "list:MessagesTool"}},
                                 {"messages"});
    messages["properties"].as_object()["messages"].as_object()["minItems"] = 1;
    (*all)["MessagesRequest"] = std::move(messages);
    JsonObject message = object({{"role", "string"}, {"content", "Content"}}, {"role", "content"});
    message["properties"].as_object()["role"] = one_word({"user", "assistant", "system"});
    (*all)["MessagesMessage"] = std::move(message);
    (*all)["MessagesTool"] =
        object({{"name", "string"}, {"description", "string"}, {"input_schema", "object"}},
               {"name", "input_schema"});
    (*all)["MessagesAnswer"] = object({{"id", "string"},
                                       {"type", "string"},
                                       {"role", "string"},
                                       {"model", "string"},
                                       {"content", "list:object"},
                                       {"stop_reason", "string"},
                                       {"stop_sequence", "string"},
                                       {"usage", "object"}},
                                      {"id", "type", "role", "content", "usage"});
    (*all)["MessagesCount"] = object({{"input_tokens", "integer"}}, {"input_tokens"});
    (*all)["MessagesError"] = object({{"type", "string"}, {"error", "object"}}, {"type", "error"});
    JsonObject responses = object({{"model", "string"},
                                   {"input", "any"},
                                   {"instructions", "string"},
                                   {"max_output_tokens", "integer", 1, kMost},
                                   {"stream", "boolean"},
                                   {"store", "boolean"},
                                   {"previous_response_id", "string"},
                                   {"parallel_tool_calls", "boolean"},
                                   {"temperature", "number", 0, 2},
                                   {"top_p", "number", 0, 1},
                                   {"metadata", "object"}},
                                  {"input"});
    responses["properties"].as_object()["input"] =
        any_of({JsonObject{{"type", "string"}}, list_of(ref("InputItem"))});
    (*all)["ResponsesRequest"] = std::move(responses);
    JsonObject item = object({{"role", "string"}, {"content", "string"}}, {"role", "content"});
    item["properties"].as_object()["role"] = one_word({"user", "assistant", "system", "developer"});
    (*all)["InputItem"] = std::move(item);
    (*all)["ResponsesAnswer"] = object({{"id", "string"},
                                        {"object", "string"},
                                        {"created_at", "number"},
                                        {"status", "string"},
                                        {"model", "string"},
                                        {"output", "list:object"},
                                        {"usage", "object"}},
                                       {"id", "object", "status", "output"});
}

void add_small(JsonObject* all) {
    (*all)["TokenizeRequest"] = object({{"model", "string"},
                                        {"content", "string"},
                                        {"prompt", "string"},
                                        {"add_special", "boolean"},
                                        {"add_special_tokens", "boolean"},
                                        {"parse_special", "boolean"},
                                        {"with_pieces", "boolean"},
                                        {"return_token_strs", "boolean"}});
    (*all)["TokenizeAnswer"] =
        object({{"tokens", "list:any"}, {"count", "integer"}, {"max_model_len", "integer"}},
               {"tokens", "count", "max_model_len"});
    (*all)["DetokenizeRequest"] =
        object({{"model", "string"}, {"tokens", "list:integer", 0, kMost}}, {"tokens"});
    (*all)["DetokenizeAnswer"] = object({{"content", "string"}, {"prompt", "string"}}, {"content", "prompt"});
    (*all)["TemplateAnswer"] = object({{"prompt", "string"}}, {"prompt"});
    (*all)["Model"] = object({{"id", "string"},
                              {"object", "string"},
                              {"created", "integer"},
                              {"owned_by", "string"},
                              {"max_model_len", "integer"},
                              {"context_length", "integer"},
                              {"context_window", "integer"},
                              {"meta", "object"}},
                             {"id", "object", "created", "owned_by", "max_model_len"});
    (*all)["ModelList"] = object({{"object", "string"}, {"data", "list:Model"}}, {"object", "data"});
    (*all)["Status"] = object({{"status", "string"}}, {"status"});
    (*all)["Object"] = JsonObject{{"type", "object"}};
    (*all)["LogitBias"] = JsonObject{
        {"type", "object"},
        {"propertyNames", JsonObject{{"pattern", "^[0-9]{1,9}$"}}},
        {"additionalProperties", JsonObject{{"type", "number"}, {"minimum", -100}, {"maximum", 100}}}};
    (*all)["StreamOptions"] = object({{"include_usage", "boolean"}, {"continuous_usage_stats", "boolean"}});
    JsonObject format = object({{"type", "string"}, {"json_schema", "object"}}, {"type"});
    format["properties"].as_object()["type"] = one_word({"text", "json_object", "json_schema"});
    (*all)["ResponseFormat"] = std::move(format);
    (*all)["Usage"] = object({{"prompt_tokens", "integer"},
                              {"completion_tokens", "integer"},
                              {"total_tokens", "integer"},
                              {"prompt_tokens_details", "object"},
                              {"completion_tokens_details", "object"}},
                             {"prompt_tokens", "completion_tokens", "total_tokens"});
    (*all)["ErrorDetail"] =
        object({{"message", "string"}, {"type", "string"}, {"param", "string"}, {"code", "string"}},
               {"message", "type"});
    (*all)["Error"] = object({{"error", "ErrorDetail"}}, {"error"});
}

}  // namespace

JsonObject openapi_schemas() {
    JsonObject all;
    add_chat(&all);
    add_completions(&all);
    add_other_protocols(&all);
    add_small(&all);
    return all;
}

}  // namespace sparkinfer
