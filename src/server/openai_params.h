// openai_params.h — the fields that /v1/chat/completions and /v1/completions share, in OpenAI's, vLLM's and
// llama.cpp's spelling.
#pragma once
#include <string>

#include "server/chat.h"
#include "server/json_fields.h"

namespace sparkinfer {

// The most answers of one request, and of one request with a list of prompts.
inline constexpr int64_t kMaxChoices = 64;
inline constexpr int64_t kMaxStops = 64;
inline constexpr int64_t kMaxAlternatives = 20;  // top_logprobs

struct StreamOptions {
    bool stream = false;
    bool include_usage = false;     // a last chunk with the usage
    bool continuous_usage = false;  // and in every other chunk what is known by then
};

ApiResult<StreamOptions> parse_stream_options(const Fields& body);

// Sampling, penalties, stops, seed, n: everything of AnswerParams but max_tokens and logprobs, which the two
// endpoints spell differently.
ApiResult<AnswerParams> parse_answer_params(const Fields& body);

// response_format, guided_*, structured_outputs, json_schema: at most one of them.
ApiResult<ResponseFormat> parse_response_format(const Fields& body);

// cache_salt as it is; llama.cpp's "cache_prompt": false as a salt that no other request has.
ApiResult<std::string> parse_cache_salt(const Fields& body);

// Fields that would change the answer and that this server does not have: 400 where one is set.
ApiResult<void> refuse_unsupported(const Fields& body);

Json usage_json(const Usage& usage);
// A log-probability as JSON can hold it: at least -9999, and as short as a float is.
double clamp_logprob(float logprob);

}  // namespace sparkinfer
