// errors.h — an ApiError on the wire: in the shape of the protocol whose path was asked, in the words that
// clients look for.
#pragma once
#include <string>
#include <string_view>

#include "core/json.h"
#include "server/api_error.h"
#include "server/http.h"

namespace sparkinfer {

// Is the path one of the Anthropic protocol ("/v1/messages" and below)?
bool is_anthropic_path(std::string_view path);

// OpenAI's {"error":{"message","type","param","code"}}, or Anthropic's {"type":"error","error":{"type",
// "message"}} for its paths. `request_id` is named in the message of a 500 and in Anthropic's body.
Json error_json(std::string_view path, const ApiError& error, std::string_view request_id = {});
std::string error_body(std::string_view path, const ApiError& error, std::string_view request_id = {});

// The whole answer: status, body, Retry-After.
void send_error(Responder& responder, const HttpRequest& request, const ApiError& error);

}  // namespace sparkinfer
