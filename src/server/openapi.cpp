#include "server/openapi.h"

#include <cctype>

#include "server/api.h"
#include "server/errors.h"

namespace sparkinfer {
namespace {

struct Operation {
    const char* method;
    const char* path;
    const char* summary;
    const char* request;   // schema of the body; empty: none
    const char* response;  // schema, or a media type
    bool streams = false;  // also as server-sent events
    bool open = false;     // needs no key
};

constexpr Operation kOperations[] = {
    {"post", "/v1/chat/completions", "The next message of a conversation", "ChatRequest", "ChatAnswer", true},
    {"post", "/v1/completions", "Texts gone on with", "CompletionRequest", "CompletionAnswer", true},
    {"post", "/v1/responses", "OpenAI's responses", "ResponsesRequest", "ResponsesAnswer", true},
    {"get", "/v1/responses/{id}", "A response that is remembered", "", "ResponsesAnswer"},
    {"delete", "/v1/responses/{id}", "Forgets a response", "", "Object"},
    {"post", "/v1/messages", "Anthropic's messages", "MessagesRequest", "MessagesAnswer", true},
    {"post", "/v1/messages/count_tokens", "The tokens of a prompt", "MessagesRequest", "MessagesCount"},
    {"get", "/v1/models", "The model under each of its names", "", "ModelList"},
    {"get", "/models", "The same", "", "ModelList"},
    {"get", "/v1/models/{id}", "The model", "", "Model"},
    {"post", "/tokenize", "A text or a conversation as token ids", "TokenizeRequest", "TokenizeAnswer"},
    {"post", "/v1/tokenize", "The same", "TokenizeRequest", "TokenizeAnswer"},
    {"post", "/detokenize", "Token ids as text", "DetokenizeRequest", "DetokenizeAnswer"},
    {"post", "/v1/detokenize", "The same", "DetokenizeRequest", "DetokenizeAnswer"},
    {"post", "/apply-template", "A conversation as the model reads it", "Conversation", "TemplateAnswer"},
    {"get", "/props", "Properties of the server", "", "Object"},
    {"get", "/tokenizer_info", "Properties of the tokenizer", "", "Object"},
    {"get", "/metrics", "Counters for Prometheus", "", "text/plain"},
    {"get", "/openapi.json", "This description", "", "Object"},
    {"get", "/dashboard/data", "What the dashboard shows", "", "Object"},
    {"post", "/api/event_logging/batch", "Taken and dropped: some agents count on it", "Object", "Object"},
    {"get", "/", "The chat page", "", "text/html", false, true},
    {"get", "/dashboard", "The dashboard page", "", "text/html", false, true},
    {"get", "/health/live", "The process answers", "", "Status", false, true},
    {"get", "/health/ready", "It takes work", "", "Status", false, true},
    {"get", "/health", "The same", "", "Status", false, true},
};

struct Outcome {
    int status;
    const char* what;
};
constexpr Outcome kOutcomes[] = {
    {400, "A request that cannot be answered; param names the field"},
    {401, "No valid API key"},
    {403, "A host or an origin that is not allowed"},
    {404, "No such model, response or path"},
    {405, "Another method is expected"},
    {408, "The request took too long to arrive"},
    {411, "A length is expected"},
    {413, "A body over the limit"},
    {414, "A path over the limit"},
    {415, "Another content type or encoding is expected"},
    {429, "The queue is full; Retry-After says when to come again"},
    {431, "Headers over the limit"},
    {500, "The server failed; the message names the request"},
    {503, "Loading, overloaded or shutting down; Retry-After says when to come again"},
};

JsonObject ref(std::string_view name) { return {{"$ref", "#/components/schemas/" + std::string(name)}}; }

JsonObject json_content(std::string_view schema) {
    return {{"application/json", JsonObject{{"schema", ref(schema)}}}};
}

JsonObject responses_of(const Operation& op) {
    const std::string_view media = op.response;
    JsonObject content;
    if (media.find('/') != std::string_view::npos)
        content[media] = JsonObject{{"schema", JsonObject{{"type", "string"}}}};
    else
        content = json_content(op.response);
    // Without a schema: OpenAPI 3.1 has none for single events, and readers take one of the whole for theirs.
    if (op.streams) content["text/event-stream"] = JsonObject{};
    JsonObject responses{{"200", JsonObject{{"description", "The answer"}, {"content", std::move(content)}}}};
    const char* error = is_anthropic_path(op.path) ? "MessagesError" : "Error";
    for (const Outcome& outcome : kOutcomes)
        responses[std::to_string(outcome.status)] =
            JsonObject{{"description", outcome.what}, {"content", json_content(error)}};
    return responses;
}

JsonObject operation_json(const Operation& op) {
    std::string id = op.method;
    for (const char c : std::string_view(op.path)) id += std::isalnum(uint8_t(c)) ? c : '_';
    JsonObject json{{"operationId", id}, {"summary", op.summary}};
    if (std::string_view(op.path).find('{') != std::string_view::npos)
        json["parameters"] =
            JsonArray{JsonObject{{"name", "id"},
                                 {"in", "path"},
                                 {"required", true},
                                 {"schema", JsonObject{{"type", "string"}, {"minLength", 1}}}}};
    if (*op.request)
        json["requestBody"] = JsonObject{{"required", true}, {"content", json_content(op.request)}};
    json["responses"] = responses_of(op);
    json["security"] = op.open ? JsonArray{} : JsonArray{JsonObject{{"bearer", JsonArray{}}}, JsonObject{}};
    return json;
}

}  // namespace

Json openapi_document() {
    JsonObject paths;
    for (const Operation& op : kOperations) {
        if (!json_find(paths, op.path)) paths[op.path] = JsonObject{};
        paths[op.path].as_object()[op.method] = operation_json(op);
    }
    return JsonObject{
        {"openapi", "3.1.0"},
        {"info", JsonObject{{"title", "sparkinfer"},
                            {"version", "1"},
                            {"description", "One model behind the interfaces of OpenAI and Anthropic."}}},
        {"paths", std::move(paths)},
        {"components",
         JsonObject{{"schemas", openapi_schemas()},
                    {"securitySchemes",
                     JsonObject{{"bearer", JsonObject{{"type", "http"}, {"scheme", "bearer"}}}}}}}};
}

Route openapi_route() {
    Route route;
    route.method = "GET";
    route.path = "/openapi.json";
    route.handler = [](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        static const std::string text = to_json_pretty(openapi_document());
        responder->send(200, "application/json", text);
    };
    route.light = true;
    return route;
}

}  // namespace sparkinfer
