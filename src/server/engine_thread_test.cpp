// The thread that owns an engine, over an engine of a few lines.
#include "server/engine_thread.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>

#include "core/check.h"

namespace sparkinfer {
namespace {

using namespace std::chrono_literals;

// Says its prompt's first token max_tokens times; checks that one thread calls it.
class EchoEngine final : public Engine {
  public:
    explicit EchoEngine(int32_t slots, int32_t queue) {
        options_.slots = slots;
        options_.queue = queue;
    }
    ~EchoEngine() override { *gone = true; }
    const Metadata& metadata() const override { return metadata_; }
    const ModelShape& shape() const override { std::abort(); }
    const EngineOptions& options() const override { return options_; }
    Result<RequestId> submit(Request request) override {
        mine();
        const auto id = RequestId(next_ += 3);
        work_.push_back({id, std::move(request), 0});
        return id;
    }
    Result<void> check(const Request& request) const override {
        if (request.prompt.empty()) return bad_input("the prompt is empty");
        return {};
    }
    void cancel(RequestId request) override {
        mine();
        for (auto& w : work_)
            if (w.id == request) {
                Event event{request};
                event.finish = FinishReason::cancelled;
                events_.push_back(event);
                std::erase_if(work_, [&](const Work& other) { return other.id == request; });
                return;
            }
    }
    bool idle() const override { return work_.empty() && events_.empty(); }
    Result<std::vector<Event>> step() override {
        mine();
        ++steps;
        if (blocked) std::this_thread::sleep_for(1ms);
        if (steps == fail_at) {
            work_.clear();
            return internal_error("the device has failed in a test");
        }
        for (size_t i = 0; i < std::min(work_.size(), size_t(options_.slots)) && !blocked; ++i) {
            Work& w = work_[i];
            Event event{w.id};
            if (w.said == 0) {
                event.admission.emplace();
                events_.push_back(event);
                event.admission.reset();
            }
            event.token = w.request.prompt[0];
            if (++w.said >= w.request.max_tokens) event.finish = FinishReason::length;
            events_.push_back(event);
        }
        std::erase_if(work_, [](const Work& w) { return w.said > 0 && w.said >= w.request.max_tokens; });
        return std::exchange(events_, {});
    }
    PrefillProgress prefill_progress(RequestId) const override { return {}; }
    EngineStats stats() const override {
        EngineStats s;
        s.steps = steps;
        s.waiting = int32_t(work_.size());
        return s;
    }
    Result<void> save_cache(const std::string&) override { return {}; }
    Result<void> load_cache(const std::string&) override { return {}; }
    Result<void> score(const ScoreRequest&) override { return {}; }
    Tape record(int32_t, OutputKind) const override { std::abort(); }

    std::atomic<int64_t> steps = 0;
    std::atomic<int64_t> fail_at = -1;
    std::atomic<bool> blocked = false;  // nothing is admitted
    std::shared_ptr<std::atomic<bool>> gone = std::make_shared<std::atomic<bool>>(false);

  private:
    struct Work {
        RequestId id;
        Request request;
        int32_t said;
    };
    void mine() {
        if (owner_ == std::thread::id()) owner_ = std::this_thread::get_id();
        CHECK(owner_ == std::this_thread::get_id(), "two threads call one engine");
    }
    Metadata metadata_;
    EngineOptions options_;
    std::vector<Work> work_;
    std::vector<Event> events_;
    int64_t next_ = 100;
    std::thread::id owner_;
};

struct Rig {
    EchoEngine* engine;
    std::unique_ptr<EngineThread> thread;
    explicit Rig(int32_t slots = 4, int32_t queue = 1000) {
        auto made = std::make_unique<EchoEngine>(slots, queue);
        engine = made.get();
        thread = std::make_unique<EngineThread>(std::move(made));
    }
    EngineThread* operator->() { return thread.get(); }
};

Request request(int32_t token, int32_t max_tokens) {
    Request r;
    r.prompt = {TokenId(token)};
    r.max_tokens = max_tokens;
    return r;
}

// What sinks have heard, and a way to wait for it.
struct Ear {
    std::mutex mutex;
    std::condition_variable heard;
    std::map<RequestId, std::vector<Event>> events;
    int ends = 0;
    std::set<std::thread::id> threads;

