// kept_points.cpp — forks, undo, saves and the verification of drafted tokens.
#include "engine/live_engine.h"

namespace sparkinfer {

// The sequence, live and with nothing in flight.
Result<Sequence*> LiveEngine::running(RequestId request) {
    TRY_VOID(drain());
    Sequence* s = scheduler_->find(request);
    if (!s || s->slot < 0) return usage_error("request {} is not live", int64_t(request));
    return s;
}

Result<SnapshotId> LiveEngine::keep(RequestId request) {
    TRY(Sequence * s, running(request));
    return scheduler_->keep(*s);
}

Result<RequestId> LiveEngine::fork(RequestId request) {
    TRY(Sequence * s, running(request));
    if (s->constraint)
        return usage_error("request {} has a constraint and cannot be forked", int64_t(request));
    if (scheduler_->full())
        return out_of_resources("{} requests are waiting, which is the queue's limit", options_.queue);
    const SnapshotId point = scheduler_->keep(*s);
    auto twin = std::make_unique<Sequence>(*s);
    twin->id = RequestId(next_request_++);
    twin->slot = -1;
    twin->admitted = twin->looks_up = twin->from_host = false;
    twin->admission = {};
    twin->pages.clear();
    twin->state = -1;
    twin->saves.clear();
    twin->save_every = 0;
    scheduler_->restore(*twin, *scheduler_->find(point));
    scheduler_->drop(point);
    return scheduler_->add(std::move(twin)).id;
}

Result<void> LiveEngine::undo(RequestId request, SnapshotId point, int32_t tokens) {
    TRY(Sequence * s, running(request));
    const Snapshot* kept = scheduler_->find(point);
    if (!kept) return usage_error("there is no kept point {}", int64_t(point));
    if (tokens < s->prompt || tokens > int32_t(s->tokens.size()))
        return usage_error("keeping {} tokens of request {}, expected {} to {}", tokens, int64_t(request),
                           s->prompt, s->tokens.size());
    const auto length = kept->tokens.size();
    if (length >= size_t(tokens) || !std::equal(kept->tokens.begin(), kept->tokens.end(), s->tokens.begin()))
        return usage_error("kept point {} holds {} tokens, expected a proper beginning of the {} that stay",
                           int64_t(point), length, tokens);
    const int32_t back = int32_t(s->tokens.size()) - tokens;
    s->tokens.resize(size_t(tokens));
    scheduler_->restore(*s, *kept);
    if (s->constraint && back > 0) {
        if (s->mask) mask_pool_.wait(*s->mask);
        s->mask.reset();
        ask_mask(*s, std::nullopt, back);
    }
    return {};
}

Result<RequestId> LiveEngine::submit_from(SnapshotId point, Request request) {
    TRY_VOID(check_request(request, options_, shape()));
    const Snapshot* kept = scheduler_->find(point);
    if (!kept) return usage_error("there is no kept point {}", int64_t(point));
    if (kept->tokens.size() >= request.prompt.size() ||
        !std::equal(kept->tokens.begin(), kept->tokens.end(), request.prompt.begin()))
        return usage_error(
            "kept point {} holds {} tokens, expected a proper beginning of the {} prompt tokens",
            int64_t(point), kept->tokens.size(), request.prompt.size());
    if (scheduler_->full())
        return out_of_resources("{} requests are waiting, which is the queue's limit", options_.queue);
    std::unique_ptr<Sequence> s = new_sequence(std::move(request));
    scheduler_->restore(*s, *kept);
    return scheduler_->add(std::move(s)).id;
}

Result<RequestId> LiveEngine::submit_saving(Request request, int32_t every) {
    if (every <= 0 || every % kPageTokens != 0)
        return usage_error("saving every {} tokens, expected a positive multiple of {}", every, kPageTokens);
    TRY(const RequestId id, submit(std::move(request)));
    scheduler_->find(id)->save_every = every;
    return id;
}

std::vector<SnapshotId> LiveEngine::saves(RequestId request) const {
    if (const Sequence* s = scheduler_->find(request)) return s->saves;
    const auto found = saved_.find(request);
    return found == saved_.end() ? std::vector<SnapshotId>{} : found->second;
}

Result<std::vector<float>> LiveEngine::verify(RequestId request, std::span<const TokenId> draft) {
    CHECK(!verified_, "verifying before accept()");
    TRY(Sequence * s, running(request));
    const auto rows = int32_t(draft.size()) + 1;
    if (rows > kMaxVerifyRows)
        return usage_error("{} rows to verify, expected at most {}", rows, kMaxVerifyRows);
    TRY_VOID(check_tokens(draft, "draft token", shape().vocab));
    if (s->constraint)
        return usage_error("request {} has a constraint: its drafts need masks", int64_t(request));
    if (s->fed + 1 != int32_t(s->tokens.size()))
        return usage_error("request {} is still reading its prompt", int64_t(request));
    if (s->fed + rows >= options_.context)
        return usage_error("{} rows to verify at index {}, which leaves the context of {}", rows, s->fed,
                           options_.context);
    if (!scheduler_->make_room(*s, rows))
        return out_of_resources("no KV pages are left for {} rows to verify", rows);
    Verified v{request, {s->tokens.back()}, s->fed};
    v.tokens.insert(v.tokens.end(), draft.begin(), draft.end());
    Flight flight = scheduler_->empty_flight();
    scheduler_->add_segment(flight, *s, rows, false);
    for (int32_t i = 0; i < rows; ++i) {
        const int32_t at = v.fed + i;
        flight.image.add_row(
            {raw(v.tokens[size_t(i)]), s->slot, at, {at, at, at}, kRowOutput | kRowVerify, -1});
    }
    for (const KvCache::Copy& copy : scheduler_->take_copies()) TRY_VOID(runner_->copy_page(copy));
    TRY(const Ticket ticket, runner_->run(flight.image, {TapePart::whole, OutputKind::logits, 0}));
    scheduler_->launched(flight);
    TRY(const auto logits, runner_->output_rows(ticket, int64_t(rows) * shape().vocab));
    verified_ = std::move(v);
    return std::vector<float>(logits.begin(), logits.end());
}

Result<void> LiveEngine::accept(RequestId request, int32_t rows, TokenId next) {
    CHECK(verified_ && verified_->request == request, "accepting what was not verified");
    const Verified v = *std::exchange(verified_, std::nullopt);
    Sequence* found = scheduler_->find(request);
    if (!found) return usage_error("request {} has ended since it was verified", int64_t(request));
    Sequence& s = *found;
    CHECK(rows >= 0 && rows <= int32_t(v.tokens.size()), "accepting {} rows of {}", rows, v.tokens.size());
    CHECK(s.generated() + rows <= s.limit, "accepting {} rows with {} of {} tokens", rows, s.generated(),
          s.limit);
    s.fed = v.fed + rows;
    s.logged = rows;
    if (rows > 0) {
        s.tokens.insert(s.tokens.end(), v.tokens.begin() + 1, v.tokens.begin() + rows);
        s.tokens.push_back(next);
    }
    s.explicit_end = int32_t(s.tokens.size());
    s.selects = s.generated();
    s.write_cursor = true;
    if (s.generated() >= s.limit) finish(s, Event{request, {}, {}, FinishReason::length, {}});
    return {};
}

}  // namespace sparkinfer
