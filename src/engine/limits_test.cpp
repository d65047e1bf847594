// What the engine refuses, what it survives, and that sampling parameters reach the device.
#include <limits>

#include "engine/test_model.h"

namespace sparkinfer {
namespace {

std::string refusal(LiveEngine& engine, const std::function<void(Request&)>& change) {
    Request r = random_request(10, 5, 1);
    change(r);
    const auto id = engine.submit(r);
    return id.ok() ? "accepted" : id.error().message;
}

// Risk: a number out of range reaches the device.
TEST(Limits, SubmitNamesTheParameter) {
    TestEngine e = make_engine();
    static constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                           inf = std::numeric_limits<float>::infinity();
    struct Case {
        const char* names;
        std::function<void(Request&)> change;
    };
    const Case cases[] = {
        {"temperature", [](Request& r) { r.sampling.temperature = -1; }},
        {"temperature", [](Request& r) { r.sampling.temperature = nan; }},
        {"temperature", [](Request& r) { r.sampling.temperature = inf; }},
        {"top_k", [](Request& r) { r.sampling.top_k = -1; }},
        {"top_p", [](Request& r) { r.sampling.top_p = 0; }},
        {"top_p", [](Request& r) { r.sampling.top_p = 2; }},
        {"top_p", [](Request& r) { r.sampling.top_p = nan; }},
        {"min_p", [](Request& r) { r.sampling.min_p = -0.1f; }},
        {"min_p", [](Request& r) { r.sampling.min_p = 1.1f; }},
        {"repeat_penalty", [](Request& r) { r.sampling.repeat_penalty = 0; }},
        {"repeat_penalty", [](Request& r) { r.sampling.repeat_penalty = inf; }},
        {"repeat_last_n", [](Request& r) { r.sampling.repeat_last_n = -2; }},
        {"presence_penalty", [](Request& r) { r.sampling.presence_penalty = 2.5f; }},
        {"frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = nan; }},
        {"logit_bias", [](Request& r) { r.sampling.logit_bias.resize(kMaxBias + 1); }},
        {"logit_bias token", [](Request& r) { r.sampling.logit_bias = {{TokenId(97), 1.0f}}; }},
        {"logit_bias", [](Request& r) { r.sampling.logit_bias = {{TokenId(1), nan}}; }},
        {"prompt is empty", [](Request& r) { r.prompt.clear(); }},
        {"prompt token 3 is id 97", [](Request& r) { r.prompt[3] = TokenId(97); }},
        {"prompt token 0 is id -1", [](Request& r) { r.prompt[0] = TokenId(-1); }},
        {"max_tokens", [](Request& r) { r.max_tokens = -2; }},
        {"stop_tokens", [](Request& r) { r.stop_tokens.resize(kMaxStopIds + 1); }},
        {"stop token", [](Request& r) { r.stop_tokens = {TokenId(1000)}; }},
        {"logprobs", [](Request& r) { r.logprobs = kMaxTopLogprobs + 1; }},
        {"logprobs", [](Request& r) { r.logprobs = -2; }},
    };
    for (const Case& c : cases) {
        const std::string said = refusal(*e.engine, c.change);
        EXPECT_NE(said.find(c.names), std::string::npos) << c.names << ": " << said;
        EXPECT_NE(said, "accepted") << c.names;
    }
    EXPECT_TRUE(e->idle());
}

Result<std::unique_ptr<LiveEngine>> open_with(Backend& backend, const EngineOptions& options,
                                              TinyKind kind = TinyKind::attention) {
    return LiveEngine::make(nullptr, std::make_unique<TinyModel>(kind), backend, options, {}, {});
}

// Risk: an option out of range overflows a size.
TEST(Limits, OptionsAreChecked) {
    auto backend = make_cpu_backend({.threads = 1}).value();
    const std::pair<const char*, EngineOptions> cases[] = {
        {"context is 1025", {.context = 1025}},
        {"context is -1", {.context = -1}},
        {"slots is 0", {.slots = 0}},
        {"slots is 1000000", {.slots = 1000000}},
        {"chunk is 63", {.chunk = 63}},
        {"chunk is 100", {.chunk = 100}},
        {"chunk is 1048576", {.chunk = 1 << 20}},
        {"kv_tokens is 64", {.context = 512, .kv_tokens = 64}},
        {"queue is 0", {.queue = 0}},
        {"top_logprobs is 21", {.top_logprobs = 21}},
    };
    for (const auto& [names, options] : cases) {
        const auto engine = open_with(*backend, options);
        ASSERT_FALSE(engine.ok()) << names;
        EXPECT_NE(engine.error().message.find(names), std::string::npos) << engine.error().message;
    }
    const auto few = open_with(*backend, {.slots = 4, .state_slots = 3}, TinyKind::hybrid);
    ASSERT_FALSE(few.ok());
    EXPECT_NE(few.error().message.find("state_slots is 3"), std::string::npos);
}

// Risk: the engine starts and dies later, or allocates before it has counted.
TEST(Limits, OpenRefusesWhatDoesNotFit) {
    LazyBackend backend(make_cpu_backend({.threads = 1}).value());
    backend.info().memory_bytes = 1 << 20;
    const auto engine = open_with(backend, {.slots = 64}, TinyKind::hybrid);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().kind, ErrorKind::resources);
    EXPECT_NE(engine.error().message.find("64 sequences of 1024 tokens need"), std::string::npos)
        << engine.error().message;
    EXPECT_NE(engine.error().message.find("has 1.0 MiB"), std::string::npos) << engine.error().message;
}

// Risk: a queue without end.
TEST(Limits, QueueIsBounded) {
    TestEngine e = make_engine({.options = {.context = 512, .slots = 1, .queue = 3}});
    std::vector<RequestId> ids;
    ids.reserve(3);
    for (uint32_t i = 0; i < 3; ++i) ids.push_back(e->submit(random_request(5, 2, i)).value());
    const auto refused = e->submit(random_request(5, 2, 9));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::resources);
    Answers answers;
    run_all(*e.engine, answers);
    for (RequestId id : ids) EXPECT_EQ(answers[id].said.size(), 2u);
    EXPECT_TRUE(e->submit(random_request(5, 2, 9)).ok());
}

// Risk: nothing to generate is not nothing to do.
TEST(Limits, NoTokensAsked) {
    for (int32_t pipeline : {1, 2}) {
        TestEngine e = make_engine({.kind = TinyKind::hybrid, .tuning = {.pipeline = pipeline}});
        const RequestId id = e->submit(random_request(100, 0, 1)).value();
        Answers answers;
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[id].finish, FinishReason::length);
        EXPECT_TRUE(answers[id].said.empty());
    }
}