    EventSink sink() {
        return [this](const Event& e) {
            std::lock_guard lock(mutex);
            events[e.request].push_back(e);
            threads.insert(std::this_thread::get_id());
            ends += e.finish != FinishReason::none;
            heard.notify_all();
        };
    }
    bool wait_for_ends(int n) {
        std::unique_lock lock(mutex);
        return heard.wait_for(lock, 60s, [&] { return ends >= n; });
    }
};

template <class Condition>
bool eventually(Condition condition) {
    for (int i = 0; i < 6000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(10ms);
    }
    return false;
}

// Risk: events get lost, doubled, mixed up or out of order under many submitters.
TEST(EngineThreads, EveryRequestHearsItsOwnEvents) {
    Ear ear;  // outlives the thread that calls it
    Rig rig;
    std::map<RequestId, std::pair<int32_t, int32_t>> wanted;
    std::mutex mutex;
    std::vector<std::thread> clients;
    clients.reserve(4);
    for (int c = 0; c < 4; ++c)
        clients.emplace_back([&, c] {
            for (int i = 0; i < 50; ++i) {
                const int32_t token = c * 100 + i, n = 1 + i % 7;
                auto id = rig->submit(request(token, n), ear.sink());
                ASSERT_TRUE(id.ok());
                std::lock_guard lock(mutex);
                wanted[*id] = {token, n};
            }
        });
    for (std::thread& t : clients) t.join();
    ASSERT_TRUE(ear.wait_for_ends(200));
    ASSERT_EQ(wanted.size(), 200u);
    for (const auto& [id, want] : wanted) {
        const std::vector<Event>& events = ear.events[id];
        ASSERT_EQ(int32_t(events.size()), want.second + 1);
        EXPECT_TRUE(events[0].admission);
        for (size_t i = 1; i < events.size(); ++i) {
            EXPECT_EQ(*events[i].token, TokenId(want.first));
            EXPECT_EQ(events[i].finish != FinishReason::none, i + 1 == events.size());
        }
    }
    EXPECT_EQ(ear.threads.size(), 1u);
    EXPECT_TRUE(eventually([&] { return rig->pending() == 0; }));
}

// Risk: the queue has no end, or its places are never given back.
TEST(EngineThreads, QueueIsBounded) {
    Ear ear;  // outlives the thread that calls it
    Rig rig(2, 3);
    rig.engine->blocked = true;
    std::vector<RequestId> ids;
    ids.reserve(3);
    for (int i = 0; i < 3; ++i) ids.push_back(rig->submit(request(i, 2), ear.sink()).value());
    auto refused = rig->submit(request(9, 2), ear.sink());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::resources);
    auto empty = rig->submit(Request{}, ear.sink());
    ASSERT_FALSE(empty.ok());
    EXPECT_EQ(empty.error().kind, ErrorKind::bad_input);
    rig->cancel(ids[1]);
    ASSERT_TRUE(ear.wait_for_ends(1));
    EXPECT_EQ(ear.events[ids[1]].back().finish, FinishReason::cancelled);
    EXPECT_TRUE(eventually([&] { return rig->submit(request(9, 2), ear.sink()).ok(); }));
    rig.engine->blocked = false;
    EXPECT_TRUE(ear.wait_for_ends(4));
    EXPECT_FALSE(ear.events.contains(RequestId(4)));
}

// Risk: a slow reader slows the engine down.
TEST(EngineThreads, SlowSinksDoNotStopTheEngine) {
    Ear ear;  // outlives the thread that calls it
    Rig rig;
    std::atomic<int> slow = 0;
    const RequestId id = rig->submit(request(1, 100),
                                     [&](const Event& e) {
                                         std::this_thread::sleep_for(5ms);
                                         slow += e.finish != FinishReason::none;
                                     })
                             .value();
    EXPECT_TRUE(eventually([&] { return rig.engine->steps >= 100; }));
    EXPECT_EQ(slow, 0) << int64_t(id);
    EXPECT_TRUE(eventually([&] { return slow == 1; }));
}

// Risk: without work the thread spins.
TEST(EngineThreads, IdleThreadSleeps) {
    Ear ear;  // outlives the thread that calls it
    Rig rig;
    ASSERT_TRUE(rig->submit(request(1, 3), ear.sink()).ok());
    ASSERT_TRUE(ear.wait_for_ends(1));
    const int64_t steps = rig.engine->steps;
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(rig.engine->steps, steps);
    EXPECT_TRUE(eventually([&] { return rig->stats().steps == steps; }));
}

// Risk: a failed device leaves requests hanging, or the server takes more of them.
TEST(EngineThreads, FailureEndsEverything) {
    Ear ear;  // outlives the thread that calls it
    Rig rig(2);
    rig.engine->fail_at = 5;
    for (int i = 0; i < 6; ++i)
        if (!rig->submit(request(i, 1000), ear.sink()).ok()) {
            std::lock_guard lock(ear.mutex);
            ++ear.ends;
        }
    ASSERT_TRUE(ear.wait_for_ends(6));
    EXPECT_TRUE(rig->failed());
    for (const auto& [id, events] : ear.events) {
        EXPECT_EQ(events.back().finish, FinishReason::error);
        EXPECT_NE(events.back().error.find("has failed"), std::string::npos);
    }
    auto refused = rig->submit(request(9, 2), ear.sink());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::internal);
    EXPECT_NE(rig->failure().find("failed in a test"), std::string::npos);
}

// Risk: work between steps runs elsewhere or is not waited for.
TEST(EngineThreads, CallsRunBetweenSteps) {
    Ear ear;  // outlives the thread that calls it
    Rig rig;
    ASSERT_TRUE(rig->submit(request(1, 1 << 30), ear.sink()).ok());
    for (int i = 0; i < 20; ++i) {
        const Engine* seen = nullptr;
        ASSERT_TRUE(rig->call([&](Engine& engine) { seen = &engine; }).ok());
        EXPECT_EQ(seen, rig.engine);
    }
}

// Risk: a draining server takes new work, drops what is under way, or never ends.
TEST(EngineThreads, DrainsAndStops) {
    Ear ear;  // outlives the thread that calls it
    Rig rig;
    const RequestId id = rig->submit(request(1, 50), ear.sink()).value();
    rig->drain();
    EXPECT_FALSE(rig->submit(request(2, 2), ear.sink()).ok());
    ASSERT_TRUE(ear.wait_for_ends(1));
    EXPECT_EQ(ear.events[id].back().finish, FinishReason::length);

    Rig cut;
    const auto gone = cut.engine->gone;
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(cut->submit(request(1, 1 << 30), ear.sink()).ok());
    cut.thread.reset();
    EXPECT_TRUE(*gone);
    EXPECT_EQ(ear.ends, 6);
    EXPECT_EQ(ear.events.rbegin()->second.back().finish, FinishReason::cancelled);
}

}  // namespace
}  // namespace sparkinfer
