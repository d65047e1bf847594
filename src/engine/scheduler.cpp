#include "engine/scheduler.h"

#include <algorithm>

namespace sparkinfer {

Scheduler::Scheduler(KvCache& kv, StatePool& states, const SchedulerLimits& limits, PrefixCache* cache)
    : kv_(kv), states_(states), limits_(limits), cache_(cache) {
    for (int32_t i = limits.slots; i-- > 0;) free_slots_.push_back(i);
}

Sequence* Scheduler::find(RequestId id) {
    const auto found = sequences_.find(id);
    return found == sequences_.end() ? nullptr : found->second.get();
}

std::vector<RequestId> Scheduler::requests() const {
    std::vector<RequestId> ids;
    ids.reserve(sequences_.size());
    for (const auto& [id, sequence] : sequences_) ids.push_back(id);
    return ids;
}

bool Scheduler::full() const {
    int32_t fresh = 0;
    for (RequestId id : waiting_) fresh += !find(id)->admitted;
    return fresh >= limits_.queue;
}

Sequence& Scheduler::add(std::unique_ptr<Sequence> sequence) {
    const RequestId id = sequence->id;
    waiting_.push_back(id);
    return *sequences_.emplace(id, std::move(sequence)).first->second;
}

void Scheduler::release_state(int32_t& state) {
    if (state >= 0) states_.pool().release(state);
    state = -1;
}

void Scheduler::release_memory(Sequence& s) {
    kv_.release(s.pages);
    release_state(s.state);
    s.logged = 0;
    s.pages_written = 0;
    s.fed = 0;
}

void Scheduler::release_slot(Sequence& s) {
    if (s.slot >= 0) free_slots_.push_back(s.slot);
    s.slot = -1;
}

void Scheduler::remove(Sequence& s) {
    void_rows(s);
    for (Flight& flight : flights_)
        for (FlightSegment& segment : flight.segments)
            if (segment.request == s.id) segment.request.reset();
    release_memory(s);
    release_slot(s);
    std::erase(waiting_, s.id);
    std::erase(live_, s.id);
    sequences_.erase(s.id);
}

void Scheduler::confirm() {
    for (Flight& flight : flights_)
        for (FlightSegment& segment : flight.segments) {
            if (!segment.voidable || !segment.request) continue;
            const Sequence* s = find(*segment.request);
            if (segment.first_index >= int32_t(s->tokens.size())) continue;
            release_state(segment.fallback);
            segment.voidable = false;
        }
}

void Scheduler::void_rows(Sequence& s) {
    for (auto flight = flights_.rbegin(); flight != flights_.rend(); ++flight)
        for (FlightSegment& segment : flight->segments) {
            if (segment.request != s.id || !segment.voidable) continue;
            release_state(s.state);
            s.state = segment.fallback;
            s.logged = segment.fallback_logged;
            s.fed = segment.first_index;
            if (segment.output >= 0) --s.selects;
            segment.request.reset();
            segment.fallback = -1;
        }
}

bool Scheduler::needs_state(const Sequence& s) const {
    return states_.used() && (s.state < 0 || states_.pool().shared(s.state));
}

int32_t Scheduler::states_needed() const {
    int32_t n = 0;
    for (RequestId id : live_) {
        const Sequence& s = *find(id);
        n += s.wants_row() && needs_state(s);
    }
    return n;
}

int32_t Scheduler::pages_needed(const Sequence& s) const {
    if (!s.wants_row()) return 0;
    const int32_t tokens = s.explicit_rows_left() ? s.explicit_end : s.fed + 1;
    return std::max(0, pages_for(tokens) - int32_t(s.pages.size())) + int32_t(kv_.needs_copy(s.pages, s.fed));
}

bool Scheduler::short_of_memory() {
    int32_t pages = 0;
    for (RequestId id : live_) pages += pages_needed(*find(id));
    if (cache_) return !cache_->make_room(pages) || !cache_->make_state_room(states_needed());
    return pages > kv_.free() || states_needed() > states_.pool().free();
}

bool Scheduler::preempt_one() {
    CHECK(flights_.empty(), "preempting with {} steps in flight", flights_.size());
    for (RequestId id : waiting_) {
        Sequence& s = *find(id);
        if (s.pages.empty() && s.state < 0) continue;
        release_memory(s);
        return true;
    }
    if (live_.size() < 2) return false;
    ++preemptions_;
    Sequence& s = *find(live_.back());
    live_.pop_back();
    keep_end(s);
    release_memory(s);
    release_slot(s);
    s.explicit_end = int32_t(s.tokens.size());
    waiting_.push_front(s.id);
    return true;
}

bool Scheduler::make_room(Sequence& s, int32_t rows) {
    const int32_t end = s.fed + rows;
    const int32_t more = std::max(0, pages_for(end) - int32_t(s.pages.size()));
    const int32_t pages = more + int32_t(kv_.needs_copy(s.pages, s.fed));
    if (pages > kv_.free() && !(cache_ && cache_->make_room(pages))) return false;
    if (const auto copy = kv_.make_writable(s.pages, s.fed)) {
        copies_.push_back(*copy);
        s.pages_written = std::min(s.pages_written, copy->entry);
    }
    return kv_.reserve(s.pages, end);
}

bool Scheduler::fits(const Flight& flight, const Sequence& s) const {
    const int32_t pages = int32_t(s.pages.size()) + 1;
    return flight.image.fits(kAdmissionChanges, kSlotWords + pages + (s.write_record ? s.fed : 0));
}

Flight Scheduler::plan(int32_t prefill_rows) {
    ++plans_;
    admit();
    states_promised_ = states_needed();
    if (limits_.deterministic) return plan_apart();
    Flight flight(limits_.step);
    for (RequestId id : live_) {
        Sequence& s = *find(id);
        if (!s.explicit_rows_left() && s.selects < s.limit) plan_decode(flight, s);
    }
    const bool mixed = !flight.segments.empty();
    small_pieces_ = mixed && prefill_rows < kPageTokens;
    int32_t budget = mixed ? std::min(limits_.chunk, prefill_rows) : limits_.chunk;
    for (RequestId id : prefill_order())
        if (budget > 0) budget -= plan_prefill(flight, *find(id), budget);
    return flight;
}

// Steps of prompt rows of one sequence, and steps of other rows, in turns.
Flight Scheduler::plan_apart() {
    Flight flight(limits_.step);
    const auto prompts = [&] {
        for (RequestId id : prefill_order()) {
            Sequence& s = *find(id);
            if (flight.segments.empty() && s.fed < s.prompt) plan_prefill(flight, s, limits_.chunk);
        }
    };
    if (plans_ % 2 == 0) prompts();
    if (!flight.segments.empty()) return flight;
    for (size_t i = 0; i < live_.size() && flight.image.rows() < kMaxVerifyRows; ++i) {
        Sequence& s = *find(live_[(size_t(plans_) + i) % live_.size()]);
        if (s.explicit_rows_left()) {
            if (s.fed >= s.prompt) plan_prefill(flight, s, 1);  // tokens it had before it had to give way
        } else if (s.selects < s.limit) {
            plan_decode(flight, s);
        }
    }
    if (flight.segments.empty()) prompts();
    return flight;
}

std::vector<RequestId> Scheduler::prefill_order() const {
    std::vector<std::pair<int32_t, size_t>> waiting;  // rows left, place among the live
    for (size_t i = 0; i < live_.size(); ++i)
        if (const Sequence& s = *find(live_[i]); s.explicit_rows_left())
            waiting.emplace_back(s.explicit_end - s.fed, i);
    if (plans_ % 4 >= 2)
        std::sort(waiting.begin(), waiting.end());  // the shortest first, of equals the oldest
    std::vector<RequestId> order;
    order.reserve(waiting.size());
    for (const auto& [left, place] : waiting) order.push_back(live_[place]);
    return order;
}

int32_t Scheduler::chunk_end(const Sequence& s, int32_t budget) const {
    if (limits_.deterministic) {
        const int32_t last = std::min(s.prompt, s.explicit_end);
        return s.fed < last ? std::min(last, (s.fed / limits_.chunk + 1) * limits_.chunk) : s.fed + 1;
    }
    // Inner cuts lie on page borders, so that what is kept there can be shared; small pieces meet them.
    const int32_t end = s.fed + std::min(budget, s.explicit_end - s.fed);
    if (small_pieces_) return std::min(end, (s.fed / kPageTokens + 1) * kPageTokens);
    return end < s.explicit_end ? end / kPageTokens * kPageTokens : end;
}

void Scheduler::launched(Flight& flight) {
    for (int32_t state : flight.released) states_.pool().release(state);
    flight.released.clear();
    if (cache_) cache_->launched();
}

void Scheduler::plan_decode(Flight& flight, Sequence& s) {
    const bool voidable = s.fed >= int32_t(s.tokens.size());
    // A row that may be taken back needs a second state. None to spare: it waits until it is certain.
    const bool spare = states_.pool().free() > states_promised_;
    if (states_.used() && voidable && !needs_state(s) && !spare) return;
    if (!fits(flight, s) || !make_room(s, 1)) return;
    add_segment(flight, s, 1, voidable);
    Row row{};
    row.slot = s.slot;
    row.index = s.fed - 1;
    std::fill(std::begin(row.position), std::end(row.position), row.index);
    row.flags = kRowFromCursor | kRowOutput;
    row.target = -1;
    FlightSegment& segment = flight.segments.back();
    segment.output = flight.image.outputs();
    segment.masked = s.constraint != nullptr;
    flight.outputs.push_back(flight.image.add_row(row));
    ++s.selects;
}

int32_t Scheduler::plan_prefill(Flight& flight, Sequence& s, int32_t budget) {
    const int32_t end = chunk_end(s, budget);
    const int32_t first = s.fed, rows = end - first;
    if (rows <= 0 || !fits(flight, s) || !make_room(s, rows)) return 0;
    add_segment(flight, s, rows, false);
    const bool selects = end == s.explicit_end && s.selects < s.limit;
    FlightSegment& segment = flight.segments.back();
    for (int32_t i = first; i < end; ++i) {
        Row row{raw(s.tokens[size_t(i)]), s.slot, i, {i, i, i}, 0, -1};
        if (s.prompt_logprobs >= 0 && i == s.scored && i + 1 < s.prompt) {
            row.target = raw(s.tokens[size_t(i) + 1]);
            if (segment.score_rows++ == 0) segment.score_row = flight.image.rows();
            ++s.scored;
        }
        if (i == end - 1 && selects) {
            row.flags = kRowOutput;
            segment.output = flight.image.outputs();
            segment.masked = s.constraint != nullptr;
            ++s.selects;
        }
        const int32_t r = flight.image.add_row(row);
        if (row.flags & kRowOutput) flight.outputs.push_back(r);
    }
    if (!limits_.deterministic || first < s.prompt) flight.prefill_rows += rows;
    return rows;
}

FlightSegment& Scheduler::add_segment(Flight& flight, Sequence& s, int32_t rows, bool voidable) {
    write_changes(flight, s);
    Segment segment{s.slot, flight.image.rows(), rows, s.state, s.state, s.logged, 0, 0};
    FlightSegment mine;
    mine.request = s.id;
    mine.first_index = s.fed;
    mine.rows = rows;
    mine.voidable = voidable;
    mine.fallback_logged = s.logged;
    if (states_.used()) {
        const bool forced = needs_state(s);
        if (forced) --states_promised_;
        if (forced || voidable) {
            segment.state_out = states_.pool().take();
            // Others of this step may read or write the old one: it is given back when the step is on its
            // way.
            if (voidable)
                mine.fallback = s.state;
            else if (s.state >= 0)
                flight.released.push_back(s.state);
            s.state = segment.state_out;
        }
    }
    s.fed += rows;
    s.logged = 0;
    segment.first_save = flight.image.saves();
    if (s.save_every > 0) add_saves(flight, s, segment);
    if (s.keeps) keep_points(flight, s, segment);
    flight.image.add_segment(segment);
    flight.segments.push_back(mine);
    return flight.segments.back();
}

void Scheduler::add_saves(Flight& flight, Sequence& s, Segment& segment) {
    const int32_t first = s.fed - segment.rows, end = std::min(s.fed, s.prompt);
    for (int32_t at = (first / s.save_every + 1) * s.save_every; at <= end; at += s.save_every) {
        if (at <= s.saved) continue;  // fed again after it gave up its pages
        Snapshot kept;
        if (states_.used()) {
            if (at < s.fed) {
                if (states_.pool().free() <= std::max(0, states_promised_)) continue;
                kept.state = states_.pool().take();
                flight.image.add_save({segment.first_row + at - 1 - first, kept.state});
                ++segment.saves;
            } else {
                kept.state = s.state;
                states_.pool().share(s.state);
            }
        }
        kept.tokens.assign(s.tokens.begin(), s.tokens.begin() + at);
        kept.pages = kv_.share(s.pages, at);
        s.saves.push_back(add_snapshot(std::move(kept)));
        s.saved = at;
    }
}

void Scheduler::write_changes(Flight& flight, Sequence& s) {
    SlotWriter slot(flight.image, s.slot, pages_for(limits_.context));
    if (s.write_record || s.write_cursor) {
        Cursor cursor{};
        // Behind the explicit rows the cursor goes on: the last of them is where it stands now.
        cursor.index = s.explicit_end - 1;
        cursor.generated = s.generated();
        cursor.limit = s.limit;
        cursor.prompt = s.prompt;
        slot.cursor(cursor);
    }
    if (s.write_record) {
        const SamplingParams& p = s.sampling;
        slot.sampling({p.temperature,
                       p.top_k,
                       p.top_p,
                       p.min_p,
                       p.repeat_penalty,
                       p.repeat_last_n,
                       p.presence_penalty,
                       p.frequency_penalty,
                       {uint32_t(p.seed), uint32_t(p.seed >> 32)},
                       std::max(0, s.logprobs),
                       s.constraint ? s.slot : -1,
                       int32_t(p.logit_bias.size()),
                       int32_t(s.stop_tokens.size())});
        static_assert(sizeof(TokenId) == sizeof(int32_t));
        slot.stop_ids({reinterpret_cast<const int32_t*>(s.stop_tokens.data()), s.stop_tokens.size()});
        std::vector<Bias> biases;
        biases.reserve(p.logit_bias.size());
        for (const auto& [token, value] : p.logit_bias) biases.push_back({raw(token), value});
        slot.biases(biases);
        slot.history(0, {reinterpret_cast<const int32_t*>(s.tokens.data()), size_t(s.fed)});
    }
    slot.pages(s.pages_written, std::span(s.pages).subspan(size_t(s.pages_written)));
    s.pages_written = int32_t(s.pages.size());
    s.write_record = s.write_cursor = false;
}

SnapshotId Scheduler::add_snapshot(Snapshot snapshot) {
    const auto id = SnapshotId(next_snapshot_++);
    snapshots_.emplace(id, std::move(snapshot));
    return id;
}

SnapshotId Scheduler::keep(Sequence& s) {
    int32_t length = s.fed;
    Snapshot kept{{}, {}, s.state, s.logged};
    for (auto flight = flights_.rbegin(); flight != flights_.rend(); ++flight)
        for (const FlightSegment& segment : flight->segments)
            if (segment.request == s.id && segment.voidable) {
                length = segment.first_index;
                kept.state = segment.fallback;
                kept.logged = segment.fallback_logged;
            }
    CHECK(length <= int32_t(s.tokens.size()), "{} valid rows of {} tokens", length, s.tokens.size());
    kept.tokens.assign(s.tokens.begin(), s.tokens.begin() + length);
    kept.pages = kv_.share(s.pages, length);
    if (kept.state >= 0) states_.pool().share(kept.state);
    return add_snapshot(std::move(kept));
}

const Snapshot* Scheduler::find(SnapshotId id) const {
    const auto found = snapshots_.find(id);
    return found == snapshots_.end() ? nullptr : &found->second;
}

void Scheduler::drop(SnapshotId id) {
    const auto found = snapshots_.find(id);
    if (found == snapshots_.end()) return;
    kv_.release(found->second.pages);
    release_state(found->second.state);
    snapshots_.erase(found);
}

void Scheduler::restore(Sequence& s, const Snapshot& snapshot) {
    const int32_t length = int32_t(snapshot.tokens.size());
    CHECK(length < int32_t(s.tokens.size()) &&
              std::equal(snapshot.tokens.begin(), snapshot.tokens.end(), s.tokens.begin()),
          "a kept point of {} tokens is no proper beginning of {} tokens", length, s.tokens.size());
    PageList pages = kv_.share(snapshot.pages, length);
    int32_t state = snapshot.state;
    if (state >= 0) states_.pool().share(state);
    kv_.release(s.pages);
    release_state(s.state);
    s.pages = std::move(pages);
    s.pages_written = 0;
    s.state = state;
    s.logged = snapshot.logged;
    s.fed = length;
    s.explicit_end = int32_t(s.tokens.size());
    s.selects = s.generated();
    s.write_cursor = true;
}

void Scheduler::check_integrity() const {
    std::vector<const PageList*> lists;
    std::vector<int32_t> states(size_t(states_.pool().count()), 0);
    const auto hold = [&](int32_t state) {
        if (state >= 0) ++states[size_t(state)];
    };
    std::vector<bool> slots(size_t(limits_.slots), false);
    for (const auto& [id, s] : sequences_) {
        lists.push_back(&s->pages);
        hold(s->state);
        const bool live = std::count(live_.begin(), live_.end(), id) == 1;
        const bool queued = std::count(waiting_.begin(), waiting_.end(), id) == 1;
        CHECK(live != queued && live == (s->slot >= 0), "request {} is live {}, queued {}, in slot {}",
              int64_t(id), live, queued, s->slot);
        if (!live) continue;
        CHECK(!slots[size_t(s->slot)], "slot {} has two sequences", s->slot);
        slots[size_t(s->slot)] = true;
    }
    CHECK(live_.size() + waiting_.size() == sequences_.size(), "{} live, {} waiting, {} in all", live_.size(),
          waiting_.size(), sequences_.size());
    CHECK(live_.size() + free_slots_.size() == slots.size(), "{} live, {} free slots of {}", live_.size(),
          free_slots_.size(), slots.size());
    for (const auto& [id, snapshot] : snapshots_) {
        lists.push_back(&snapshot.pages);
        hold(snapshot.state);
    }
    for (const Flight& flight : flights_)
        for (const FlightSegment& segment : flight.segments) hold(segment.fallback);
    std::vector<PageList> cached;
    std::vector<int32_t> cached_states;
    if (cache_) {
        cache_->check_integrity();
        cache_->collect(cached, cached_states);
    }
    for (const PageList& list : cached) lists.push_back(&list);
    for (int32_t state : cached_states) hold(state);
    kv_.check_integrity(lists);
    states_.pool().check_integrity(states);
}

}  // namespace sparkinfer