// Risk: a device's failure leaves requests hanging, or memory held.
TEST(Limits, DeviceFailureEndsEverything) {
    for (int at = 0; at < 12; ++at) {
        TestEngine e = make_engine({.kind = TinyKind::hybrid, .tuning = {.pipeline = 2}, .lazy = true});
        for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(e->submit(random_request(90, 20, i)).ok());
        e.lazy->fail_at = at;
        std::string message;
        while (!e->idle() && message.empty()) {
            const auto events = e->step();
            if (!events.ok()) message = events.error().message;
        }
        EXPECT_EQ(message, "the device has failed in a test");
        EXPECT_TRUE(e->idle());
        e->check_integrity();
        EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
    }
}

// Risk: a queued step never happens, so that pipelining tests nothing.
TEST(Limits, BusyDeviceGetsASecondStep) {
    TestEngine busy = make_engine({.lazy = true});
    TestEngine prompt = make_engine({});
    for (TestEngine* e : {&busy, &prompt}) {
        Answers answers;
        (*e)->submit(random_request(10, 20, 1)).value();
        step_once(*e->engine, answers);
        EXPECT_EQ((*e)->scheduler().flights().size(), e == &busy ? 1u : 0u);
    }
}

// Risk: progress that never reaches its total, or of a request long gone.
TEST(Limits, PrefillProgressCounts) {
    TestEngine e = make_engine({});
    const RequestId id = e->submit(random_request(150, 5, 1)).value();
    EXPECT_EQ(e->prefill_progress(id).total, 150);
    EXPECT_EQ(e->prefill_progress(id).done, 0);
    Answers answers;
    step_once(*e.engine, answers);
    EXPECT_EQ(e->prefill_progress(id).done, 64);
    step_once(*e.engine, answers);
    step_once(*e.engine, answers);
    EXPECT_EQ(e->prefill_progress(id).done, 150);
    run_all(*e.engine, answers);
    EXPECT_EQ(e->prefill_progress(id).total, 0);
}

std::vector<TokenId> tokens_with(const std::function<void(SamplingParams&)>& change) {
    Request r = random_request(30, 40, 6);
    r.sampling = {.temperature = 1.5f, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 5};
    change(r.sampling);
    return alone(TinyKind::attention, r).tokens();
}

