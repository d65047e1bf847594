#include "capi/loaded_model.h"

#include <algorithm>

#include "cli/machine.h"
#include "cli/model_facts.h"

namespace sparkinfer::capi {

namespace {

// Rows of a prompt in one step on a CPU: enough to use the weights well, few enough that a caller who wants
// something else does not wait for long.
constexpr int32_t kChunk = 128;

}  // namespace

LoadedModel::LoadedModel(std::unique_ptr<Backend> backend, std::unique_ptr<Engine> engine,
                         Tokenizer tokenizer)
    : backend_(std::move(backend)),
      engine_(std::move(engine)),
      tokenizer_(std::move(tokenizer)),
      template_(ChatTemplate::from_metadata(engine_->metadata())),
      vocab_(engine_->shape().vocab) {}

Result<std::shared_ptr<LoadedModel>> LoadedModel::open(const std::string& path, const LoadChoice& choice) {
    TRY(const ModelFacts facts, model_facts(path));
    TRY(Tokenizer tokenizer, Tokenizer::from_metadata(facts.metadata));
    TRY(std::unique_ptr<Backend> backend, make_backend(choice));
    const BackendInfo& info = backend->info();
    EngineOptions options;
    options.context = choice.context;
    options.slots = choice.sequences;
    if (info.host_memory) options.chunk = kChunk;
    if (choice.context == 0) {
        const int64_t memory = info.host_memory ? available_memory() : info.memory_bytes;
        const int64_t bytes_per_token = kv_bytes_per_token(facts.shape, info.kv_type) * choice.sequences;
        options.context = context_that_fits(facts, memory, bytes_per_token);
    }
    TRY(std::unique_ptr<Engine> engine, Engine::open(path, *backend, options));
    return std::shared_ptr<LoadedModel>(
        new LoadedModel(std::move(backend), std::move(engine), std::move(tokenizer)));
}

Result<std::vector<TokenId>> LoadedModel::tokenize_chat(std::string_view messages) const {
    if (!template_.ok()) return template_.error();
    TRY(const Rendered rendered, template_.value().render(messages));
    return tokenizer_.encode(rendered);
}

Result<void> LoadedModel::start(Request request, Answer& answer) {
    request.stop_tokens = tokenizer_.end_tokens();
    const std::lock_guard hold(lock_);
    TRY(answer.id, engine_->submit(std::move(request)));
    live_.emplace(answer.id, &answer);
    return {};
}

Part LoadedModel::take(Answer& answer) {
    const std::lock_guard hold(lock_);
    if (answer.ready.text.empty() && answer.ready.finish == FinishReason::none) step();
    Part part;
    std::swap(part.text, answer.ready.text);
    std::swap(part.tokens, answer.ready.tokens);
    part.finish = answer.ready.finish;
    part.error = answer.ready.error;
    return part;
}

void LoadedModel::cancel(Answer& answer) {
    const std::lock_guard hold(lock_);
    if (live_.erase(answer.id) != 0) engine_->cancel(answer.id);
}

void LoadedModel::step() {
    const Result<std::vector<Event>> events = engine_->step();
    if (events.ok()) {
        for (const Event& event : events.value()) deliver(event);
        return;
    }
    for (const auto& [id, answer] : live_) {
        answer->ready.finish = FinishReason::error;
        answer->ready.error = events.error();
    }
    live_.clear();
}

void LoadedModel::deliver(const Event& event) {
    const auto found = live_.find(event.request);
    if (found == live_.end()) return;  // over: a stop string, or nobody wants it
    Answer& answer = *found->second;
    Part& ready = answer.ready;
    if (event.token) {
        ready.tokens.push_back(*event.token);
        ready.text += answer.matcher.push(answer.decoder.push(*event.token));
    }
    if (event.finish == FinishReason::none && !answer.matcher.matched()) return;
    live_.erase(found);
    if (event.finish == FinishReason::none) engine_->cancel(event.request);
    if (!answer.matcher.matched()) {
        ready.text += answer.matcher.push(answer.decoder.finish());
        ready.text += answer.matcher.finish();
    }
    ready.finish = answer.matcher.matched() ? FinishReason::stop : event.finish;
    if (ready.finish == FinishReason::error) ready.error = internal_error("{}", event.error);
}

Result<void> LoadedModel::logits(std::span<const TokenId> ids, float* rows) {
    const std::lock_guard hold(lock_);
    while (!engine_->idle()) step();
    ScoreRequest request;
    request.tokens.assign(ids.begin(), ids.end());
    request.on_logits = [&](int32_t i, std::span<const float> row) -> Result<void> {
        std::copy(row.begin(), row.end(), rows + int64_t(i) * vocab_);
        return {};
    };
    return engine_->score(request);
}

}  // namespace sparkinfer::capi
