#include "whole_model.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "load/checkpoint.h"

namespace sparkinfer::test {
namespace {

template <class T>
bool failed(const Result<T>& result) {
    if (!result.ok()) ADD_FAILURE() << result.error().message;
    return !result.ok();
}

EngineOptions options_for(size_t tokens) {
    EngineOptions options;
    options.context = int32_t(tokens) + 64;
    return options;
}

}  // namespace

std::unique_ptr<LiveEngine> open_engine(const std::string& path, Backend& backend,
                                        const EngineOptions& options, const EngineTuning& tuning) {
    auto checkpoint = open_checkpoint(path);
    if (failed(checkpoint)) return nullptr;
    auto model = load_model(**checkpoint);
    if (failed(model)) return nullptr;
    auto engine = LiveEngine::make(std::move(*checkpoint), std::move(*model), backend, options, tuning, {});
    return failed(engine) ? nullptr : std::move(engine).value();
}

void score_prompt(const std::string& path, Backend& backend, const Tokens& tokens, int chunk,
                  const OnLogits& on_logits) {
    EngineOptions options = options_for(tokens.size());
    options.chunk = chunk;
    const auto engine = open_engine(path, backend, options);
    if (!engine) return;
    ScoreRequest request;
    request.tokens = tokens;
    request.on_logits = [&](int32_t i, std::span<const float> row) -> Result<void> {
        on_logits(i, row);
        return {};
    };
    (void)failed(engine->score(request));
}

void score_decoding(const std::string& path, Backend& backend, const Tokens& tokens, int rows,
                    const OnLogits& on_logits) {
    // Nothing is queued behind the step that reads the first token and chooses the second.
    const auto engine = open_engine(path, backend, options_for(tokens.size()), {.pipeline = 1});
    if (!engine) return;
    Request request;
    request.prompt = {tokens[0]};
    request.max_tokens = int32_t(tokens.size()) + 16;
    request.sampling.temperature = 0;
    request.sampling.logit_bias = {{tokens[1], 1e6f}};  // the token that the prompt's step chooses
    auto id = engine->submit(request);
    if (failed(id)) return;
    for (bool chosen = false; !chosen;) {
        auto events = engine->step();
        if (failed(events)) return;
        for (const Event& e : *events) chosen = chosen || e.token;
    }
    const auto count = int(tokens.size()), vocabulary = engine->shape().vocab;
    int at = 1;
    while (at < count) {
        const int n = std::min(rows, count - at);
        auto logits = engine->verify(*id, std::span(tokens).subspan(size_t(at) + 1, size_t(n) - 1));
        if (failed(logits)) return;
        for (int i = 0; i < n; ++i)
            on_logits(at + i, std::span(*logits).subspan(size_t(i) * size_t(vocabulary), size_t(vocabulary)));
        at += n;
        if (at < count && failed(engine->accept(*id, n, tokens[size_t(at)]))) return;
    }
}

std::vector<Spoken> answer(const std::string& path, Backend& backend, const EngineOptions& options,
                           std::vector<Request> requests) {
    std::vector<Spoken> said(requests.size());
    const auto engine = open_engine(path, backend, options);
    if (!engine) return said;
    std::map<RequestId, size_t> index;
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].logprobs = 0;
        auto id = engine->submit(std::move(requests[i]));
        if (failed(id)) return said;
        index[*id] = i;
    }
    while (!engine->idle()) {
        auto events = engine->step();
        if (failed(events)) return said;
        for (const Event& e : *events) {
            if (!e.error.empty()) ADD_FAILURE() << e.error;
            if (!e.token) continue;
            said[index[e.request]].tokens.push_back(*e.token);
            said[index[e.request]].logprobs.push_back(e.logprobs ? e.logprobs->logprob : NAN);
        }
    }
    return said;
}

}  // namespace sparkinfer::test
