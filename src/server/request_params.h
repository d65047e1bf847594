// request_params.h — the parameters of a request as the engine takes them, checked field by field.
#pragma once
#include "engine/engine.h"
#include "server/chat.h"

namespace sparkinfer {

struct ParamLimits {
    SamplingParams defaults;  // for what is not set
    int32_t vocab = 0;        // ids below it
    int32_t context = 0;      // tokens
    int32_t top_logprobs = 0;
    int32_t answers = 0;  // most of one request
};

// Fills sampling, max_tokens, stop tokens and logprobs of `request`, whose prompt is there. max_tokens is
// clamped to what the context has left. Errors: 400 with the field, context_length_exceeded.
ApiResult<void> apply_params(const AnswerParams& params, const ParamLimits& limits,
                             const std::vector<TokenId>& end_tokens, Request& request);

}  // namespace sparkinfer
