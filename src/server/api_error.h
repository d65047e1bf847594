// api_error.h — a request that cannot be answered, as every protocol can say it.
#pragma once
#include <fmt/core.h>

#include <string>
#include <utility>

#include "core/result.h"

namespace sparkinfer {

struct ApiError {
    int status = 500;       // of HTTP
    std::string code;       // "context_length_exceeded", "model_not_found", …; empty: none
    std::string param;      // the field at fault, as the client spells it: "messages[2].content"; empty: none
    std::string message;    // one sentence: what was found, what was expected
    int retry_after_s = 0;  // 429, 503: when to come again; 0: not said
    int64_t prompt_tokens = 0, context = 0;  // code == context_length_exceeded: in the words of each protocol
};

template <class T>
using ApiResult = Result<T, ApiError>;

// 400 at a field.
template <class... Args>
[[nodiscard]] ApiError bad_request(std::string param, fmt::format_string<Args...> format, Args&&... args) {
    return {400, "", std::move(param), fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace sparkinfer
