// Random schedules over a device of hashes (test_device.h), with everything at once: conversations that
// branch, salts, cancels, forks, preemption, a prefix cache of every size, copies to the host that come late
// or never, failures of the device. Every answer is the one that the request's own tokens give, every request
// ends once, and nothing is held that nobody owns.
//
//     engine_test --gtest_filter='CacheSchedules.*' --schedules=100000
#include "engine/test_device.h"

namespace sparkinfer {
namespace {

constexpr int32_t kContext = 320;

// From the command line, or what CI has time for.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPARKINFER_SLOW_BUILD
#endif
#endif
#ifdef SPARKINFER_SLOW_BUILD
constexpr int kSchedules = 2000;  // with sanitizers each takes ten times as long
#else
constexpr int kSchedules = 20000;
#endif

int schedules_wanted() {
    for (const std::string& argument : testing::internal::GetArgvs())
        if (argument.starts_with("--schedules=")) return std::atoi(argument.c_str() + 12);
    return kSchedules;
}

struct Totals {
    int64_t requests = 0, whole = 0, hits = 0, host_hits = 0, cancels = 0, preemptions = 0, failures = 0,
            forks = 0, evictions = 0, prompts_rated = 0, copies_failed = 0, copies_late = 0;
};

class Schedule {
  public:
    Schedule(uint32_t seed, Totals& totals)
        : random_(seed), totals_(totals), recurrent_(pick(2)), device_(pick(2) == 0) {}

    void run() {
        if (!open()) return;
        const int moves = 15 + pick(60);
        for (int i = 0; i < moves && !testing::Test::HasFailure(); ++i) move();
        for (int i = 0; !engine_->idle(); ++i) {
            ASSERT_LT(i, 20000) << "no end";
            step();
        }
        finish();
    }

  private:
    struct Track {
        Request request;
        EngineAnswer expected;
        std::vector<Said> rated;  // of the prompt
        EngineAnswer got;
        std::vector<Said> got_rated;
        size_t from = 0;  // of a fork: tokens that its origin has said
        bool admitted = false, cancelled = false, failed = false;
    };

    int32_t pick(int32_t n) { return int32_t(random_() % uint32_t(n)); }

    bool open() {
        const int32_t slots = 1 + pick(5), pipeline = pick(5);
        EngineOptions o{.context = kContext, .slots = slots, .chunk = 64 * (1 + pick(3))};
        o.kv_tokens = kPageTokens * (pages_for(kContext) + pick(2 + slots));
        o.state_slots = slots * std::max(2, pipeline) + 1;
        o.queue = 6;
        o.prefix_cache = pick(8) > 0;
        o.deterministic = pick(4) == 0;
        const int64_t page = KvCache::page_bytes(model(true)->shape().kv, DType::f32);
        const int64_t state = StatePool::slot_bytes(model(true)->shape().state, DType::f32);
        o.checkpoint_bytes = state * (1 + pick(6));
        o.host_cache_bytes = pick(2) ? 0 : (page + state) * (1 + pick(20));
        EngineTuning tuning{.pipeline = pipeline, .mixed_step_ms = pick(2) ? 0.0 : 5.0};
        tuning.pad_to_bucket = pick(4) == 0;
        tuning.clock = &device_.clock;
        device_.random.seed(random_());
        device_.copy_failures = pick(3) ? 0 : 2 + pick(12);
        device_.fail_allocation = pick(50) == 0 ? pick(8) : -1;
        auto engine = LiveEngine::make(nullptr, model(recurrent_), device_, o, tuning, {});
        if (!engine.ok()) {
            EXPECT_GE(device_.fail_allocation, 0) << engine.error().message;
            return false;
        }
        engine_ = std::move(engine).value();
        for (int i = 0; i < 3; ++i) starts_.push_back(tokens(40 + pick(120)));
        return true;
    }
    static std::unique_ptr<Model> model(bool recurrent) { return std::make_unique<HashModel>(recurrent); }

