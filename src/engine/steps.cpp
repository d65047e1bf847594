// steps.cpp — the engine's loop: plan, queue, collect, report.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/live_engine.h"

namespace sparkinfer {
namespace {

constexpr int32_t kLeastMixedRows = 8;
constexpr double kAim = 0.9;  // of the time aimed at: steps of fewer rows cost more a row

}  // namespace

double LiveEngine::now() const {
    if (tuning_.clock) return *tuning_.clock;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Result<std::vector<Event>> LiveEngine::step() {
    CHECK(!verified_, "a step before accept()");
    const Result<void> done = advance();
    if (done.ok()) return std::exchange(events_, {});
    end_all();
    return done.error();
}

// After a failure of the device: what it was to write is not to be trusted.
void LiveEngine::end_all() {
    for (RequestId id : scheduler_->requests()) {
        Sequence& s = *scheduler_->find(id);
        ++counts_.finished[int(FinishReason::error)];
        for (SnapshotId save : s.saves) scheduler_->drop(save);
        scheduler_->remove(s);
    }
    scheduler_->flights().clear();
    (void)scheduler_->take_copies();
    if (cache_) cache_->clear();
    events_.clear();
}

Result<void> LiveEngine::advance() {
    if (failed_) return *std::exchange(failed_, std::nullopt);
    scheduler_->confirm();
    Result<void> filled = fill();
    if (cache_ && cache_->trouble()) return *cache_->trouble();
    TRY_VOID(std::move(filled));
    if (!scheduler_->flights().empty()) TRY_VOID(collect());
    // The next step's masked rows know their last token now; the device need not wait for the next call.
    if (!scheduler_->flights().empty()) TRY_VOID(finish_select(scheduler_->flights().front()));
    return {};
}

Result<void> LiveEngine::drain() {
    if (failed_) return *failed_;
    const Result<void> drained = collect_all();
    if (!drained.ok()) failed_ = drained.error();
    return drained;
}

Result<void> LiveEngine::collect_all() {
    while (!scheduler_->flights().empty()) {
        scheduler_->confirm();
        TRY_VOID(finish_select(scheduler_->flights().front()));
        TRY_VOID(collect());
    }
    return {};
}

Result<void> LiveEngine::fill() {
    const std::deque<Flight>& flights = scheduler_->flights();
    while (int32_t(flights.size()) < depth_) {
        // A forward pass would overwrite the rows that a pending choice reads.
        if (!flights.empty() && flights.back().select_pending) break;
        if (scheduler_->short_of_memory()) {
            if (!flights.empty()) break;
            relieve();
            continue;
        }
        Flight flight = scheduler_->plan(mixed_rows());
        announce();
        if (flight.segments.empty()) {
            // Pages that were to be copied may have other owners by the next step.
            for (const KvCache::Copy& copy : scheduler_->take_copies()) TRY_VOID(runner_->copy_page(copy));
            scheduler_->launched(flight);
            if (!flights.empty() || scheduler_->empty()) break;
            relieve();
            continue;
        }
        TRY_VOID(launch(std::move(flight)));
        if (tuning_.pipeline == 0) {
            TRY(const bool idle, runner_->finished(flights.back().ticket));
            if (idle) break;
        }
    }
    return {};
}

// Nothing can run for want of pages or states: somebody gives way; the last one left ends with an error.
void LiveEngine::relieve() {
    if (scheduler_->preempt_one()) return;
    Sequence& s = *scheduler_->find(scheduler_->first());
    finish(s, Event{s.id,
                    {},
                    {},
                    FinishReason::error,
                    fmt::format(
                        "no memory is left for token {}: {} of {} KV pages and {} of {} recurrent states are "
                        "free",
                        s.fed, runner_->kv().free(), runner_->kv().pages(), runner_->states().pool().free(),
                        runner_->states().pool().count())});
}

// Tells of the requests that have left the queue.
void LiveEngine::announce() {
    for (RequestId id : scheduler_->take_admitted()) {
        const Sequence& s = *scheduler_->find(id);
        counts_.prompt_tokens += s.prompt;
        ++counts_.misses[int(s.admission.miss)];
        counts_.cache_query_tokens += s.looks_up ? s.prompt : 0;
        counts_.cache_hit_tokens += s.admission.cached_tokens;
        counts_.restores += s.admission.cached_tokens > 0;
        counts_.host_restores += s.from_host;
        Event event{id};
        event.admission = s.admission;
        events_.push_back(std::move(event));
    }
}

// Prompt rows that fit beside decode rows into the time aimed at; a few at least, so that everybody moves on,
// and at first as many as a page.
int32_t LiveEngine::mixed_rows() const {
    if (tuning_.mixed_step_ms <= 0) return options_.chunk;
    if (prefill_row_s_ <= 0) return kPageTokens;
    const double rows = kAim * tuning_.mixed_step_ms / 1e3 / prefill_row_s_;
    if (rows >= options_.chunk) return options_.chunk;
    if (rows >= kPageTokens) return int32_t(rows) / kPageTokens * kPageTokens;
    return std::max(kLeastMixedRows, int32_t(rows));
}

Result<void> LiveEngine::launch(Flight flight) {
    const Result<void> queued = queue(flight);
    scheduler_->launched(flight);
    // Listed also if it has failed: what it holds is given back with the rest.
    scheduler_->flights().push_back(std::move(flight));
    return queued;
}

Result<void> LiveEngine::queue(Flight& flight) {
    if (cache_ && cache_->trouble()) return *cache_->trouble();
    for (const KvCache::Copy& copy : scheduler_->take_copies()) TRY_VOID(runner_->copy_page(copy));
    for (const FlightSegment& segment : flight.segments)
        if (segment.output >= 0) (segment.masked ? flight.masked : flight.plain).push_back(segment.output);
    flight.lane = int32_t(launched_++ % depth_);
    flight.queued_at = now();
    const OutputKind kind = flight.outputs.empty() ? OutputKind::none : OutputKind::select;
    const bool scores = std::any_of(flight.segments.begin(), flight.segments.end(),
                                    [](const FlightSegment& s) { return s.score_rows > 0; });
    if (flight.masked.empty() && !scores) {
        TRY(flight.ticket, runner_->run(flight.image, {TapePart::whole, kind, flight.lane}));
    } else {
        TRY(flight.ticket, runner_->run(flight.image, {TapePart::forward, kind, flight.lane}));
        flight.select_pending = !flight.masked.empty();
        if (!flight.plain.empty()) {
            std::vector<int32_t> rows;
            rows.reserve(flight.plain.size());
            for (int32_t output : flight.plain) rows.push_back(flight.outputs[size_t(output)]);
            TRY(flight.ticket, runner_->run(flight.image, {TapePart::output, kind, flight.lane}, rows));
        }
        if (scores) TRY_VOID(score_prompts(flight));
    }
    return {};
}

// Queues the choice of the masked rows. REQUIRES: every earlier step is collected.
Result<void> LiveEngine::finish_select(Flight& flight) {
    if (!flight.select_pending) return {};
    std::vector<int32_t> rows, outputs;
    for (const FlightSegment& segment : flight.segments) {
        Sequence* s = segment.masked && segment.request ? scheduler_->find(*segment.request) : nullptr;
        if (!s) continue;
        CHECK(s->mask, "request {} has no mask under way", int64_t(s->id));
        mask_pool_.wait(*s->mask);
        const std::vector<uint32_t>& bits = s->mask->bits;
        if (std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; })) {
            finish(*s, Event{s->id,
                             {},
                             {},
                             FinishReason::error,
                             fmt::format("the constraint allows no token at index {}", s->tokens.size())});
            continue;
        }
        TRY_VOID(runner_->upload_mask(s->slot, bits));
        s->mask.reset();
        rows.push_back(flight.outputs[size_t(segment.output)]);
        outputs.push_back(segment.output);
    }
    flight.masked = outputs;
    flight.select_pending = false;
    if (rows.empty()) return {};
    TRY(flight.masked_ticket,
        runner_->run(flight.image, {TapePart::output, OutputKind::select, depth_ + flight.lane}, rows));
    return {};
}

