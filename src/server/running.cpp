#include "server/running.h"

namespace sparkinfer {

Running::Running(EngineThread& engine, SampledTurns& turns, std::shared_ptr<ReadyRequest> ready,
                 std::string answer_id, AnswerSink sink)
    : engine_(engine),
      turns_(turns),
      ready_(std::move(ready)),
      answer_id_(std::move(answer_id)),
      sink_(std::move(sink)),
      ended_(size_t(ready_->choices), false),
      left_(size_t(ready_->choices)),
      requests_(size_t(ready_->choices)) {
    for (int32_t i = 0; i < ready_->choices; ++i) choices_.emplace_back(ready_->rules, i);
    usage_.prompt_tokens = int32_t(ready_->prompt.size());
}

ApiResult<void> Running::start() {
    for (size_t i = 0; i < choices_.size(); ++i) {
        Request request = ready_->engine;
        request.sampling.seed += i;
        if (ready_->make_constraint) {
            auto constraint = ready_->make_constraint();
            if (!constraint.ok()) {
                cancel();
                return ApiError{500, "internal_error", "", constraint.error().message};
            }
            request.constraint = std::move(constraint).value();
        }
        auto submitted = engine_.submit(std::move(request),
                                        [self = shared_from_this(), i](const Event& e) { self->hear(i, e); });
        if (!submitted.ok()) {
            cancel();
            if (engine_.failed()) return ApiError{503, "engine_failed", "", submitted.error().message, 10};
            if (submitted.error().kind == ErrorKind::resources)
                return ApiError{429, "rate_limit_exceeded", "", submitted.error().message, 1};
            return ApiError{400, "", "", submitted.error().message};
        }
        const std::lock_guard lock(mutex_);
        requests_[i].id = submitted.value();
        if (requests_[i].unwanted) engine_.cancel(submitted.value());
    }
    return {};
}

void Running::cancel() {
    for (size_t i = 0; i < choices_.size(); ++i) give_up(i);
}

void Running::give_up(size_t choice) {
    const std::lock_guard lock(mutex_);
    requests_[choice].unwanted = true;  // its number may not be known yet
    if (requests_[choice].id) engine_.cancel(*requests_[choice].id);
}

void Running::deliver(std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) sink_(event);
    events.clear();
}

void Running::echo(size_t choice) {
    AnswerEvent echo{AnswerEvent::Kind::content};
    echo.choice = int32_t(choice);
    const Tokenizer& tokenizer = *ready_->rules.tokenizer;
    echo.text = tokenizer.decode(ready_->prompt, true);
    if (ready_->engine.prompt_logprobs >= 0) {
        TextLogprob first;
        first.id = ready_->prompt[0];
        first.bytes = tokenizer.piece(first.id);
        echo.logprobs.push_back(std::move(first));
        for (size_t i = 0; i < prompt_logprobs_.size() && i + 1 < ready_->prompt.size(); ++i)
            echo.logprobs.push_back(token_logprob(ready_->prompt[i + 1], prompt_logprobs_[i], tokenizer));
    }
    sink_(echo);
}

void Running::started(const Event& event) {
    has_started_ = true;
    AnswerEvent e{AnswerEvent::Kind::started};
    if (event.admission) {
        usage_.cached_tokens = event.admission->cached_tokens;
        e.cache_miss = cache_miss_name(event.admission->miss);
        e.cache_detail = event.admission->detail;
        e.admitted = event.admission->at;
    }
    e.usage = usage_;
    sink_(e);
}

void Running::hear(size_t choice, const Event& event) {
    if (failed_ || ended_[choice]) return;
    if (event.finish == FinishReason::error) return fail(event.error);
    if (!has_started_ && event.admission) started(event);
    if (choice == 0)
        prompt_logprobs_.insert(prompt_logprobs_.end(), event.prompt_logprobs.begin(),
                                event.prompt_logprobs.end());
    Choice& c = choices_[choice];
    if (ready_->echo && (event.token || event.finish != FinishReason::none) && !c.echoed()) {
        c.set_echoed();
        echo(choice);
    }
    std::vector<AnswerEvent> events;
    if (event.token) c.push(event, events);
    deliver(events);
    if (c.stopped()) {
        give_up(choice);
        return end_choice(choice, FinishReason::stop);
    }
    if (event.finish != FinishReason::none) end_choice(choice, event.finish);
}

void Running::end_choice(size_t choice, FinishReason reason) {
    ended_[choice] = true;
    Choice& c = choices_[choice];
    std::vector<AnswerEvent> events;
    c.finish(events);
    deliver(events);
    if (!has_started_) started(Event{});
    usage_.completion_tokens += c.tokens();
    usage_.reasoning_tokens += c.reasoning_tokens();
    AnswerEvent end{AnswerEvent::Kind::finished};
    end.choice = int32_t(choice);
    end.stop = c.stop();
    end.usage = usage_;
    if (reason == FinishReason::length) end.finish = AnswerFinish::length;
    if (reason == FinishReason::cancelled) end.finish = AnswerFinish::cancelled;
    if (reason == FinishReason::stop && c.has_calls()) end.finish = AnswerFinish::tool_calls;
    // An answer that broke off stands in the history as far as it got; one cut at a stop string has tokens
    // that nobody was shown.
    if (ready_->remember && !c.stopped()) {
        SampledTurn turn = c.take_turn();
        turn.prompt_tail = ready_->prompt_tail;
        std::vector<std::string> ids{answer_id_};
        for (const ToolCall& call : turn.calls) ids.push_back(call.id);
        turns_.remember(ids, std::move(turn), ready_->engine.cache_salt);
    }
    --left_;
    sink_(end);
}

void Running::fail(const std::string& message) {
    failed_ = true;
    cancel();
    AnswerEvent e{AnswerEvent::Kind::failed};
    e.error = ApiError{500, "internal_error", "", message};
    sink_(e);
}

}  // namespace sparkinfer
