// scheduler.h — decides what each step holds: admission, prompt chunks, decode rows, pages and states.
//
// Iteration level: every step is planned afresh from the live sequences. Decode rows of all of them come
// first, then prompt chunks: in turns those of the oldest request first and of the one with the fewest rows
// left, so that nobody waits for a long one and the long one is not starved. When pages run short, first the
// prefix cache gives way. When there are none
// left, the youngest sequence gives up its pages and is prefilled again later: its tokens stay the same,
// since every choice depends on the sequence's own tokens and seed only. Nothing here talks to a device: a
// plan is a Flight, run by the engine.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "engine/slots.h"
#include "engine/state_pool.h"

namespace sparkinfer {

struct SchedulerLimits {
    int32_t slots = 1;
    int32_t queue = 1;    // most sequences waiting
    int32_t context = 0;  // most tokens of a sequence
    int32_t chunk = 64;   // most prompt rows in a step
    StepLimits step;
    // Prompt rows of one sequence a step, cut at multiples of chunk; other rows at most kMaxVerifyRows a
    // step.
    bool deterministic = false;
};

class Scheduler {
  public:
    // `cache` may be null: then nothing is kept.
    Scheduler(KvCache& kv, StatePool& states, const SchedulerLimits& limits, PrefixCache* cache = nullptr);

    // Whether as many sequences wait as may; one that had to give way waits beside them.
    bool full() const;
    bool empty() const { return sequences_.empty(); }
    int32_t live() const { return int32_t(live_.size()); }
    int32_t waiting() const { return int32_t(waiting_.size()); }
    // Requests that have left the queue for the first time since the last call.
    std::vector<RequestId> take_admitted() { return std::exchange(admitted_, {}); }
    int64_t preemptions() const { return preemptions_; }  // so far
    Sequence* find(RequestId id);
    const Sequence* find(RequestId id) const { return const_cast<Scheduler*>(this)->find(id); }
    std::vector<RequestId> requests() const;  // all of them, by number
    RequestId first() const {
        return live_.empty() ? waiting_.front() : live_.front();
    }  // REQUIRES: !empty()

    // Queues a sequence; it may already hold pages and a state.
    Sequence& add(std::unique_ptr<Sequence> sequence);
    // Ends a sequence and gives back what it held. Its rows in flight count for nothing.
    void remove(Sequence& sequence);
    // Gives back the pages and the state of a sequence.
    void release_memory(Sequence& sequence);

    // The rows whose tokens the caller has seen and not objected to are valid.
    void confirm();
    // Whether the next step needs more than is free, also after the cache has given way.
    bool short_of_memory();
    // Makes the youngest sequence wait again. REQUIRES: nothing in flight. False: there is nobody left but
    // one.
    bool preempt_one();
    // Fills a flight with rows. An empty one: nobody has anything to do. `prefill_rows`: most prompt rows
    // when decode rows are present too.
    Flight plan(int32_t prefill_rows);
    // A planned flight is on its way: what it replaces can be used by the next one.
    void launched(Flight& flight);
    Flight empty_flight() const { return Flight(limits_.step); }
    // Page copies that must be done before the next step.
    std::vector<KvCache::Copy> take_copies() { return std::exchange(copies_, {}); }
    std::deque<Flight>& flights() { return flights_; }
    const std::deque<Flight>& flights() const { return flights_; }

    // --- kept points
    // ------------------------------------------------------------------------------------------------ Of a
    // sequence as it is valid now: rows that may still be taken back are left out.
    SnapshotId keep(Sequence& sequence);
    // The same point for the prefix cache, if the sequence is to be kept there.
    void keep_end(Sequence& sequence);
    const Snapshot* find(SnapshotId id) const;
    void drop(SnapshotId id);
    // Takes back the rows in flight that may be taken back.
    void void_rows(Sequence& sequence);
    // Puts a sequence at a kept point; the rows from there to the end of its `tokens` are fed again.
    void restore(Sequence& sequence, const Snapshot& snapshot);
    // Room for `rows` more rows of one sequence, written or not. False: not enough pages.
    bool make_room(Sequence& sequence, int32_t rows);
    // Whether the next segment finds the state it needs.
    bool state_at_hand(const Sequence& sequence) const {
        return !needs_state(sequence) || states_.pool().free() > 0;
    }
    // Writes a segment of `rows` rows for a sequence into a flight and moves the sequence's state along.
    // REQUIRES: make_room(), state_at_hand().
    FlightSegment& add_segment(Flight& flight, Sequence& sequence, int32_t rows, bool voidable);

    // Aborts unless every page, state and slot is held exactly as often as it is counted. REQUIRES: nothing
    // planned.
    void check_integrity() const;

  private:
    void admit();
    bool place(Sequence& sequence);
    bool room_for(const Sequence& sequence, const PrefixCache::Match& match);
    bool waits_for_prefix(const Sequence& sequence) const;
    Flight plan_apart();
    std::vector<RequestId> prefill_order() const;
    int32_t chunk_end(const Sequence& sequence, int32_t budget) const;
    void keep_points(Flight& flight, Sequence& sequence, Segment& segment);
    bool fits(const Flight& flight, const Sequence& sequence) const;
    void plan_decode(Flight& flight, Sequence& sequence);
    int32_t plan_prefill(Flight& flight, Sequence& sequence, int32_t budget);
    void write_changes(Flight& flight, Sequence& sequence);
    void add_saves(Flight& flight, Sequence& sequence, Segment& segment);
    SnapshotId add_snapshot(Snapshot snapshot);
    int32_t pages_needed(const Sequence& sequence) const;
    int32_t states_needed() const;
    bool needs_state(const Sequence& sequence) const;
    void release_slot(Sequence& sequence);
    void release_state(int32_t& state);

    KvCache& kv_;
    StatePool& states_;
    SchedulerLimits limits_;
    PrefixCache* const cache_;
    std::map<RequestId, std::unique_ptr<Sequence>> sequences_;
    std::deque<RequestId> waiting_;
    std::vector<RequestId> live_;  // oldest first
    std::vector<RequestId> admitted_;
    std::vector<int32_t> free_slots_;
    std::deque<Flight> flights_;  // oldest first
    std::vector<KvCache::Copy> copies_;
    std::map<SnapshotId, Snapshot> snapshots_;
    int64_t next_snapshot_ = 1, preemptions_ = 0, plans_ = 0;
    bool small_pieces_ = false;    // prompts go in pieces of less than a page in this step
    int32_t states_promised_ = 0;  // of the free ones, to segments still to be planned in this step
};

}  // namespace sparkinfer