void LiveEngine::ask_mask(Sequence& s, std::optional<TokenId> advance, int32_t rollback) {
    CHECK(!s.mask, "request {} asks for a mask twice", int64_t(s.id));
    s.mask = std::make_shared<MaskJob>();
    s.mask->constraint = s.constraint;
    s.mask->advance = advance;
    s.mask->rollback = rollback;
    s.mask->bits.resize((size_t(shape().vocab) + 31) / 32);
    mask_pool_.submit(s.mask);
}

// What the step chose, by place among its outputs.
Result<std::vector<Selected>> LiveEngine::results(Flight& flight) {
    std::vector<Selected> chosen(flight.outputs.size());
    TRY_VOID(runner_->wait(flight.ticket));
    if (!flight.plain.empty()) {
        TRY(const auto plain, runner_->selected(flight.ticket, flight.lane, int32_t(flight.plain.size())));
        for (size_t i = 0; i < plain.size(); ++i) chosen[size_t(flight.plain[i])] = plain[i];
    }
    if (!flight.masked.empty()) {
        const auto count = int32_t(flight.masked.size());
        TRY(const auto masked, runner_->selected(flight.masked_ticket, depth_ + flight.lane, count));
        for (size_t i = 0; i < masked.size(); ++i) chosen[size_t(flight.masked[i])] = masked[i];
    }
    return chosen;
}

