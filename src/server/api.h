// api.h — what the handlers of all protocols share before an answer runs: the body as JSON, the model's name,
// ids. Errors are in errors.h.
#pragma once
#include <string>
#include <string_view>

#include "core/json.h"
#include "server/api_error.h"
#include "server/http.h"
#include "server/service.h"

namespace sparkinfer {

struct ApiOptions {
    bool any_model = false;  // every name in `model` means the loaded one
    // A named tool_choice ends with finish_reason "tool_calls", where OpenAI says "stop".
    bool named_tool_calls = false;
};

// The body as JSON. Errors: 400 that give the byte position; nesting deeper than 64.
ApiResult<Json> parse_body(const HttpRequest& request);

// A name that means the loaded model everywhere, whatever that is: for clients that must be told a name.
inline constexpr std::string_view kAnyModel = "sparkinfer";

// The model's own id, its aliases, kAnyModel and no name at all are accepted; else 404 with the names that
// there are.
ApiResult<void> check_model(const ModelCard& card, std::string_view name, const ApiOptions& options);

// prefix + 32 hexadecimal digits that nobody can guess: ids come back in later requests.
std::string make_id(std::string_view prefix);

int64_t unix_now();  // seconds

// The same for all answers of a model as it was loaded.
std::string system_fingerprint(const ModelCard& card);

void send_json(Responder& responder, const Json& value, int status = 200);

}  // namespace sparkinfer
