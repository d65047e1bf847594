// Thousands of random schedules: whatever is submitted, cancelled, forked, undone and kept, in whatever order
// and with however little memory, every answer is the one the request gets alone, and nothing is held that
// nobody owns.
#include "engine/test_model.h"

namespace sparkinfer {
namespace {

constexpr int32_t kContext = 192;

// The requests that schedules draw from, and what each says alone.
struct Library {
    explicit Library(TinyKind kind, int size) {
        for (int i = 0; i < size; ++i) {
            const auto seed = uint32_t(i + 1);
            Request r = random_request(1 + int(seed * 37 % 120), 1 + int(seed * 13 % 70), seed);
            const EngineAnswer free = alone(kind, r);
            if (i % 4 == 0) r.stop_tokens = {free.said[free.said.size() / 2].token};
            requests.push_back(r);
            answers.push_back(i % 4 == 0 ? alone(kind, r) : free);
        }
    }
    std::vector<Request> requests;
    std::vector<EngineAnswer> answers;
};

class Schedule {
  public:
    Schedule(const Library& library, TinyKind kind, uint32_t seed)
        : library_(library), random_(seed), engine_(make_engine(setup(kind))) {}

    void run() {
        const int moves = 10 + pick(40);
        for (int i = 0; i < moves; ++i) move();
        while (!engine_->idle()) step();
        for (SnapshotId point : points_) engine_->drop(point);
        drop_saves();
        engine_->check_integrity();
        EXPECT_EQ(engine_->runner().kv().free(), engine_->runner().kv().pages());
        EXPECT_EQ(engine_->runner().states().pool().free(), engine_->runner().states().pool().count());
        for (auto& [id, track] : tracks_) check(id, track);
    }
    int64_t preemptions() const { return engine_.engine->scheduler().preemptions(); }
    int forks = 0, undos = 0, cancels = 0, restarts = 0, starved = 0, whole = 0;

  private:
    // What a request should say: pieces of the lone answer, as forks and undos cut it.
    struct Track {
        size_t entry;                // of the library
        std::vector<Said> expected;  // certain so far
        size_t next;                 // where the lone answer goes on
        bool cancelled = false;
    };

    TestSetup setup(TinyKind kind) {
        const int32_t slots = 1 + pick(4), pipeline = pick(5);
        const int32_t pages = 3 + pick(slots + 1);
        return {.kind = kind,
                .options = {.context = kContext,
                            .slots = slots,
                            .chunk = 64 * (1 + pick(2)),
                            .kv_tokens = pages * kPageTokens,
                            .state_slots = slots * std::max(2, pipeline) + 2},
                .tuning = {.pipeline = pipeline,
                           .mixed_step_ms = pick(2) ? 0.0 : 0.01,
                           .pad_to_bucket = pick(4) == 0},
                .lazy = pick(2) == 0};
    }
    int32_t pick(int32_t n) { return int32_t(random_() % uint32_t(n)); }