    std::vector<TokenId> tokens(int n) {
        std::vector<TokenId> t(size_t(n), TokenId(0));
        for (TokenId& token : t) token = TokenId(pick(HashModel::kVocab));
        return t;
    }

    // A new conversation, the next turn of one, an edited one, or one asked again.
    std::vector<TokenId> prompt() {
        std::vector<TokenId> p = starts_[size_t(pick(int32_t(starts_.size())))];
        if (!tracks_.empty() && pick(3) > 0) {
            const Track& t = std::next(tracks_.begin(), pick(int32_t(tracks_.size())))->second;
            p = t.request.prompt;
            if (pick(4) == 0) return p;
            for (const Said& said : t.got.said) p.push_back(said.token);
            if (pick(3) == 0) p.resize(size_t(1) + size_t(pick(int32_t(p.size()))));
        }
        for (TokenId token : tokens(1 + pick(60))) p.push_back(token);
        if (p.size() > size_t(kContext - 2)) p.resize(size_t(1) + size_t(pick(kContext - 2)));
        return p;
    }

    Request request() {
        Request r;
        r.prompt = prompt();
        r.max_tokens = pick(3) ? pick(40) : pick(200) - 1;
        r.sampling.seed = uint64_t(pick(4));
        r.logprobs = pick(4) - 1;
        r.prompt_logprobs = pick(6) ? -1 : pick(3);
        for (int i = pick(3); i > 0; --i) r.stop_tokens.push_back(TokenId(pick(HashModel::kVocab)));
        r.min_tokens = pick(4) ? 0 : pick(20);
        r.cache = pick(10) > 0;
        if (pick(4) == 0) r.cache_salt = pick(2) ? "a" : "b";
        for (int at = pick(100); at <= int(r.prompt.size()) && pick(3); at += pick(100))
            r.checkpoints.push_back(at);
        return r;
    }

    void move() {
        switch (pick(10)) {
            case 0:
            case 1: return submit();
            case 2: return pick(2) ? cancel() : fork();
            case 3: return fail_later();
            default: return step();
        }
    }
    void submit() {
        const Request r = request();
        auto id = engine_->submit(r);
        if (!id.ok()) {
            EXPECT_EQ(id.error().kind, ErrorKind::resources) << id.error().message;
            return;
        }
        HashAnswer lone = hash_answer(recurrent_, r, kContext);
        tracks_[*id] = {r, std::move(lone.answer), std::move(lone.prompt), {}, {}};
        ++totals_.requests;
    }
    std::optional<RequestId> anyone() {
        const std::vector<RequestId> ids = engine_->scheduler().requests();
        if (ids.empty()) return std::nullopt;
        return ids[size_t(pick(int32_t(ids.size())))];
    }
    void cancel() {
        const auto id = anyone();
        if (!id) return;
        engine_->cancel(*id);
        tracks_[*id].cancelled = true;
        ++totals_.cancels;
    }
    void fork() {
        const auto id = anyone();
        if (!id) return;
        auto twin = engine_->fork(*id);
        if (!twin.ok()) return;
        Track t = tracks_[*id];
        const auto said = size_t(engine_->scheduler().find(*twin)->generated());
        t.expected.said.erase(t.expected.said.begin(), t.expected.said.begin() + int64_t(said - t.from));
        t.from = said;
        t.got = {};
        t.admitted = t.cancelled = false;
        forks_.insert(*twin);
        tracks_[*twin] = std::move(t);
        ++totals_.forks;
    }
    void fail_later() {
        if (pick(4) == 0) device_.fail_at = pick(10);
    }

