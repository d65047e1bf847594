// engine.cpp — opening, submitting, ending: everything about a request but its steps (steps.cpp).
#include "engine/engine.h"

#include <algorithm>
#include <new>

#include "engine/cache_file.h"
#include "engine/live_engine.h"
#include "engine/min_tokens.h"

namespace sparkinfer {
namespace {

constexpr int32_t kDefaultPipeline = 2, kMaxPipeline = 4;
constexpr int32_t kCheckpointEvery = 4096;  // tokens

// Plain memory: what a model without files reads from.
struct MemoryBytes : ByteSource {
    Result<void> read(const void* view, std::span<std::byte> to) override {
        std::copy_n(static_cast<const std::byte*>(view), to.size(), to.data());
        return {};
    }
};

StepLimits step_limits(const EngineOptions& o) {
    StepLimits l;
    l.rows = o.chunk + o.slots;
    l.segments = o.slots;
    l.saves = 2 * (o.chunk / kPageTokens + o.slots);  // for kept points, and for the prefix cache
    l.changes = o.slots * (kAdmissionChanges + 1);
    // Every slot may be taken in one step, and one of them by a sequence that brings its history.
    l.payload_words = o.slots * (kSlotWords + pages_for(o.context) + 1) + o.context;
    return l;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::none: return "none";
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::cancelled: return "cancelled";
        case FinishReason::error: return "error";
    }
    return "?";
}

const char* cache_miss_name(CacheMiss miss) {
    switch (miss) {
        case CacheMiss::none: return "none";
        case CacheMiss::disabled: return "disabled";
        case CacheMiss::refused: return "refused";
        case CacheMiss::logprobs: return "logprobs";
        case CacheMiss::empty: return "empty";
        case CacheMiss::diverged: return "diverged";
        case CacheMiss::no_checkpoint: return "no_checkpoint";
        case CacheMiss::evicted: return "evicted";
    }
    return "?";
}

Result<std::unique_ptr<Engine>> Engine::open(const std::string& path, Backend& backend,
                                             const EngineOptions& options, const OpenObserver& observer) {
    TRY(std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(path));
    TRY(std::unique_ptr<Model> model, load_model(*checkpoint));
    TRY(std::unique_ptr<LiveEngine> engine,
        LiveEngine::make(std::move(checkpoint), std::move(model), backend, options, {}, observer));
    return std::unique_ptr<Engine>(std::move(engine));
}

Result<std::unique_ptr<LiveEngine>> LiveEngine::make(std::unique_ptr<Checkpoint> checkpoint,
                                                     std::unique_ptr<Model> model, Backend& backend,
                                                     const EngineOptions& options, const EngineTuning& tuning,
                                                     const OpenObserver& observer) {
    CHECK(tuning.pipeline >= 0 && tuning.pipeline <= kMaxPipeline, "a pipeline of {} steps", tuning.pipeline);
    std::unique_ptr<LiveEngine> e(new LiveEngine(tuning));
    e->depth_ = tuning.pipeline > 0 ? tuning.pipeline : kDefaultPipeline;
    if (checkpoint) e->metadata_ = checkpoint->metadata();
    e->checkpoint_ = std::move(checkpoint);
    e->model_ = std::move(model);
    TRY(e->options_, resolve_options(options, e->shape(), e->depth_, backend.info().chunk));
    const EngineOptions& o = e->options_;
    RunnerPlan plan;
    plan.context = o.context;
    plan.slots = o.slots;
    plan.rows = o.chunk + o.slots;
    plan.pages = pages_for(o.kv_tokens);
    TRY(const int32_t checkpoints, checkpoint_slots(e->options_, e->shape(), backend.info()));
    plan.states = o.state_slots + checkpoints;
    plan.lanes = 2 * e->depth_;
    plan.top = o.top_logprobs;
    plan.pad_to_bucket = tuning.pad_to_bucket.value_or(backend.info().captures);
    plan.limits = step_limits(o);
    MemoryBytes memory;
    std::unique_ptr<CheckpointBytes> files;
    if (e->checkpoint_) files = std::make_unique<CheckpointBytes>(*e->checkpoint_);
    ByteSource& source = files ? static_cast<ByteSource&>(*files) : memory;
    TRY(e->runner_, Runner::make(*e->model_, backend, source, plan, observer));
    const SchedulerLimits limits{o.slots, o.queue, o.context, o.chunk, plan.limits, o.deterministic};
    if (o.prefix_cache) e->make_cache(checkpoints);
    e->scheduler_ =
        std::make_unique<Scheduler>(e->runner_->kv(), e->runner_->states(), limits, e->cache_.get());
    return e;
}

void LiveEngine::make_cache(int32_t checkpoints) {
    CacheLimits limits{checkpoints, options_.host_cache_bytes, kPageTokens};
    if (options_.deterministic) limits.granule = options_.chunk;
    cache_ = std::make_unique<PrefixCache>(runner_->kv(), runner_->states(), limits, *runner_);
    // What a backend does at its first block of a size is done before the first request.
    const int64_t state = runner_->states().bytes_each();
    if (state > 0 && state <= limits.host_bytes) (void)runner_->host_block(size_t(state));
}

LiveEngine::~LiveEngine() {
    // The backend may still write into memory that it owns; what it reads of ours must outlive that.
    if (scheduler_)
        for (const Flight& flight : scheduler_->flights()) (void)runner_->wait(flight.ticket);
}

std::unique_ptr<Sequence> LiveEngine::new_sequence(Request request) {
    auto s = std::make_unique<Sequence>();
    s->id = RequestId(next_request_++);
    s->admission.miss = CacheMiss::disabled;
    std::vector<int32_t> keep_at = points_of(request);
    s->sampling = std::move(request.sampling);
    s->stop_tokens = std::move(request.stop_tokens);
    s->logprobs = request.logprobs;
    s->prompt_logprobs = request.prompt_logprobs;
    s->constraint = std::move(request.constraint);
    if (request.min_tokens > 0 && !s->stop_tokens.empty())
        s->constraint = std::make_shared<MinTokens>(request.min_tokens, s->stop_tokens, s->constraint);
    s->tokens = std::move(request.prompt);
    s->prompt = int32_t(s->tokens.size());
    if (cache_) {
        const bool scored = request.prompt_logprobs >= 0;
        s->looks_up = request.cache && !scored;
        s->keeps = request.cache;
        s->salt = std::move(request.cache_salt);
        s->keep_at = std::move(keep_at);
        s->admission.miss = scored ? CacheMiss::logprobs : CacheMiss::refused;
    }
    const int32_t room = options_.context - s->prompt;
    s->limit = request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
    s->explicit_end = s->prompt;
    ++counts_.requests;
    if (s->constraint) ask_mask(*s, std::nullopt, 0);
    return s;
}

// Where a prompt's state is worth keeping: where the caller says, every few thousand tokens, and as late as
// it can be used by the same prompt. Without recurrent layers, every page.
std::vector<int32_t> LiveEngine::points_of(const Request& request) const {
    const int32_t granule = options_.deterministic ? options_.chunk : kPageTokens;
    const auto prompt = int32_t(request.prompt.size());
    std::vector<int32_t> points;
    if (shape().state.empty()) {
        for (int32_t at = granule; at <= prompt; at += granule) points.push_back(at);
        return points;
    }
    for (int32_t at : request.checkpoints) points.push_back(at / granule * granule);
    for (int32_t at = kCheckpointEvery; at < prompt; at += kCheckpointEvery)
        points.push_back(at / granule * granule);
    points.push_back((prompt - 1) / granule * granule);
    std::sort(points.begin(), points.end());
    points.erase(std::unique(points.begin(), points.end()), points.end());
    std::erase(points, 0);
    return points;
}

Result<void> LiveEngine::check(const Request& request) const {
    return check_request(request, options_, shape());
}

Result<RequestId> LiveEngine::submit(Request request) {
    TRY_VOID(check(request));
    if (scheduler_->full())
        return out_of_resources("{} requests are waiting, which is the queue's limit", options_.queue);
    return scheduler_->add(new_sequence(std::move(request))).id;
}

void LiveEngine::cancel(RequestId request) {
    Sequence* s = scheduler_->find(request);
    if (s) finish(*s, Event{request, {}, {}, FinishReason::cancelled, {}});
}

EngineStats LiveEngine::stats() const {
    EngineStats s = counts_;
    s.slots = options_.slots;
    s.running = scheduler_->live();
    s.waiting = scheduler_->waiting();
    s.kv_pages = runner_->kv().pages();
    s.kv_pages_used = s.kv_pages - runner_->kv().free();
    s.preemptions = scheduler_->preemptions();
    s.kv_page_bytes = runner_->kv().bytes_each();
    if (cache_) cache_->add_stats(s);
    return s;
}

Result<void> LiveEngine::save_cache(const std::string& path) {
    if (!cache_) return usage_error("the prefix cache is off: there is nothing to save");
    TRY_VOID(drain());
    try {
        return CacheFile::save(*cache_, identity(), path);
    } catch (const std::bad_alloc&) {
        return out_of_resources("{}: no memory is left to write it", path);
    }
}

Result<void> LiveEngine::load_cache(const std::string& path) {
    if (!cache_) return usage_error("the prefix cache is off: there is nowhere to load to");
    TRY_VOID(drain());
    try {
        return CacheFile::load(*cache_, identity(), path);
    } catch (const std::bad_alloc&) {
        return out_of_resources("{}: no memory is left to read it", path);
    }
}

// What makes kept pages and states those of this model on this backend.
uint64_t LiveEngine::identity() const {
    const BackendInfo& info = runner_->backend();
    std::string facts =
        fmt::format("{} {} {} {} {} {} {}", info.name, int(info.kv_type), int(info.state_type),
                    shape().architecture, shape().dim, shape().vocab, shape().layers);
    for (const KvLayer& l : shape().kv) facts += fmt::format(" kv {} {}", l.heads, l.width);
    for (const StateLayer& l : shape().state)
        facts += fmt::format(" state {} {} {} {}", l.key_heads, l.value_heads, l.width, l.channels);
    uint64_t hash = hash_bytes(0, std::as_bytes(std::span(facts)));
    if (!checkpoint_) return hash;
    for (const StoredTensor& t : checkpoint_->tensors()) {
        const std::string tensor = fmt::format("{} {} {}", t.name, t.type, shape_text(t.shape));
        hash = hash_bytes(hash, std::as_bytes(std::span(tensor)));
        // Some of the values: a fine-tuned model has the names and shapes of its origin.
        const uint64_t some = std::min<uint64_t>(t.bytes, 64);
        if (t.data) hash = hash_bytes(hash, {t.data + (t.bytes - some) / 2, size_t(some)});
    }
    return hash;
}

bool LiveEngine::idle() const {
    return scheduler_->empty() && scheduler_->flights().empty() && events_.empty();
}

PrefillProgress LiveEngine::prefill_progress(RequestId request) const {
    const Sequence* s = scheduler_->find(request);
    if (!s) return {};
    return {std::min(s->fed, s->prompt), s->prompt};
}

Tape LiveEngine::record(int32_t rows, OutputKind kind) const {
    return runner_->record(rows, {TapePart::whole, kind, 0});
}

void LiveEngine::finish(Sequence& s, Event event) {
    ++counts_.finished[int(event.finish)];
    events_.push_back(std::move(event));
    if (tuning_.keep_finished && s.slot >= 0) finished_[s.id] = scheduler_->keep(s);
    const bool sound = events_.back().finish != FinishReason::error;
    if (sound && s.slot >= 0) scheduler_->keep_end(s);
    if (!s.saves.empty()) saved_[s.id] = s.saves;
    scheduler_->remove(s);
}

std::optional<SnapshotId> LiveEngine::finished_point(RequestId request) const {
    const auto found = finished_.find(request);
    return found == finished_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace sparkinfer