    void move() {
        switch (pick(12)) {
            case 0:
            case 1:
            case 2: return submit();
            case 3: return cancel();
            case 4: return fork();
            case 5: return keep();
            case 6:
            case 7: return restart();
            default: return step();
        }
    }
    void step() {
        step_once(*engine_.engine, answers_);
        held_ = held_ || !saving_.empty() || !points_.empty();
        if (pick(12) == 0) drop_saves();
    }
    void submit() {
        const auto entry = size_t(pick(int32_t(library_.requests.size())));
        const Request& r = library_.requests[entry];
        const bool saving = pick(3) == 0;
        const RequestId id = (saving ? engine_->submit_saving(r, kPageTokens) : engine_->submit(r)).value();
        tracks_[id] = {entry, {}, 0, false};
        if (saving) saving_.push_back(id);
    }
    std::optional<RequestId> any_live() {
        const std::vector<RequestId> ids = engine_->scheduler().requests();
        if (ids.empty()) return std::nullopt;
        return ids[size_t(pick(int32_t(ids.size())))];
    }
    void cancel() {
        if (pick(2)) return;
        const auto id = any_live();
        if (!id) return;
        engine_->cancel(*id);
        tracks_[*id].cancelled = true;
        ++cancels;
    }
    void fork() {
        const auto id = any_live();
        if (!id) return;
        auto twin = engine_->fork(*id);
        if (!twin.ok()) return;
        const Track& origin = tracks_[*id];
        const Sequence* s = engine_->scheduler().find(*twin);
        tracks_[*twin] = {origin.entry, {}, size_t(s->generated()), false};
        ++forks;
    }
    void keep() {
        const auto id = any_live();
        if (!id || points_.size() >= 1) return undo();
        auto point = engine_->keep(*id);
        if (!point.ok()) return;
        points_.push_back(*point);
        kept_of_ = *id;
    }
    // Back to the kept point, if its sequence still lives.
    void undo() {
        if (points_.empty()) return;
        const SnapshotId point = points_.back();
        points_.clear();
        const auto length = int32_t(engine_->snapshot(point)->tokens.size());
        ASSERT_TRUE(engine_->drain().ok());
        const Sequence* s = engine_->scheduler().find(kept_of_);
        if (s && s->slot >= 0) {
            const int32_t low = std::max(length + 1, s->prompt), high = int32_t(s->tokens.size());
            const auto said = size_t(s->generated());
            if (low <= high) {
                const int32_t stay = low + pick(high - low + 1);
                ASSERT_TRUE(engine_->undo(kept_of_, point, stay).ok());
                Track& t = tracks_[kept_of_];
                const std::vector<Said>& lone = library_.answers[t.entry].said;
                t.expected.insert(t.expected.end(), lone.begin() + int(t.next), lone.begin() + int(said));
                t.next = size_t(stay - s->prompt);
                ++undos;
            }
        }
        engine_->drop(point);
    }
    // A request of the library once more, from a point that was saved when it was first read.
    void restart() {
        if (saving_.empty()) return;
        const RequestId id = saving_[size_t(pick(int32_t(saving_.size())))];
        const Request& r = library_.requests[tracks_[id].entry];
        for (SnapshotId save : engine_->saves(id)) {
            const Snapshot* point = engine_->snapshot(save);
            if (!point || point->tokens.size() >= r.prompt.size()) continue;
            const auto entry = tracks_[id].entry;
            tracks_[engine_->submit_from(save, r).value()] = {entry, {}, 0, false};
            ++restarts;
            if (pick(2)) return;
        }
    }
    void drop_saves() {
        for (RequestId id : saving_)
            for (SnapshotId save : engine_->saves(id)) engine_->drop(save);
    }
    void check(RequestId id, Track& t) {
        const EngineAnswer& lone = library_.answers[t.entry];
        const EngineAnswer& got = answers_[id];
        t.expected.insert(t.expected.end(), lone.said.begin() + int(t.next), lone.said.end());
        if (got.finish == FinishReason::cancelled && t.cancelled) {
            ASSERT_LE(got.said.size(), t.expected.size());
            EXPECT_TRUE(std::equal(got.said.begin(), got.said.end(), t.expected.begin()));
            return;
        }
        // Kept points hold pages that nobody may take: then, and only then, a request may end for want of
        // them.
        if (got.finish == FinishReason::error && held_) {
            EXPECT_TRUE(got.error.starts_with("no memory is left")) << got.error;
            EXPECT_TRUE(std::equal(got.said.begin(), got.said.end(), t.expected.begin()));
            ++starved;
            return;
        }
        ++whole;
        EXPECT_EQ(got.finish, lone.finish) << got.error;
        EXPECT_TRUE(got.said == t.expected) << "request " << int64_t(id);
    }

    const Library& library_;
    std::mt19937 random_;
    TestEngine engine_;
    Answers answers_;
    std::map<RequestId, Track> tracks_;
    std::vector<SnapshotId> points_;
    std::vector<RequestId> saving_;
    RequestId kept_of_{};
    bool held_ = false;  // there was a kept point
};

void run_schedules(TinyKind kind, int schedules, int library_size) {
    const Library library(kind, library_size);
    int64_t preemptions = 0, forks = 0, undos = 0, cancels = 0, restarts = 0, starved = 0, whole = 0;
    for (int i = 0; i < schedules; ++i) {
        SCOPED_TRACE(fmt::format("schedule {}", i));
        Schedule schedule(library, kind, uint32_t(i));
        schedule.run();
        preemptions += schedule.preemptions();
        forks += schedule.forks, undos += schedule.undos, cancels += schedule.cancels;
        restarts += schedule.restarts, starved += schedule.starved, whole += schedule.whole;
        if (testing::Test::HasFailure()) return;
    }
    // The schedules must have been worth running.
    EXPECT_GT(preemptions, schedules / 20);
    EXPECT_GT(forks, schedules / 4);
    EXPECT_GT(undos, schedules / 20);
    EXPECT_GT(cancels, schedules / 4);
    EXPECT_GT(restarts, schedules / 10);
    EXPECT_GT(whole, 10 * starved);
    testing::Test::RecordProperty("compared", std::to_string(whole));
}

// Sanitizers make everything several times slower: there, fewer schedules.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr int kSlowdown = 6;
#else
constexpr int kSlowdown = 1;
#endif
#else
constexpr int kSlowdown = 1;
#endif

TEST(Schedules, AttentionAlone) { run_schedules(TinyKind::attention, 2400 / kSlowdown, 48); }
TEST(Schedules, Hybrid) { run_schedules(TinyKind::hybrid, 240 / kSlowdown, 24); }

}  // namespace
}  // namespace sparkinfer