    void step() {
        auto events = engine_->step();
        if (!events.ok()) {
            ++totals_.failures;
            device_.fail_at = -1;
            EXPECT_TRUE(engine_->idle());
            for (auto& [id, t] : tracks_) t.failed = t.failed || t.got.finish == FinishReason::none;
        } else {
            for (const Event& e : *events) take(e, tracks_.at(e.request));
        }
        engine_->check_integrity();
    }
    void take(const Event& e, Track& t) {
        EXPECT_FALSE(t.failed) << "a word from the dead";
        if (e.admission) {
            EXPECT_FALSE(t.admitted) << "admitted twice";
            t.admitted = true;
            EXPECT_LT(e.admission->cached_tokens, int32_t(t.request.prompt.size()));
            totals_.hits += e.admission->cached_tokens > 0;
        }
        EXPECT_TRUE(t.admitted || !e.token) << "a token before the admission";
        for (size_t i = 0; i < e.prompt_logprobs.size() && !forks_.contains(e.request); ++i) {
            Said& said = t.got_rated.emplace_back();
            said.token = t.request.prompt.at(t.got_rated.size());
            said.logprobs.push_back(e.prompt_logprobs[i].logprob);
            for (const auto& [token, value] : e.prompt_logprobs[i].top) {
                said.logprobs.push_back(float(raw(token)));
                said.logprobs.push_back(value);
            }
        }
        take_event(e, t.got);
    }

    void finish() {
        const EngineStats s = engine_->stats();
        EXPECT_EQ(s.running, 0);
        EXPECT_EQ(s.waiting, 0);
        EXPECT_EQ(s.kv_pages_used, s.kv_pages_cached);
        EXPECT_LE(s.checkpoint_bytes, s.checkpoint_budget);
        EXPECT_LE(s.host_bytes, s.host_budget);
        totals_.preemptions += s.preemptions;
        totals_.host_hits += s.host_restores;
        totals_.evictions += s.evictions;
        totals_.copies_failed += device_.copies_failed;
        totals_.copies_late += device_.copies_late;
        for (const auto& [id, t] : tracks_) check(id, t);
    }
    void check(RequestId id, const Track& t) {
        const std::string what = fmt::format("request {}", int64_t(id));
        ASSERT_TRUE(t.failed || t.got.finish != FinishReason::none) << what << " has no end";
        const bool cut = t.failed || t.got.finish == FinishReason::cancelled;
        EXPECT_TRUE(t.cancelled || t.got.finish != FinishReason::cancelled) << what;
        if (cut) {
            ASSERT_LE(t.got.said.size(), t.expected.said.size()) << what;
            EXPECT_TRUE(std::equal(t.got.said.begin(), t.got.said.end(), t.expected.said.begin())) << what;
            return;
        }
        ++totals_.whole;
        EXPECT_EQ(t.got, t.expected) << what;
        if (forks_.contains(id)) return;
        EXPECT_EQ(t.got_rated, t.rated) << what;
        totals_.prompts_rated += !t.rated.empty();
    }

    std::mt19937 random_;
    Totals& totals_;
    bool recurrent_;
    HashDevice device_;
    std::unique_ptr<LiveEngine> engine_;
    std::vector<std::vector<TokenId>> starts_;
    std::map<RequestId, Track> tracks_;
    std::set<RequestId> forks_;
};

// Risk: any two of the engine's features together give a token, a page or an end too many or too few.
TEST(CacheSchedules, EveryAnswerIsItsOwn) {
    const int schedules = schedules_wanted();
    Totals t;
    for (int i = 0; i < schedules && !HasFailure(); ++i) {
        SCOPED_TRACE(fmt::format("schedule {}", i));
        Schedule(uint32_t(i), t).run();
    }
    const std::pair<const char*, int64_t> counts[] = {{"requests", t.requests},
                                                      {"whole", t.whole},
                                                      {"hits", t.hits},
                                                      {"host_hits", t.host_hits},
                                                      {"cancels", t.cancels},
                                                      {"preemptions", t.preemptions},
                                                      {"failures", t.failures},
                                                      {"forks", t.forks},
                                                      {"evictions", t.evictions},
                                                      {"prompts_rated", t.prompts_rated},
                                                      {"copies_failed", t.copies_failed},
                                                      {"copies_late", t.copies_late}};
    for (const auto& [name, count] : counts) {
        RecordProperty(name, std::to_string(count));
        fmt::print("{} {}\n", name, count);
        // The schedules must have been worth running.
        EXPECT_GT(count, schedules / 100) << name;
    }
}

}  // namespace
}  // namespace sparkinfer
