#include "server/request_params.h"

#include <cmath>
#include <random>

namespace sparkinfer {
namespace {

constexpr size_t kMaxStops = 64, kMaxStopBytes = 4096;

struct NumberRule {
    const char* field;
    double low, high;
    bool open_low = false;  // low itself is not allowed
};

// Written so that NaN fails.
ApiResult<void> number(const std::optional<double>& given, const NumberRule& rule, float& to) {
    if (!given) return {};
    const bool above = rule.open_low ? *given > rule.low : *given >= rule.low;
    if (!(above && *given <= rule.high))
        return bad_request(rule.field, "{} is {}, expected a number {} {} and at most {}", rule.field, *given,
                           rule.open_low ? "above" : "of at least", rule.low, rule.high);
    to = float(*given);
    return {};
}

ApiResult<void> whole(const char* field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return {};
    return bad_request(field, "{} is {}, expected a whole number from {} to {}", field, value, low, high);
}

ApiResult<void> apply_sampling(const AnswerParams& p, const ParamLimits& limits, SamplingParams& s) {
    s = limits.defaults;
    TRY_VOID(number(p.temperature, {"temperature", 0, 2}, s.temperature));
    TRY_VOID(number(p.top_p, {"top_p", 0, 1}, s.top_p));
    if (s.top_p <= 0) s.top_p = 1e-6f;  // the likeliest token alone
    TRY_VOID(number(p.min_p, {"min_p", 0, 1}, s.min_p));
    TRY_VOID(number(p.repeat_penalty, {"repetition_penalty", 0, 10, true}, s.repeat_penalty));
    TRY_VOID(number(p.presence_penalty, {"presence_penalty", -2, 2}, s.presence_penalty));
    TRY_VOID(number(p.frequency_penalty, {"frequency_penalty", -2, 2}, s.frequency_penalty));
    if (p.top_k) {
        TRY_VOID(whole("top_k", *p.top_k, -1, INT32_MAX));
        s.top_k = int32_t(std::max(*p.top_k, int64_t(0)));  // -1: off, as elsewhere
    }
    if (p.repeat_last_n) {
        TRY_VOID(whole("repeat_last_n", *p.repeat_last_n, -1, INT32_MAX));
        s.repeat_last_n = int32_t(*p.repeat_last_n);
    }
    s.seed = p.seed.value_or((uint64_t(std::random_device{}()) << 32) | std::random_device{}());
    if (p.logit_bias.size() > size_t(kMaxBias))
        return bad_request("logit_bias", "logit_bias has {} entries, expected at most {}",
                           p.logit_bias.size(), kMaxBias);
    s.logit_bias.clear();
    for (const auto& [token, bias] : p.logit_bias) {
        TRY_VOID(whole("logit_bias", token, 0, limits.vocab - 1));
        if (!(std::abs(bias) <= 100))
            return bad_request("logit_bias", "the bias of token {} is {}, expected a number from -100 to 100",
                               token, bias);
        s.logit_bias.emplace_back(TokenId(token), float(bias));
    }
    return {};
}

ApiResult<void> apply_stops(const AnswerParams& p, const ParamLimits& limits,
                            const std::vector<TokenId>& end_tokens, Request& r) {
    if (p.stop.size() > kMaxStops)
        return bad_request("stop", "stop has {} strings, expected at most {}", p.stop.size(), kMaxStops);
    for (const std::string& stop : p.stop)
        if (stop.size() > kMaxStopBytes)
            return bad_request("stop", "a stop string has {} bytes, expected at most {}", stop.size(),
                               kMaxStopBytes);
    if (!p.ignore_eos) r.stop_tokens = end_tokens;
    if (r.stop_tokens.size() + p.stop_token_ids.size() > size_t(kMaxStopIds))
        return bad_request("stop_token_ids", "stop_token_ids has {} entries, expected at most {}",
                           p.stop_token_ids.size(), size_t(kMaxStopIds) - r.stop_tokens.size());
    for (const int64_t id : p.stop_token_ids) {
        TRY_VOID(whole("stop_token_ids", id, 0, limits.vocab - 1));
        r.stop_tokens.push_back(TokenId(id));
    }
    return {};
}

}  // namespace

ApiResult<void> apply_params(const AnswerParams& params, const ParamLimits& limits,
                             const std::vector<TokenId>& end_tokens, Request& request) {
    TRY_VOID(apply_sampling(params, limits, request.sampling));
    TRY_VOID(apply_stops(params, limits, end_tokens, request));
    TRY_VOID(whole("n", params.n, 1, limits.answers));
    TRY_VOID(whole("top_logprobs", params.logprobs, -1, limits.top_logprobs));
    request.logprobs = params.logprobs;
    if (params.max_tokens) TRY_VOID(whole("max_tokens", *params.max_tokens, 0, INT32_MAX));
    const int64_t prompt = int64_t(request.prompt.size()), room = limits.context - prompt;
    if (room <= 0) {
        ApiError error{400, "context_length_exceeded", "messages",
                       fmt::format("This model's maximum context length is {} tokens. However, you "
                                   "requested {} tokens in the messages. Please reduce the length of the "
                                   "messages.",
                                   limits.context, prompt)};
        error.prompt_tokens = prompt;
        error.context = limits.context;
        return error;
    }
    request.max_tokens = int32_t(std::min(params.max_tokens.value_or(room), room));
    TRY_VOID(whole("min_tokens", params.min_tokens, 0, request.max_tokens));
    request.min_tokens = int32_t(params.min_tokens);
    return {};
}

}  // namespace sparkinfer
