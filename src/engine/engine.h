// engine.h — the whole public boundary of the engine: token ids in, token ids out.
//
//     auto engine = Engine::open("model.gguf", backend, options);      // files -> model -> memory -> tapes
//     auto id = engine->submit({.prompt = ids, .max_tokens = 100});    // queued
//     while (!engine->idle())
//         for (const Event& e : engine->step().value()) use(e);        // one step of all live sequences
//
// Threads: one thread owns an Engine. Everything is allocated in open(); submit() refuses what does not fit.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"
#include "core/types.h"
#include "engine/memory_plan.h"
#include "ops/backend.h"

namespace sparkinfer {

struct ModelShape;  // model/model.h

struct EngineOptions {
    int32_t context = 0;      // most tokens of one sequence; 0: the model's own
    int32_t slots = 1;        // sequences live at once
    int32_t chunk = 0;        // most prompt rows in one step, a multiple of 64; 0: what suits the backend
    int64_t kv_tokens = 0;    // tokens of KV pages in all; 0: slots × context
    int32_t state_slots = 0;  // recurrent states in all; 0: what `slots` sequences need
    int32_t queue = 1024;     // most requests waiting
    int32_t top_logprobs = kMaxTopLogprobs;
    // Beginnings of requests are kept: KV pages in what live sequences leave free of kv_tokens, and recurrent
    // states beside those of live sequences. A later request that begins the same computes only the rest.
    bool prefix_cache = false;
    int64_t checkpoint_bytes = 0;  // device memory for recurrent states kept; 0: eight a slot
    int64_t host_cache_bytes = 0;  // host memory for what the device has no more room for; 0: none
    // Bit for bit the same whatever the neighbours and the cache, on every backend: prompt rows in steps of
    // their own, cut at multiples of `chunk`, and nothing kept that was made by rows of other steps.
    bool deterministic = false;
};

// How tokens are chosen; the defaults are neutral (greedy is temperature 0). Ranges are checked by submit().
struct SamplingParams {
    float temperature = 0.8f;        // ≥ 0; 0 is greedy
    int32_t top_k = 40;              // ≥ 0; 0 is off
    float top_p = 0.95f;             // (0, 1]; 1 is off
    float min_p = 0.05f;             // [0, 1]; 0 is off
    float repeat_penalty = 1.0f;     // > 0; 1 is off
    int32_t repeat_last_n = 64;      // ≥ -1; -1: all tokens, 0: off
    float presence_penalty = 0.0f;   // [-2, 2]
    float frequency_penalty = 0.0f;  // [-2, 2]
    uint64_t seed = 0;
    std::vector<std::pair<TokenId, float>> logit_bias = {};  // ≤ kMaxBias
};

// A grammar, implemented outside the engine: which tokens may come next. Called from worker threads, one call
// at a time for one request.
struct Constraint {
    virtual ~Constraint() = default;
    virtual void advance(TokenId token) = 0;
    virtual void mask(std::span<uint32_t> bits) = 0;  // bit i: token i is allowed; [ceil(V/32)]
    virtual void rollback(int32_t tokens) = 0;
};

enum class RequestId : int64_t {};

struct Request {
    std::vector<TokenId> prompt = {};  // not empty
    int32_t max_tokens = -1;           // -1: to an end token or the end of the context
    SamplingParams sampling = {};
    std::vector<TokenId> stop_tokens = {};  // end tokens; ≤ kMaxStopIds
    int32_t min_tokens = 0;                 // no stop token is chosen before so many tokens
    int32_t logprobs = -1;         // -1: none; n ≥ 0: each token's log-probability and n alternatives
    int32_t prompt_logprobs = -1;  // the same for the prompt's tokens but the first
    std::shared_ptr<Constraint> constraint = nullptr;

