#include "engine/request_check.h"

#include <cmath>

#include "engine/kv_cache.h"
#include "engine/state_pool.h"

namespace sparkinfer {
namespace {

constexpr int32_t kMaxSlots = 1024;
constexpr int32_t kMaxChunk = 8192;
constexpr int64_t kCheckpointsPerSlot = 8;

struct Range {
    const char* name;
    double value, low, high;
    bool open_low = false;  // low itself is not allowed
};

Result<void> check_range(const Range& r) {
    // Written so that NaN fails.
    const bool above = r.open_low ? r.value > r.low : r.value >= r.low;
    if (above && r.value <= r.high) return {};
    const char bracket = r.open_low ? '(' : '[';
    if (std::isinf(r.high))
        return usage_error("{} is {}, expected a finite number {} {}", r.name, r.value,
                           r.open_low ? "above" : "of at least", r.low);
    return usage_error("{} is {}, expected a number in {}{}, {}]", r.name, r.value, bracket, r.low, r.high);
}

Result<void> check_count(const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return {};
    return usage_error("{} is {}, expected a whole number from {} to {}", name, value, low, high);
}

}  // namespace

Result<void> check_tokens(std::span<const TokenId> tokens, const char* what, int32_t vocab) {
    for (size_t i = 0; i < tokens.size(); ++i)
        if (raw(tokens[i]) < 0 || raw(tokens[i]) >= vocab)
            return bad_input("{} {} is id {}, expected an id of the vocabulary, 0 to {}", what, i,
                             raw(tokens[i]), vocab - 1);
    return {};
}

Result<void> check_sampling(const SamplingParams& s, int32_t vocab) {
    const double top = 3.4e38;
    TRY_VOID(check_range({"temperature", s.temperature, 0, top}));
    TRY_VOID(check_count("top_k", s.top_k, 0, INT32_MAX));
    TRY_VOID(check_range({"top_p", s.top_p, 0, 1, true}));
    TRY_VOID(check_range({"min_p", s.min_p, 0, 1}));
    TRY_VOID(check_range({"repeat_penalty", s.repeat_penalty, 0, top, true}));
    TRY_VOID(check_count("repeat_last_n", s.repeat_last_n, -1, INT32_MAX));
    TRY_VOID(check_range({"presence_penalty", s.presence_penalty, -2, 2}));
    TRY_VOID(check_range({"frequency_penalty", s.frequency_penalty, -2, 2}));
    TRY_VOID(check_count("the number of logit_bias entries", int64_t(s.logit_bias.size()), 0, kMaxBias));
    for (const auto& [token, value] : s.logit_bias) {
        TRY_VOID(check_tokens(std::span(&token, 1), "logit_bias token", vocab));
        if (!std::isfinite(value))
            return usage_error("logit_bias of token {} is {}, expected a finite number", raw(token), value);
    }
    return {};
}

Result<void> check_request(const Request& r, const EngineOptions& options, const ModelShape& shape) {
    if (r.prompt.empty()) return bad_input("the prompt is empty, expected at least one token");
    TRY_VOID(check_tokens(r.prompt, "prompt token", shape.vocab));
    if (int64_t(r.prompt.size()) >= options.context)
        return out_of_resources(
            "the prompt has {} tokens and the context is {}: no room is left for an answer", r.prompt.size(),
            options.context);
    TRY_VOID(check_count("max_tokens", r.max_tokens, -1, INT32_MAX));
    TRY_VOID(check_sampling(r.sampling, shape.vocab));
    TRY_VOID(check_count("the number of stop_tokens", int64_t(r.stop_tokens.size()), 0, kMaxStopIds));
    TRY_VOID(check_tokens(r.stop_tokens, "stop token", shape.vocab));
    TRY_VOID(check_count("min_tokens", r.min_tokens, 0, INT32_MAX));
    TRY_VOID(check_count("logprobs", r.logprobs, -1, options.top_logprobs));
    TRY_VOID(check_count("prompt_logprobs", r.prompt_logprobs, -1, options.top_logprobs));
    TRY_VOID(check_count("the length of cache_salt", int64_t(r.cache_salt.size()), 0, kMaxSalt));
    for (size_t i = 0; i < r.checkpoints.size(); ++i)
        TRY_VOID(check_count("a checkpoint", r.checkpoints[i], i == 0 ? 0 : r.checkpoints[i - 1],
                             int64_t(r.prompt.size())));
    return {};
}

Result<EngineOptions> resolve_options(EngineOptions o, const ModelShape& shape, int32_t pipeline,
                                      int32_t chunk) {
    if (o.context == 0) o.context = shape.context;
    TRY_VOID(check_count("context", o.context, 2, shape.context));
    TRY_VOID(check_count("slots", o.slots, 1, kMaxSlots));
    if (o.chunk == 0) o.chunk = std::min(chunk, pages_for(o.context) * kPageTokens);
    TRY_VOID(check_count("chunk", o.chunk, kPageTokens, kMaxChunk));
    if (o.chunk % kPageTokens != 0)
        return usage_error("chunk is {}, expected a multiple of {}", o.chunk, kPageTokens);
    const int64_t whole = int64_t(pages_for(o.context)) * kPageTokens;
    if (o.kv_tokens == 0) o.kv_tokens = o.slots * whole;
    TRY_VOID(check_count("kv_tokens", o.kv_tokens, whole, int64_t(INT32_MAX) * kPageTokens));
    if (!shape.state.empty()) {
        if (o.state_slots == 0) o.state_slots = o.slots * pipeline;
        TRY_VOID(check_count("state_slots", o.state_slots, o.slots, INT32_MAX));
    } else {
        o.state_slots = 0;
    }
    TRY_VOID(check_count("queue", o.queue, 1, INT32_MAX));
    TRY_VOID(check_count("checkpoint_bytes", o.checkpoint_bytes, 0, INT64_MAX));
    TRY_VOID(check_count("host_cache_bytes", o.host_cache_bytes, 0, INT64_MAX));
    TRY_VOID(check_count("top_logprobs", o.top_logprobs, 0, kMaxTopLogprobs));
    return o;
}

Result<int32_t> checkpoint_slots(EngineOptions& o, const ModelShape& shape, const BackendInfo& backend) {
    if (!o.prefix_cache || shape.state.empty()) {
        o.checkpoint_bytes = 0;
        return 0;
    }
    const int64_t each = StatePool::slot_bytes(shape.state, backend.state_type);
    if (o.checkpoint_bytes == 0) o.checkpoint_bytes = kCheckpointsPerSlot * o.slots * each;
    const int64_t count = o.checkpoint_bytes / each;
    TRY_VOID(check_count("the number of recurrent states in checkpoint_bytes", count, 1,
                         INT32_MAX - int64_t(o.state_slots)));
    return int32_t(count);
}

}  // namespace sparkinfer