// Risk: a parameter is dropped on its way to the slot record.
TEST(Sampling, EveryParameterArrives) {
    const auto base = tokens_with([](SamplingParams&) {});
    EXPECT_EQ(base, tokens_with([](SamplingParams&) {}));
    const std::pair<const char*, std::function<void(SamplingParams&)>> changes[] = {
        {"seed, low half", [](SamplingParams& s) { s.seed = 6; }},
        {"seed, high half", [](SamplingParams& s) { s.seed |= 1ull << 40; }},
        {"temperature", [](SamplingParams& s) { s.temperature = 0.5f; }},
        {"top_k", [](SamplingParams& s) { s.top_k = 2; }},
        {"top_p", [](SamplingParams& s) { s.top_p = 0.3f; }},
        {"min_p", [](SamplingParams& s) { s.min_p = 0.5f; }},
        {"repeat_penalty", [](SamplingParams& s) { s.repeat_penalty = 3, s.repeat_last_n = -1; }},
        {"presence_penalty", [](SamplingParams& s) { s.presence_penalty = 2; }},
        {"frequency_penalty", [](SamplingParams& s) { s.frequency_penalty = 2; }},
    };
    for (const auto& [name, change] : changes) EXPECT_NE(base, tokens_with(change)) << name;
    const auto greedy = [](SamplingParams& s) { s.temperature = 0; };
    EXPECT_EQ(tokens_with(greedy), tokens_with([](SamplingParams& s) { s.top_k = 1; }));
    const auto biased = tokens_with(
        [](SamplingParams& s) { s.logit_bias = {{TokenId(2), -100.0f}, {TokenId(96), 1000.0f}}; });
    EXPECT_EQ(biased, std::vector<TokenId>(40, TokenId(96)));
}

// Risk: repeat_last_n counts from the wrong end, or 0 does not switch it off.
TEST(Sampling, RepeatWindow) {
    const auto with = [](int32_t last_n) {
        return tokens_with([&](SamplingParams& s) { s.repeat_penalty = 5, s.repeat_last_n = last_n; });
    };
    EXPECT_EQ(with(0), tokens_with([](SamplingParams&) {}));
    EXPECT_EQ(with(-1), with(500));
    EXPECT_NE(with(-1), with(2));
}

// Risk: presence counts the prompt, or loses count where a sequence was taken up again.
TEST(Sampling, PresenceCountsGeneratedTokensOnly) {
    TestEngine e = make_engine({.options = {.context = 512, .slots = 2, .kv_tokens = 2048}});
    const TokenId a = TokenId(11), b = TokenId(12);
    Request r;
    r.prompt.assign(70, a);
    r.max_tokens = 4;
    r.sampling = {.temperature = 0, .presence_penalty = 2};
    // Of these two, a wins by one: by less than the penalty that it would get if the prompt counted.
    float lead = 0;
    const auto measure = [&](int32_t, std::span<const float> l) -> Result<void> {
        lead = l[size_t(raw(a))] - l[size_t(raw(b))];
        return {};
    };
    ASSERT_TRUE(e->score({r.prompt, measure, 69}).ok());
    r.sampling.logit_bias = {{a, 1001.0f - lead}, {b, 1000.0f}};
    Answers answers;
    const RequestId id = e->submit(r).value();
    step_once(*e.engine, answers);
    ASSERT_EQ(answers[id].said.size(), 1u);
    const RequestId twin = e->fork(id).value();
    run_all(*e.engine, answers);
    // Logits differ by a few units, the biases by one, the penalty by two: a first, b once a counts, then a
    // again.
    const std::vector<TokenId> got = answers[id].tokens();
    EXPECT_EQ(got[0], a);
    EXPECT_EQ(answers[twin].tokens(), std::vector<TokenId>(got.begin() + 1, got.end()));
    const SlotsView& slots = e->runner().slots();
    for (int slot : {0, 1}) EXPECT_EQ(slots.slot(slot).cursor.prompt, 70) << slot;
}

// Risk: the device does not know the limit of a sequence that was taken up again, and queued rows overrun it.
TEST(Limits, TheDeviceKnowsTheLimit) {
    TestEngine e = make_engine({.options = {.context = 512, .slots = 2, .kv_tokens = 2048}});
    Answers answers;
    const RequestId id = e->submit(random_request(30, 12, 5)).value();
    for (int i = 0; i < 5; ++i) step_once(*e.engine, answers);
    e->fork(id).value();
    run_all(*e.engine, answers);
    const SlotsView& slots = e->runner().slots();
    for (int slot : {0, 1}) {
        EXPECT_EQ(slots.slot(slot).cursor.stopped, kStopLimit) << slot;
        EXPECT_EQ(slots.slot(slot).cursor.generated, 12) << slot;
    }
}

}  // namespace
}  // namespace sparkinfer