    bool cache = true;  // whether kept beginnings are used, and this request's kept
    // Lengths of the prompt at which later requests are likely to branch off, ascending; rounded down to
    // whole pages.
    std::vector<int32_t> checkpoints = {};
    std::string cache_salt = {};  // requests of different salts share nothing
};

// Why the prompt behind the cached tokens was not found.
enum class CacheMiss {
    none,           // what was kept ends there
    disabled,       // the engine keeps nothing
    refused,        // the request wants none
    logprobs,       // log-probabilities of the prompt need all of its rows
    empty,          // nothing is kept under this salt
    diverged,       // what is kept goes on differently
    no_checkpoint,  // the same tokens are kept, but no recurrent state close enough behind them
    evicted,        // it was kept and had to give way
};
constexpr int kCacheMisses = 8;
const char* cache_miss_name(CacheMiss miss);  // "none", "disabled", …

// How a request left the queue.
struct Admission {
    int32_t cached_tokens = 0;  // of the prompt's: not computed again
    CacheMiss miss = CacheMiss::none;
    std::string detail = {};  // one sentence: the nearest kept sequence and where it diverged; no ids
    // When the step that took it in began; of who steps the engine.
    std::chrono::steady_clock::time_point at = {};
};

enum class FinishReason { none, stop, length, cancelled, error };
constexpr int kFinishReasons = 5;
const char* finish_reason_name(FinishReason reason);  // "stop", "length", …

struct TokenLogprobs {
    float logprob = 0;
    std::vector<std::pair<TokenId, float>> top;  // best first
};

// One thing that happened to one request in a step. First comes its admission (unless it ends in the queue),
// then, if asked for, the log-probabilities of its prompt in one or more pieces. Any other event has a token,
// or a finish, or both (limit reached); the end token itself is not reported. The last one has the finish.
struct Event {
    RequestId request;
    std::optional<TokenId> token = std::nullopt;
    std::optional<TokenLogprobs> logprobs = std::nullopt;
    FinishReason finish = FinishReason::none;
    std::string error = {};  // finish == error
    std::optional<Admission> admission = std::nullopt;
    std::vector<TokenLogprobs> prompt_logprobs = {};  // of the next tokens of the prompt
};

struct PrefillProgress {
    int32_t done = 0, total = 0;
};

// What the engine is doing and has done. Counts without "now" grow from its opening on.
struct EngineStats {
    int32_t slots = 0, running = 0, waiting = 0;  // now
    int32_t page_tokens = kPageTokens;
    int64_t kv_page_bytes = 0;
    int32_t kv_pages = 0;         // in all
    int32_t kv_pages_used = 0;    // now, by live sequences or the cache
    int32_t kv_pages_cached = 0;  // now, by the cache, maybe by live sequences too
    int32_t checkpoints = 0;      // recurrent states kept on the device now
    int64_t checkpoint_bytes = 0, checkpoint_budget = 0;
    int32_t host_entries = 0;  // pages and states in host memory now
    int64_t host_bytes = 0, host_budget = 0;

    int64_t requests = 0;                   // submitted
    int64_t finished[kFinishReasons] = {};  // by FinishReason
    int64_t preemptions = 0;
    int64_t prompt_tokens = 0;  // of admitted requests
    int64_t prompt_rows = 0;    // computed for prompts
    int64_t generated_tokens = 0;
    int64_t cache_query_tokens = 0, cache_hit_tokens = 0;  // looked up, not computed again
    int64_t restores = 0, host_restores = 0;  // requests that began at a kept point; those with host copies
    int64_t evictions = 0;                    // pages and states that gave way, to the host or for good
    int64_t misses[kCacheMisses] = {};        // admissions by CacheMiss
    int64_t steps = 0;
    double last_step_ms = 0;
    int32_t last_prompt_rows = 0, last_decode_rows = 0;
};

// A rating of given tokens, for perplexity and evaluation.
struct ScoreRequest {
    std::vector<TokenId> tokens;
    // Receives the raw logits after token i (predicting token i+1), for i ascending from first_logit.
    std::function<Result<void>(int32_t i, std::span<const float> logits)> on_logits;
    int32_t first_logit = 0;
};

// Hears how the opening of an engine goes, on the thread that opens it. Each may be empty.
struct OpenObserver {
    std::function<void(const MemoryPlan&)> planned = {};           // it fits; nothing has been taken yet
    std::function<void(int64_t done, int64_t total)> placed = {};  // bytes of weights
};

class Engine {
  public:
    // Opens the files, checks them, gives the model its memory on `backend` (which must outlive the engine)
    // and compiles its tapes. Errors: also a model that does not fit, with the numbers and what would.
    static Result<std::unique_ptr<Engine>> open(const std::string& path, Backend& backend,
                                                const EngineOptions& options,
                                                const OpenObserver& observer = {});
    virtual ~Engine() = default;

    virtual const Metadata& metadata() const = 0;
    virtual const ModelShape& shape() const = 0;
    virtual const EngineOptions& options() const = 0;  // as resolved: no zeros left

    // Queues a request. Errors: parameters out of range, an empty prompt, ids outside the vocabulary, a
    // prompt that leaves no room in the context, a full queue.
    virtual Result<RequestId> submit(Request request) = 0;
    // What submit() would refuse by its parameters; the queue's limit apart. Threads: any.
    virtual Result<void> check(const Request& request) const = 0;
    // Ends a request wherever it is; what it held is free after the current step. Unknown ids are ignored.
    virtual void cancel(RequestId request) = 0;
    virtual bool idle() const = 0;
    // Runs one step: prompt chunks and decode rows of the live sequences, mixed. Errors are the device's:
    // every live request has been ended with it.
    virtual Result<std::vector<Event>> step() = 0;
    virtual PrefillProgress prefill_progress(RequestId request) const = 0;

    virtual EngineStats stats() const = 0;

    // Writes what the prefix cache holds to a file, which is whole or not there at all. Waits for the device.
    virtual Result<void> save_cache(const std::string& path) = 0;
    // Adds what such a file holds. Errors: another model's file, a damaged one; nothing has changed then.
    virtual Result<void> load_cache(const std::string& path) = 0;

    // Runs tokens as one fresh sequence and hands out logits. REQUIRES: idle().
    virtual Result<void> score(const ScoreRequest& request) = 0;

    // The tape of a step of `rows` rows at sequence length `length`, for explain. Recorded, not run.
    virtual Tape record(int32_t rows, OutputKind kind) const = 0;
};

}  // namespace sparkinfer