Result<void> LiveEngine::collect() {
    TRY_VOID(finish_select(scheduler_->flights().front()));
    TRY(const std::vector<Selected> chosen, results(scheduler_->flights().front()));
    // Still listed while it is delivered: a sequence that ends must find its rows.
    const Flight& flight = scheduler_->flights().front();
    // It began when it was queued, or when the one before it ended.
    const double began_at = std::max(flight.queued_at, std::exchange(collected_at_, now()));
    ++counts_.steps;
    counts_.last_step_ms = (collected_at_ - began_at) * 1e3;
    counts_.last_prompt_rows = flight.prefill_rows;
    counts_.prompt_rows += flight.prefill_rows;
    counts_.last_decode_rows = flight.image.rows() - flight.prefill_rows;
    if (flight.prefill_rows >= kLeastMixedRows)
        prefill_row_s_ = (collected_at_ - began_at) / flight.image.rows();
    for (const FlightSegment& segment : flight.segments)
        deliver(segment, segment.output >= 0 ? &chosen[size_t(segment.output)] : nullptr);
    for (const FlightSegment& segment : flight.segments)
        CHECK(segment.fallback < 0, "a collected row could still be taken back");
    scheduler_->flights().pop_front();
    return {};
}

void LiveEngine::deliver(const FlightSegment& segment, const Selected* chosen) {
    Sequence* s = segment.request ? scheduler_->find(*segment.request) : nullptr;
    if (!s) return;
    if (!segment.scores.empty()) {
        Event scored{s->id};
        scored.prompt_logprobs = segment.scores;
        events_.push_back(std::move(scored));
    }
    Event event{s->id, {}, {}, FinishReason::none, {}};
    if (!chosen) {
        event.finish = FinishReason::length;
        const bool last = segment.first_index + segment.rows >= s->explicit_end;
        if (s->limit == 0 && last) finish(*s, std::move(event));
        return;
    }
    if (chosen->token < 0 || chosen->token >= shape().vocab || chosen->slot != s->slot) {
        event.finish = FinishReason::error;
        event.error = fmt::format("the device chose token {} for slot {}, expected one of {} for slot {}",
                                  chosen->token, chosen->slot, shape().vocab, s->slot);
        return finish(*s, std::move(event));
    }
    // Only a row of logits without a finite one has no probabilities; a mask may leave one that the model
    // rules out.
    if (!std::isfinite(chosen->logprob) && !s->constraint) {
        event.finish = FinishReason::error;
        event.error = fmt::format(
            "the logits of token {} are not finite: the model's weights are damaged or overflow", s->fed);
        return finish(*s, std::move(event));
    }
    if (chosen->stopped == kStopToken) {
        event.finish = FinishReason::stop;
        return finish(*s, std::move(event));
    }
    const auto token = TokenId(chosen->token);
    s->tokens.push_back(token);
    ++counts_.generated_tokens;
    event.token = token;
    if (s->logprobs >= 0) {
        TokenLogprobs& l = event.logprobs.emplace();
        l.logprob = chosen->logprob;
        for (int32_t i = 0; i < chosen->tops; ++i)
            l.top.emplace_back(TokenId(chosen->top[i].token), chosen->top[i].value);
    }
    if (s->generated() >= s->limit) {
        event.finish = FinishReason::length;
        return finish(*s, std::move(event));
    }
    if (s->constraint) ask_mask(*s, token, 0);
    events_.push_back(std::move(event));
}

}  // namespace sparkinfer
