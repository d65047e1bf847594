// admission.cpp — the scheduler's queue and its prefix cache: who starts, from where, and what is kept of it.
#include <algorithm>

#include "engine/scheduler.h"

namespace sparkinfer {
namespace {

constexpr int32_t kWorthWaiting = 2 * kPageTokens;  // tokens that a request finds kept if it waits

}  // namespace

void Scheduler::admit() {
    for (size_t i = 0; i < waiting_.size() && !free_slots_.empty();) {
        Sequence& s = *find(waiting_[i]);
        if (waits_for_prefix(s)) {
            ++i;
            continue;
        }
        // Nobody overtakes who waits for memory.
        if (!place(s)) return;
        waiting_.erase(waiting_.begin() + int64_t(i));
        s.slot = free_slots_.back();
        free_slots_.pop_back();
        s.write_record = true;
        s.pages_written = 0;
        s.explicit_end = int32_t(s.tokens.size());
        s.selects = s.generated();
        live_.push_back(s.id);
        if (!std::exchange(s.admitted, true)) admitted_.push_back(s.id);
        CHECK(make_room(s, s.explicit_end - s.fed), "an admitted sequence has no room");
    }
}

// Prompts are read one after the other anyway: who begins like one that is being read loses nothing by
// waiting for what that one will leave.
bool Scheduler::waits_for_prefix(const Sequence& s) const {
    if (!cache_ || !s.looks_up || s.admitted || s.fed > 0) return false;
    const auto longest = int32_t(s.tokens.size()) - 1;
    for (RequestId id : live_) {
        const Sequence& other = *find(id);
        if (!other.keeps || other.salt != s.salt || !other.explicit_rows_left()) continue;
        const auto common = int32_t(
            std::mismatch(s.tokens.begin(), s.tokens.begin() + longest, other.tokens.begin(),
                          other.tokens.begin() + std::min(other.explicit_end, int32_t(other.tokens.size())))
                .first -
            s.tokens.begin());
        const auto above = std::upper_bound(other.keep_at.begin(), other.keep_at.end(), common);
        const int32_t point = above == other.keep_at.begin() ? 0 : *std::prev(above);
        if (point <= other.fed || point < kWorthWaiting) continue;
        if (point - cache_->find(s.salt, s.tokens).length >= kWorthWaiting) return true;
    }
    return false;
}

// Finds room for a waiting sequence, and the point it starts from.
bool Scheduler::place(Sequence& s) {
    PrefixCache::Match match;
    const bool looks = cache_ && s.looks_up && s.fed == 0 && s.pages.empty();
    if (looks) match = cache_->find(s.salt, s.tokens);
    if (!room_for(s, match)) {
        // As long as somebody runs, something will be given back.
        if (!live_.empty() || match.length == 0) return false;
        match = {};
        match.admission = {0, CacheMiss::evicted, "what was kept had to give way to this request"};
        if (!room_for(s, match)) return false;
    }
    if (looks && !s.admitted) {
        s.admission = match.admission;
        s.from_host = match.from_host;
    }
    if (match.length == 0) return true;
    Snapshot point = cache_->restore(match);
    s.pages = std::move(point.pages);
    s.state = point.state;
    s.logged = point.logged;
    s.fed = match.length;
    return true;
}

bool Scheduler::room_for(const Sequence& s, const PrefixCache::Match& match) {
    int32_t pages = 0;
    for (RequestId id : live_) pages += pages_needed(*find(id)) + 1;  // and a page for each to grow into
    pages += pages_needed(s);
    int32_t states = states_needed() + int32_t(needs_state(s));
    if (!cache_) return pages <= kv_.free() && states <= states_.pool().free();
    if (match.length > 0) pages += int32_t(match.loads_tail) - match.shared_pages;
    return cache_->make_room(pages, &match) && cache_->make_state_room(states, &match);
}

// Of the rows of a segment that is being planned: the points that are to be kept.
void Scheduler::keep_points(Flight& flight, Sequence& s, Segment& segment) {
    const int32_t first = s.fed - segment.rows, end = std::min(s.fed, s.explicit_end);
    auto at = std::upper_bound(s.keep_at.begin(), s.keep_at.end(), first);
    const auto tokens = [&](int32_t n) { return std::span(s.tokens).first(size_t(n)); };
    if (!states_.used()) {
        const auto last = std::upper_bound(at, s.keep_at.end(), end);
        if (last != at) cache_->insert(s.salt, tokens(*std::prev(last)), s.pages, -1, 0, true);
        return;
    }
    for (; at != s.keep_at.end() && *at <= end; ++at) {
        if (*at == s.fed) {
            cache_->insert(s.salt, tokens(*at), s.pages, s.state, 0, true);
            continue;
        }
        const std::optional<int32_t> state = cache_->take_state(states_promised_);
        if (!state) continue;
        flight.image.add_save({segment.first_row + *at - 1 - first, *state});
        ++segment.saves;
        cache_->insert(s.salt, tokens(*at), s.pages, *state, 0, true);
        flight.released.push_back(*state);  // ours; the step writes it whether the cache has kept it or not
    }
}

void Scheduler::keep_end(Sequence& s) {
    if (!cache_ || !s.keeps || s.fed == 0 || limits_.deterministic) return;
    const SnapshotId id = keep(s);
    const Snapshot& point = *find(id);
    if (!states_.used() || point.state >= 0)
        cache_->insert(s.salt, point.tokens, point.pages, point.state, point.logged, false);
    drop(id);
}

}  // namespace sparkinfer
