#include "server/errors.h"

namespace sparkinfer {

namespace {

const char* openai_type(int status) {
    switch (status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 429: return "rate_limit_error";
        default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

const char* anthropic_type(int status) {
    switch (status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 413: return "request_too_large";
        case 429: return "rate_limit_error";
        case 503: return "overloaded_error";
        default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

// What clients switch on where the error does not say it.
std::string code_of(const ApiError& error) {
    if (!error.code.empty()) return error.code;
    switch (error.status) {
        case 401: return "invalid_api_key";
        case 429: return "rate_limit_exceeded";
        case 500: return "internal_error";
        case 503: return "overloaded";
        default: return "";
    }
}

// Agents shorten their conversation when they read these very words.
std::string message_of(const ApiError& error, bool anthropic, std::string_view request_id) {
    if (error.code == "context_length_exceeded" && error.context > 0) {
        if (anthropic)
            return fmt::format("prompt is too long: {} tokens > {} maximum", error.prompt_tokens,
                               error.context);
        return fmt::format(
            "This model's maximum context length is {} tokens. However, you requested {} tokens in the "
            "messages. Please reduce the length of the messages.",
            error.context, error.prompt_tokens);
    }
    if (error.status == 500 && !request_id.empty())
        return fmt::format("{} (request {})", error.message, request_id);
    return error.message;
}

}  // namespace

bool is_anthropic_path(std::string_view path) {
    constexpr std::string_view kMessages = "/v1/messages";
    return path.substr(0, kMessages.size()) == kMessages &&
           (path.size() == kMessages.size() || path[kMessages.size()] == '/');
}

Json error_json(std::string_view path, const ApiError& error, std::string_view request_id) {
    const bool anthropic = is_anthropic_path(path);
    JsonObject inner, outer;
    const std::string message = message_of(error, anthropic, request_id);
    if (anthropic) {
        inner["type"] = anthropic_type(error.status);
        const bool names_field = error.param.empty() || message.starts_with(error.param);
        inner["message"] =
            names_field || error.code == "context_length_exceeded" ? message : error.param + ": " + message;
        outer["type"] = "error";
        outer["error"] = std::move(inner);
        if (!request_id.empty()) outer["request_id"] = request_id;
        return outer;
    }
    const std::string code = code_of(error);
    inner["message"] = message;
    inner["type"] = openai_type(error.status);
    inner["param"] = error.param.empty() ? Json(nullptr) : Json(error.param);
    inner["code"] = code.empty() ? Json(nullptr) : Json(code);
    outer["error"] = std::move(inner);
    return outer;
}

std::string error_body(std::string_view path, const ApiError& error, std::string_view request_id) {
    return to_json(error_json(path, error, request_id));
}

void send_error(Responder& responder, const HttpRequest& request, const ApiError& error) {
    Responder::Headers headers;
    if (error.retry_after_s > 0) headers.emplace_back("retry-after", std::to_string(error.retry_after_s));
    responder.send(error.status, "application/json", error_body(request.path, error, request.id),
                   std::move(headers));
}

}  // namespace sparkinfer
