// The prefix cache on real arithmetic: a hit must say exactly what a miss says; and sessions on disk.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/test_device.h"

namespace sparkinfer {
namespace {

int64_t state_bytes() { return StatePool::slot_bytes(TinyModel(TinyKind::hybrid).shape().state, DType::f32); }

TestEngine open_cached(TinyKind kind, const std::function<void(EngineOptions&, EngineTuning&)>& change = {}) {
    TestSetup setup{.kind = kind,
                    .options = {.context = 512, .slots = 3, .chunk = 128, .prefix_cache = true},
                    .tuning = {.pipeline = 2}};
    setup.options.checkpoint_bytes = 12 * state_bytes();
    if (change) change(setup.options, setup.tuning);
    return make_engine(setup);
}

struct Heard {
    EngineAnswer answer;
    Admission admission;
    std::vector<float> rated;
};
Heard ask(LiveEngine& engine, const Request& request) {
    Heard heard;
    const RequestId id = engine.submit(request).value();
    while (!engine.idle()) {
        auto events = engine.step();
        EXPECT_TRUE(events.ok());
        for (const Event& e : *events) {
            if (e.request != id) continue;
            if (e.admission) heard.admission = *e.admission;
            for (const TokenLogprobs& l : e.prompt_logprobs) heard.rated.push_back(l.logprob);
            take_event(e, heard.answer);
        }
        engine.check_integrity();
    }
    return heard;
}

// The request's prompt, what it said, and `more` new tokens.
std::vector<TokenId> next_turn(const Request& request, const EngineAnswer& answer, int more, uint32_t seed) {
    std::vector<TokenId> prompt = request.prompt;
    for (const Said& said : answer.said) prompt.push_back(said.token);
    for (TokenId token : random_tokens(more, seed)) prompt.push_back(token);
    return prompt;
}

class PrefixCaches : public testing::TestWithParam<TinyKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, PrefixCaches, testing::Values(TinyKind::attention, TinyKind::hybrid));

// Risk: a state or page of another branch, of another row, or a stale one.
TEST_P(PrefixCaches, BranchesEqualTheColdRun) {
    int64_t host = 0;
    for (int32_t checkpoints : {1, 12}) {
        TestEngine e = open_cached(GetParam(), [&](EngineOptions& o, EngineTuning& t) {
            o.kv_tokens = checkpoints == 1 ? 12 * kPageTokens : 0;
            o.checkpoint_bytes = checkpoints * state_bytes();
            o.host_cache_bytes = checkpoints == 1 ? 8 << 20 : 0;
            t.pipeline = checkpoints == 1 ? 0 : 3;
        });
        std::vector<std::pair<Request, EngineAnswer>> done;
        std::mt19937 random(5);
        int64_t hits = 0;
        for (uint32_t i = 0; i < 24; ++i) {
            Request r = random_request(100, 12, i + 1);
            if (i > 2) {
                const auto& [before, said] = done[random() % done.size()];
                r.prompt = next_turn(before, said, int(1 + random() % 40), i);
                if (random() % 3 == 0) r.prompt.resize(70 + random() % (r.prompt.size() - 70));
            }
            if (r.prompt.size() > 400) r.prompt.resize(90);
            r.checkpoints = {int32_t(random() % r.prompt.size())};
            const Heard heard = ask(*e.engine, r);
            hits += heard.admission.cached_tokens > 0;
            EXPECT_EQ(heard.answer, alone(GetParam(), r)) << i << ": " << heard.admission.detail;
            done.emplace_back(r, heard.answer);
        }
        EXPECT_GT(hits, 8);
        host += e->stats().host_restores;
    }
    EXPECT_GT(host, 0);
}

// Risk: the next turn of a conversation computes more than what is new.
TEST_P(PrefixCaches, NextTurnComputesWhatIsNew) {
    TestEngine e = open_cached(GetParam());
    Request r = random_request(150, 20, 3);
    for (uint32_t turn = 0; turn < 3; ++turn) {
        const Heard heard = ask(*e.engine, r);
        EXPECT_GE(heard.admission.cached_tokens, turn == 0 ? 0 : int32_t(r.prompt.size()) - 12 - 1);
        EXPECT_EQ(heard.admission.miss, turn == 0 ? CacheMiss::empty : CacheMiss::none)
            << heard.admission.detail;
        r.prompt = next_turn(r, heard.answer, 12, turn);
    }
    EXPECT_EQ(e->stats().restores, 2);
}

// Risk: a new conversation behind the same system prompt finds nothing; requests of other salts do.
TEST_P(PrefixCaches, SystemPromptsAreShared) {
    TestEngine e = open_cached(GetParam());
    const std::vector<TokenId> system = random_tokens(200, 9);
    const auto conversation = [&](uint32_t seed, const std::string& salt) {
        Request r = random_request(1, 4, seed);
        r.prompt = system;
        for (TokenId token : random_tokens(60, seed)) r.prompt.push_back(token);
        r.checkpoints = {200};
        r.cache_salt = salt;
        return ask(*e.engine, r).admission;
    };
    EXPECT_EQ(conversation(1, "").cached_tokens, 0);
    EXPECT_GE(conversation(2, "").cached_tokens, 192);
    EXPECT_EQ(conversation(3, "other").cached_tokens, 0);
    EXPECT_EQ(conversation(4, "other2").miss, CacheMiss::empty);
    EXPECT_GE(conversation(5, "other").cached_tokens, 192);
}

// Risk: requests of one prompt that arrive together each compute it.
TEST_P(PrefixCaches, TwinsWaitForEachOther) {
    TestEngine e = open_cached(GetParam());
    const Request r = random_request(330, 5, 4);
    const EngineAnswer want = alone(GetParam(), r);
    std::vector<RequestId> ids;
    for (int i = 0; i < 3; ++i) ids.push_back(e->submit(r).value());
    Answers answers;
    run_all(*e.engine, answers);
    for (RequestId id : ids) EXPECT_EQ(answers[id], want);
    EXPECT_GE(e->stats().cache_hit_tokens, 2 * 256);
}

// Risk: a miss without a reason, or with a wrong one.
TEST_P(PrefixCaches, MissesSayWhy) {
    TestEngine e = open_cached(GetParam());
    Request r = random_request(200, 4, 1);
    r.cache = false;
    EXPECT_EQ(ask(*e.engine, r).admission.miss, CacheMiss::refused);
    r.cache = true;
    EXPECT_EQ(ask(*e.engine, r).admission.miss, CacheMiss::empty);
    Request other = r;
    other.prompt[0] = TokenId((raw(other.prompt[0]) + 1) % 97);
    EXPECT_EQ(ask(*e.engine, other).admission.miss, CacheMiss::diverged);
    other = r;
    other.prompt[150] = TokenId((raw(other.prompt[150]) + 1) % 97);
    const Admission half = ask(*e.engine, other).admission;
    EXPECT_NE(half.detail.find("first 150 of 200"), std::string::npos) << half.detail;
    const bool hybrid = GetParam() == TinyKind::hybrid;
    EXPECT_EQ(half.miss, hybrid ? CacheMiss::no_checkpoint : CacheMiss::diverged) << half.detail;
    r.prompt_logprobs = 0;
    EXPECT_EQ(ask(*e.engine, r).admission.miss, CacheMiss::logprobs);
    EXPECT_EQ(e->stats().misses[int(CacheMiss::logprobs)], 1);
    TestEngine off = make_engine({.kind = GetParam()});
    EXPECT_EQ(ask(*off.engine, r).admission.miss, CacheMiss::disabled);
}

// Risk: what gave way is called a divergence, and the cache keeps more than it may.
TEST_P(PrefixCaches, EvictionIsToldAndBounded) {
    TestEngine e = open_cached(GetParam(), [](EngineOptions& o, EngineTuning&) {
        o.kv_tokens = 10 * kPageTokens;
        o.checkpoint_bytes = 2 * state_bytes();
    });
    const Request first = random_request(200, 4, 1);
    ask(*e.engine, first);
    for (uint32_t i = 2; i < 12; ++i) ask(*e.engine, random_request(200, 4, i));
    const EngineStats s = e->stats();
    EXPECT_GT(s.evictions, 0);
    EXPECT_LE(s.checkpoint_bytes, s.checkpoint_budget);
    EXPECT_LE(s.kv_pages_used, 10);
    EXPECT_EQ(ask(*e.engine, first).admission.miss, CacheMiss::evicted);
}

// Risk: log-probabilities of the prompt depend on where its chunks are cut, or on neighbours.
TEST_P(PrefixCaches, PromptsAreRated) {
    TestEngine e = open_cached(GetParam());
    Request r = random_request(300, 3, 8);
    r.prompt_logprobs = 2;
    const auto want = e->score_logprobs(r.prompt).value();
    e->submit(random_request(150, 40, 5)).value();
    e->submit(random_request(10, 40, 6)).value();
    const Heard heard = ask(*e.engine, r);
    ASSERT_EQ(heard.rated.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(heard.rated[i], want[i].logprob) << i;
    r.prompt_logprobs = -1;
    EXPECT_EQ(heard.answer, alone(GetParam(), r));
}

// Risk: the end is chosen too early, or nothing is chosen when a grammar allows nothing else.
TEST_P(PrefixCaches, MinTokensHoldsTheEndBack) {
    TestEngine e = open_cached(GetParam());
    Request r = random_request(30, 40, 12);
    r.stop_tokens = {ask(*e.engine, r).answer.said.at(4).token};
    ASSERT_LT(ask(*e.engine, r).answer.said.size(), 5u);
    r.min_tokens = 20;
    EXPECT_GE(ask(*e.engine, r).answer.said.size(), 20u);
}

struct SessionFile {
    std::string path = testing::TempDir() + fmt::format("session-{}", getpid());
    ~SessionFile() { std::filesystem::remove(path); }
    std::string read() const {
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    void write(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
};

// Risk: a restored session goes on differently, or not from where it stood.
TEST_P(PrefixCaches, SessionsGoOnInANewEngine) {
    const SessionFile file;
    Request r = random_request(170, 30, 4);
    r.cache_salt = "mine";
    Request again = r, next = r;
    {
        TestEngine e = open_cached(GetParam());
        next.prompt = next_turn(r, ask(*e.engine, r).answer, 20, 1);
        ask(*e.engine, random_request(90, 5, 6));
        ASSERT_TRUE(e->save_cache(file.path).ok());
    }
    for (bool host : {false, true}) {
        TestEngine e = open_cached(GetParam(), [&](EngineOptions& o, EngineTuning&) {
            if (host) o.kv_tokens = 8 * kPageTokens, o.host_cache_bytes = 64 << 20;
        });
        const auto loaded = e->load_cache(file.path);
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        e->check_integrity();
        ASSERT_TRUE(e->load_cache(file.path).ok());  // what is there already stays
        const Heard went_on = ask(*e.engine, next);
        EXPECT_GE(went_on.admission.cached_tokens, 170 + 30 - 1) << went_on.admission.detail;
        EXPECT_EQ(went_on.answer, alone(GetParam(), next));
        const Heard regenerated = ask(*e.engine, again);
        EXPECT_GE(regenerated.admission.cached_tokens, 128);
        EXPECT_EQ(regenerated.answer, alone(GetParam(), again));
    }
}

// Risk: a damaged or foreign file is taken for a session, in part or as a whole.
TEST_P(PrefixCaches, DamagedSessionsAreRefused) {
    const SessionFile file;
    TestEngine e = open_cached(GetParam());
    ask(*e.engine, random_request(170, 10, 4));
    ASSERT_TRUE(e->save_cache(file.path).ok());
    const std::string whole = file.read();
    TestEngine fresh = open_cached(GetParam());
    const auto refused = [&](const std::string& bytes, const std::string& what) {
        file.write(bytes);
        const auto loaded = fresh->load_cache(file.path);
        EXPECT_FALSE(loaded.ok()) << what;
        EXPECT_EQ(fresh->stats().kv_pages_used, 0) << what;
        return loaded.ok() ? std::string() : loaded.error().message;
    };
    for (size_t at = 0; at < whole.size(); at += 1 + whole.size() / 150) {
        std::string bytes = whole;
        bytes[at] = char(bytes[at] ^ 4);
        refused(bytes, fmt::format("byte {}", at));
        refused(whole.substr(0, at), fmt::format("the first {} bytes", at));
    }
    EXPECT_NE(refused(whole + "x", "one more").find("1 bytes follow"), std::string::npos);
    EXPECT_NE(refused("GGUF", "other").find("is no saved session"), std::string::npos);
    file.write(whole);
    const bool hybrid = GetParam() == TinyKind::hybrid;
    TestEngine foreign = open_cached(hybrid ? TinyKind::attention : TinyKind::hybrid);
    const auto loaded = foreign->load_cache(file.path);
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.error().message.find("another model"), std::string::npos);
    EXPECT_TRUE(fresh->load_cache(file.path).ok());
    TestEngine off = make_engine({.kind = GetParam()});
    EXPECT_FALSE(off->load_cache(file.path).ok());
}

// Risk: a process that dies while it saves takes the earlier file with it.
TEST(Sessions, DeathWhileSavingKeepsTheEarlierFile) {
    const SessionFile file;
    TestEngine e = open_cached(TinyKind::hybrid);
    ask(*e.engine, random_request(170, 10, 4));
    ASSERT_TRUE(e->save_cache(file.path).ok());
    const std::string before = file.read();
    ask(*e.engine, random_request(190, 10, 5));
    const pid_t child = fork();
    if (child == 0) {
        // The kernel ends it in the middle of a write.
        const rlimit limit{before.size() / 2, before.size() / 2};
        setrlimit(RLIMIT_FSIZE, &limit);
        (void)e->save_cache(file.path);
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
    EXPECT_EQ(file.read(), before);
    TestEngine fresh = open_cached(TinyKind::hybrid);
    EXPECT_TRUE(fresh->load_cache(file.path).ok());
    for (const auto& entry : std::filesystem::directory_iterator(testing::TempDir()))
        if (entry.path().string().starts_with(file.path + ".")) std::filesystem::remove(entry.path());
}

struct Timed {
    HashDevice device{false};
    std::unique_ptr<LiveEngine> engine;
    explicit Timed(EngineOptions o) {
        device.step_s = 0.004;
        device.row_s = 0.0008;
        EngineTuning tuning{.pipeline = 1};
        tuning.clock = &device.clock;
        engine = LiveEngine::make(nullptr, std::make_unique<HashModel>(false), device, o, tuning, {}).value();
    }
};

// Risk: somebody's long prompt stops everybody's answers.
TEST(Steps, MixedStepsTakeFiftyMilliseconds) {
    Timed t({.context = 4096, .slots = 4, .chunk = 512});
    Request talk, book;
    talk.prompt = {TokenId(1)};
    talk.max_tokens = 200;
    book.prompt.assign(3000, TokenId(2));
    book.max_tokens = 1;
    t.engine->submit(talk).value();
    ASSERT_TRUE(t.engine->step().ok());
    t.engine->submit(book).value();
    int mixed = 0;
    while (!t.engine->idle()) {
        ASSERT_TRUE(t.engine->step().ok());
        const EngineStats s = t.engine->stats();
        if (s.last_prompt_rows == 0 || s.last_decode_rows == 0) continue;
        ++mixed;
        // The first one is a page: nothing has been measured yet.
        EXPECT_LE(s.last_step_ms, mixed == 1 ? 60 : 50) << s.last_prompt_rows;
    }
    EXPECT_GT(mixed, 50);
    EXPECT_LT(mixed, 100);
}

// Risk: a prompt that nobody waits beside is cut into pieces of the time that is meant for those who do.
TEST(Steps, APromptAloneIsNotCut) {
    for (int32_t rows : {3000, 4000}) {
        Timed t({.context = 4096, .slots = 4, .chunk = 3072});
        Request talk, book;
        talk.prompt.assign(200, TokenId(1));
        talk.max_tokens = 5;
        book.prompt.assign(size_t(rows), TokenId(2));
        book.max_tokens = 1;
        // What a mixed step takes is known by now.
        t.engine->submit(talk).value();
        t.engine->submit(talk).value();
        while (!t.engine->idle()) ASSERT_TRUE(t.engine->step().ok());
        const int64_t before = t.engine->stats().steps;
        t.engine->submit(book).value();
        while (!t.engine->idle()) ASSERT_TRUE(t.engine->step().ok());
        EXPECT_EQ(t.engine->stats().steps - before, rows == 3000 ? 1 : 2) << rows;
    }
}

// Risk: a short prompt waits for a long one, or the long one for ever for short ones.
TEST(Steps, ShortPromptsPassLongOnes) {
    Timed t({.context = 4096, .slots = 3, .chunk = 128});
    Request book, word;
    book.prompt.assign(4000, TokenId(2));
    book.max_tokens = 1;
    word.prompt.assign(100, TokenId(3));
    word.max_tokens = 1;
    const RequestId long_one = t.engine->submit(book).value();
    int32_t words = 0, steps = 0;
    for (bool read = false; !read; ++steps) {
        if (steps % 3 == 0) t.engine->submit(word).value();
        auto events = t.engine->step();
        ASSERT_TRUE(events.ok());
        for (const Event& e : *events) {
            if (!e.token) continue;
            read = read || e.request == long_one;
            words += e.request != long_one;
        }
        ASSERT_LT(steps, 200);
    }
    EXPECT_GT(words, 10);
}

// Risk: under `deterministic` rows of different kinds share a step after all.
TEST(Steps, DeterministicStepsAreOfOneKind) {
    Timed t({.context = 1024, .slots = 12, .chunk = 128, .prefix_cache = true, .deterministic = true});
    for (int i = 0; i < 12; ++i) {
        Request r;
        r.prompt.assign(size_t(100 + 30 * i), TokenId(i));
        r.max_tokens = 30;
        t.engine->submit(r).value();
    }
    int prompts = 0, others = 0;
    while (!t.engine->idle()) {
        ASSERT_TRUE(t.engine->step().ok());
        const EngineStats s = t.engine->stats();
        EXPECT_TRUE(s.last_prompt_rows == 0 || s.last_decode_rows == 0);
        EXPECT_LE(s.last_decode_rows, kMaxVerifyRows);
        (s.last_prompt_rows > 0 ? prompts : others) += 1;
    }
    EXPECT_GT(prompts, 20);
    EXPECT_GT(others, 40);
}

// Risk: a parameter of the cache is not looked at.
TEST(Steps, CacheParametersAreChecked) {
    TestEngine e = open_cached(TinyKind::hybrid);
    const auto refusal = [&](const std::function<void(Request&)>& change) {
        Request r = random_request(10, 5, 1);
        change(r);
        const auto checked = e->check(r);
        return checked.ok() ? "accepted" : checked.error().message;
    };
    EXPECT_NE(refusal([](Request& r) { r.min_tokens = -1; }).find("min_tokens is -1"), std::string::npos);
    EXPECT_NE(refusal([](Request& r) { r.prompt_logprobs = 21; }).find("prompt_logprobs"), std::string::npos);
    EXPECT_NE(refusal([](Request& r) { r.checkpoints = {5, 4}; }).find("a checkpoint is 4"),
              std::string::npos);
    EXPECT_NE(refusal([](Request& r) { r.checkpoints = {11}; }).find("a checkpoint is 11"),
              std::string::npos);
    EXPECT_NE(refusal([](Request& r) { r.cache_salt.resize(1025); }).find("cache_salt"), std::string::npos);
    EXPECT_EQ(refusal([](Request& r) { r.checkpoints = {0, 4, 4, 10}; }), "accepted");
    auto backend = make_cpu_backend({.threads = 1}).value();
    const EngineOptions small{.prefix_cache = true, .checkpoint_bytes = 10};
    const auto refused =
        LiveEngine::make(nullptr, std::make_unique<TinyModel>(TinyKind::hybrid), *backend, small, {}, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("checkpoint_bytes is 0"), std::string::npos);
}

}  // namespace
}  // namespace sparkinfer
