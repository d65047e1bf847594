#include "cli/serve_sizes.h"

#include <algorithm>

namespace sparkinfer {

namespace {

constexpr int32_t kHostSlots = 8, kDeviceSlots = 32;
constexpr int64_t kHostCacheMost = int64_t(8) << 30;
constexpr double kUsable = 0.9;     // of the memory at hand: temporaries and other programs want some
constexpr double kHostShare = 0.5;  // of it, taken unasked for keys and values on a machine that does more

double gib(int64_t bytes) { return double(bytes) / (int64_t(1) << 30); }

// The context for which pages of so many tokens are enough, in the words of an advice; nothing where none is.
std::string advice(const char* before, int64_t tokens, const char* behind) {
    const int64_t context = tokens - 2 * kPageTokens;
    return context > 0 ? fmt::format("{}--ctx {}{}", before, context, behind) : std::string();
}

// Tokens of KV pages, for `options.slots` sequences of `options.context`.
Result<int64_t> kv_tokens(const ServeOptions& o, const ServeMachine& m, const EngineOptions& options) {
    const int64_t per_token = std::max<int64_t>(m.bytes_per_token, 1);
    // A sequence is let in only where each that lives has a page to grow into.
    const int64_t one = options.context + 2 * kPageTokens;
    const int64_t all = int64_t(options.slots) * one;
    if (o.kv_memory) {
        const int64_t tokens = *o.kv_memory / per_token;
        if (tokens >= one) return tokens;
        return out_of_resources(
            "--kv-memory of {} bytes holds {} tokens, and one request of --ctx {} needs {}: it takes {} "
            "bytes{}",
            *o.kv_memory, tokens, options.context, one, one * per_token, advice(", or ", tokens, ""));
    }
    const auto room = int64_t(kUsable * double(std::max<int64_t>(m.memory - m.weights, 0)));
    if (room / per_token < one)
        return out_of_resources(
            "a context of {} tokens takes {:.2f} GiB of keys and values beside {:.2f} GiB of weights, and "
            "{:.2f} GiB of memory are at hand{}",
            options.context, gib(one * per_token), gib(m.weights), gib(m.memory),
            advice(": ", room / per_token, " fits"));
    const auto unasked = int64_t(double(room) * (m.on_host ? kHostShare : 1.0));
    return std::min(all, std::max(one, unasked / per_token));
}

}  // namespace

Result<EngineOptions> serve_sizes(const ServeOptions& o, const ServeMachine& m) {
    EngineOptions options;
    if (o.context && *o.context > m.trained_context)
        return usage_error("--ctx is '{}', expected at most {}, the context of {}", *o.context,
                           m.trained_context, o.model);
    options.context = int32_t(o.context.value_or(m.trained_context));
    options.slots = int32_t(o.slots.value_or(m.on_host ? kHostSlots : kDeviceSlots));
    options.chunk = int32_t(o.chunk.value_or(options.chunk));
    options.queue = int32_t(o.queue);
    options.prefix_cache = !o.no_prefix_cache;
    options.deterministic = o.deterministic;
    options.checkpoint_bytes = o.checkpoint_memory.value_or(0);
    options.host_cache_bytes =
        o.host_cache.value_or(m.on_host ? 0 : std::min(kHostCacheMost, m.host_memory / 4));
    TRY(options.kv_tokens, kv_tokens(o, m, options));
    return options;
}

}  // namespace sparkinfer
