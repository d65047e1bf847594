// score.cpp — rating given tokens: a sequence of its own, logits in blocks of rows, never all of them at
// once.
#include <numeric>

#include "engine/live_engine.h"

namespace sparkinfer {

Result<void> LiveEngine::score(const ScoreRequest& r) {
    if (r.first_logit < 0) return usage_error("first_logit is {}, expected at least 0", r.first_logit);
    const int64_t vocab = shape().vocab;
    const auto block = [&](Ticket ticket, int32_t first, int32_t rows) -> Result<void> {
        TRY(const auto logits, runner_->output_rows(ticket, rows * vocab));
        for (int32_t i = 0; i < rows; ++i)
            TRY_VOID(r.on_logits(first + i, logits.subspan(size_t(i * vocab), size_t(vocab))));
        return {};
    };
    return run_alone(r.tokens, OutputKind::logits, r.first_logit, block);
}

Result<std::vector<TokenLogprob>> LiveEngine::score_logprobs(std::span<const TokenId> tokens) {
    std::vector<TokenLogprob> all;
    const auto block = [&](Ticket ticket, int32_t, int32_t rows) -> Result<void> {
        TRY(const auto some, runner_->logprobs(ticket, rows));
        all.insert(all.end(), some.begin(), some.end());
        return {};
    };
    TRY_VOID(run_alone(tokens, OutputKind::logprobs, 0, block));
    if (!all.empty()) all.pop_back();  // behind the last token there is nothing to rate
    return all;
}

// The prompt's log-probabilities of a step whose forward pass is queued: the head in blocks of rows, each
// fetched before the next one overwrites it.
Result<void> LiveEngine::score_prompts(Flight& flight) {
    std::vector<int32_t> rows;
    std::vector<FlightSegment*> owners;
    for (FlightSegment& segment : flight.segments)
        for (int32_t i = 0; i < segment.score_rows; ++i) {
            rows.push_back(segment.score_row + i);
            owners.push_back(&segment);
        }
    for (size_t at = 0; at < rows.size(); at += kLogitRows) {
        const std::vector<int32_t> block(rows.begin() + int64_t(at),
                                         rows.begin() + int64_t(std::min(rows.size(), at + kLogitRows)));
        TRY(const Ticket ticket,
            runner_->run(flight.image, {TapePart::output, OutputKind::logprobs, 0}, block));
        TRY(const auto rated, runner_->logprobs(ticket, int32_t(block.size())));
        for (size_t i = 0; i < rated.size(); ++i) {
            FlightSegment& segment = *owners[at + i];
            TokenLogprobs& l = segment.scores.emplace_back();
            l.logprob = rated[i].logprob;
            const Sequence& s = *scheduler_->find(*segment.request);
            for (int32_t t = 0; t < std::min(rated[i].tops, s.prompt_logprobs); ++t)
                l.top.emplace_back(TokenId(rated[i].top[t].token), rated[i].top[t].value);
        }
    }
    return {};
}

// Feeds tokens as one sequence; hands out blocks of rows of the kind for the tokens from `first` on.
Result<void> LiveEngine::run_alone(std::span<const TokenId> tokens, OutputKind kind, int32_t first,
                                   const RowBlock& block) {
    CHECK(idle(), "rating tokens while requests are live");
    if (tokens.empty()) return bad_input("there are no tokens to rate, expected at least one");
    TRY_VOID(check_tokens(tokens, "token", shape().vocab));
    if (int64_t(tokens.size()) > options_.context)
        return out_of_resources("{} tokens to rate are more than the context of {}", tokens.size(),
                                options_.context);
    Sequence s;
    s.tokens.assign(tokens.begin(), tokens.end());
    s.prompt = s.explicit_end = int32_t(tokens.size());
    s.slot = 0;
    s.write_record = true;
    const Result<void> done = [&]() -> Result<void> {
        while (s.explicit_rows_left()) TRY_VOID(run_chunk(s, kind, first, block));
        return {};
    }();
    scheduler_->release_memory(s);
    return done;
}

Result<void> LiveEngine::run_chunk(Sequence& s, OutputKind kind, int32_t first, const RowBlock& block) {
    const int32_t begin = s.fed, rows = std::min(options_.chunk, s.explicit_end - begin);
    if (!scheduler_->make_room(s, rows) || !scheduler_->state_at_hand(s))
        return out_of_resources("no memory is left to rate token {}: {} KV pages are free", begin,
                                runner_->kv().free());
    Flight flight = scheduler_->empty_flight();
    scheduler_->add_segment(flight, s, rows, false);
    for (int32_t i = begin; i < begin + rows; ++i) {
        const int32_t target = i + 1 < s.explicit_end ? raw(s.tokens[size_t(i) + 1]) : -1;
        flight.image.add_row({raw(s.tokens[size_t(i)]), s.slot, i, {i, i, i}, 0, target});
    }
    TRY(const Ticket forward, runner_->run(flight.image, {TapePart::forward, kind, 0}));
    scheduler_->launched(flight);
    for (int32_t at = std::max(begin, first); at < begin + rows; at += kLogitRows) {
        std::vector<int32_t> outputs(size_t(std::min(kLogitRows, begin + rows - at)));
        std::iota(outputs.begin(), outputs.end(), at - begin);
        TRY(const Ticket ticket, runner_->run(flight.image, {TapePart::output, kind, 0}, outputs));
        TRY_VOID(block(ticket, at, int32_t(outputs.size())));
    }
    return runner_->wait(forward);
}

}  // namespace sparkinfer
