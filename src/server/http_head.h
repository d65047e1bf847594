// http_head.h — the head of a request, byte by byte: one way to read it, and whatever two parsers might read
// differently is refused. It stands before the parser, which is more lenient.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace sparkinfer {

constexpr size_t kMaxFields = 100;

// `head` is the request line and all fields with their CRLFs, the empty line included. What is wrong with it:
// 400, 501 (a transfer coding other than chunked), 505 (another version than 1.0 and 1.1).
std::optional<ApiError> check_head(std::string_view head);

// A target in pieces: "/v1/models/a%2Fb?x=1" → path "/v1/models/a/b", segments {"v1", "models", "a/b"}.
struct Target {
    std::string path;                   // decoded
    std::string query;                  // as it came
    std::vector<std::string> segments;  // of the path, each decoded; {""} for "/"
};
// Errors: a bad escape, an escaped control character, bytes that are no UTF-8.
ApiResult<Target> parse_target(std::string_view target);

bool equals_ignoring_case(std::string_view a, std::string_view b);
std::string_view trimmed(std::string_view text);  // of spaces and tabs

}  // namespace sparkinfer
