// Many sequences at once: each must say, bit for bit, what it says alone.
#include "engine/engine.h"

#include "engine/test_model.h"

namespace sparkinfer {
namespace {

// Every way of running that must not show in the answers.
struct Way {
    const char* name;
    TinyKind kind;
    int32_t chunk, slots, pipeline;
    bool pad, lazy;
};
void PrintTo(const Way& w, std::ostream* out) { *out << w.name; }

constexpr Way kWays[] = {
    {"attention_plain", TinyKind::attention, 64, 4, 1, false, false},
    {"attention_queued", TinyKind::attention, 128, 4, 2, true, true},
    {"hybrid_plain", TinyKind::hybrid, 64, 4, 1, false, false},
    {"hybrid_padded", TinyKind::hybrid, 192, 8, 1, true, false},
    {"hybrid_queued", TinyKind::hybrid, 64, 4, 2, true, false},
    {"hybrid_lazy", TinyKind::hybrid, 128, 3, 2, false, true},
    {"hybrid_auto_lazy", TinyKind::hybrid, 64, 4, 0, false, true},
    {"hybrid_deep", TinyKind::hybrid, 64, 4, 4, true, true},
};

TestSetup setup_of(const Way& w) {
    return {.kind = w.kind,
            .options = {.context = 512, .slots = w.slots, .chunk = w.chunk},
            .tuning = {.pipeline = w.pipeline, .pad_to_bucket = w.pad},
            .lazy = w.lazy};
}

class EveryWay : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, EveryWay, testing::ValuesIn(kWays),
                         [](const auto& p) { return p.param.name; });

// Risk: rows of one sequence leak into another when chunks and decode rows of many share a step.
TEST_P(EveryWay, RaggedBatchEqualsAlone) {
    TestEngine e = make_engine(setup_of(GetParam()));
    std::map<RequestId, Request> requests;
    Answers answers;
    std::set<int32_t> seen;
    const int lengths[] = {1, 2, 63, 64, 65, 127, 130, 200, 7, 300};
    uint32_t seed = 1;
    for (int length : lengths) {
        Request r = random_request(length, 3 + int(seed * 5 % 17), seed);
        if (seed % 3 == 1) r.stop_tokens = {TokenId(5), TokenId(17), TokenId(40), TokenId(41), TokenId(42)};
        requests.emplace(e->submit(r).value(), r);
        ++seed;
        step_once(*e.engine, answers);
    }
    run_all(*e.engine, answers);
    for (const auto& [id, request] : requests) {
        EXPECT_EQ(answers[id], alone(GetParam().kind, request)) << "request " << int64_t(id);
        for (TokenId t : answers[id].tokens()) seen.insert(raw(t));
    }
    EXPECT_GT(seen.size(), 20u) << "the model says too little to tell anything";
    EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
}

// Risk: an end token that the device sees while rows are queued behind it leaves the cursor, a page or a
// state wrong.
TEST_P(EveryWay, StopsWithRowsQueuedAndGoesOn) {
    TestSetup setup = setup_of(GetParam());
    setup.tuning.keep_finished = true;
    setup.options.state_slots = 40;
    TestEngine e = make_engine(setup);
    for (uint32_t seed = 2; seed < 10; ++seed) {
        Request r = random_request(int(20 + seed * 11), 24, seed);
        const std::vector<TokenId> all = alone(GetParam().kind, r).tokens();
        const size_t at = seed % 7 + 3;
        r.stop_tokens = {all[at]};
        const size_t first = size_t(std::find(all.begin(), all.end(), all[at]) - all.begin());
        const RequestId id = e->submit(r).value();
        const RequestId neighbour = e->submit(random_request(70, 30, seed + 50)).value();
        Answers answers;
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[id].finish, FinishReason::stop);
        EXPECT_EQ(answers[id].tokens(), std::vector<TokenId>(all.begin(), all.begin() + int(first)));
        EXPECT_EQ(answers[neighbour], alone(GetParam().kind, random_request(70, 30, seed + 50)));
        // The conversation continues with the end token and something new.
        const SnapshotId point = e->finished_point(id).value();
        Request more = random_request(1, 12, seed + 90);
        more.prompt = e->snapshot(point)->tokens;
        EXPECT_EQ(more.prompt.size(), r.prompt.size() + first);
        more.prompt.push_back(r.stop_tokens[0]);
        for (TokenId t : random_tokens(int(seed), seed)) more.prompt.push_back(t);
        const RequestId next = e->submit_from(point, more).value();
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[next], alone(GetParam().kind, more));
        for (SnapshotId kept : {point, e->finished_point(neighbour).value(), e->finished_point(next).value()})
            e->drop(kept);
    }
    EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
}

// Risk: a stop that only the host sees keeps what queued rows did to the state.
TEST_P(EveryWay, CancelledConversationGoesOn) {
    TestSetup setup = setup_of(GetParam());
    setup.tuning.keep_finished = true;
    setup.options.state_slots = 40;
    TestEngine e = make_engine(setup);
    for (int steps = 2; steps < 14; ++steps) {
        Request r = random_request(90, 64, uint32_t(steps));
        const EngineAnswer whole = alone(GetParam().kind, r);
        const RequestId id = e->submit(r).value();
        Answers answers;
        for (int i = 0; i < steps; ++i) step_once(*e.engine, answers);
        e->cancel(id);
        run_all(*e.engine, answers);
        const EngineAnswer& got = answers[id];
        EXPECT_EQ(got.finish, FinishReason::cancelled);
        ASSERT_LE(got.said.size(), whole.said.size());
        EXPECT_TRUE(std::equal(got.said.begin(), got.said.end(), whole.said.begin()));
        const SnapshotId point = e->finished_point(id).value();
        Request more = random_request(1, 12, uint32_t(steps) + 90);
        more.prompt = r.prompt;
        for (TokenId t : got.tokens()) more.prompt.push_back(t);
        ASSERT_LE(e->snapshot(point)->tokens.size(), more.prompt.size());
        for (TokenId t : random_tokens(5, 3)) more.prompt.push_back(t);
        const RequestId next = e->submit_from(point, more).value();
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[next], alone(GetParam().kind, more));
        e->drop(point);
        e->drop(e->finished_point(next).value());
    }
    EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
}

// Risk: something of a cancelled request stays behind, or takes a neighbour with it.
TEST_P(EveryWay, CancelFreesEverything) {
    TestEngine e = make_engine(setup_of(GetParam()));
    const Request neighbour = random_request(33, 30, 11);
    for (int steps = 0; steps < 8; ++steps) {
        Answers answers;
        const RequestId keeps = e->submit(neighbour).value();
        std::vector<RequestId> ids;
        ids.reserve(7);
        for (uint32_t i = 0; i < 7; ++i) ids.push_back(e->submit(random_request(200, 50, i)).value());
        for (int i = 0; i < steps; ++i) step_once(*e.engine, answers);
        for (RequestId id : ids) e->cancel(id);
        e->cancel(ids[0]);
        e->cancel(RequestId(123456));
        run_all(*e.engine, answers);
        for (RequestId id : ids) EXPECT_EQ(answers[id].finish, FinishReason::cancelled);
        EXPECT_EQ(answers[keeps], alone(GetParam().kind, neighbour));
        EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
        EXPECT_EQ(e->runner().states().pool().free(), e->runner().states().pool().count());
    }
}

// Risk: a sequence that gave up its pages says something else when it comes back.
TEST_P(EveryWay, TooFewPagesDoNotShow) {
    TestSetup setup = setup_of(GetParam());
    setup.options.kv_tokens = 512;
    TestEngine e = make_engine(setup);
    std::map<RequestId, Request> requests;
    Answers answers;
    for (uint32_t seed = 1; seed < 7; ++seed) {
        const Request r = random_request(100 + int(seed), 90, seed);
        requests.emplace(e->submit(r).value(), r);
    }
    run_all(*e.engine, answers);
    for (const auto& [id, request] : requests) EXPECT_EQ(answers[id], alone(GetParam().kind, request));
    EXPECT_GT(e->scheduler().preemptions(), 0);
}

// Risk: the context's end overruns a page list, shifts the window or loses the last token.
TEST_P(EveryWay, ContextLimitEndsWithLength) {
    TestEngine e = make_engine(setup_of(GetParam()));
    Answers answers;
    for (int length : {511, 510, 500, 449, 448}) {
        const RequestId id = e->submit(random_request(length, length % 2 ? -1 : 1000, 4)).value();
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[id].said.size(), size_t(512 - length));
        EXPECT_EQ(answers[id].finish, FinishReason::length);
    }
    const auto refused = e->submit(random_request(512, 1, 4));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message,
              "the prompt has 512 tokens and the context is 512: no room is left for an answer");
}

// Risk: rows padded or cut differently change a logit.
TEST_P(EveryWay, ScoreDoesNotDependOnChunks) {
    TestEngine e = make_engine(setup_of(GetParam()));
    TestEngine plain = make_engine({.kind = GetParam().kind, .options = {.context = 512, .chunk = 512}});
    for (int length : {1, 64, 65, 200, 512}) {
        const std::vector<TokenId> tokens = random_tokens(length, 3);
        std::vector<float> want, got;
        const auto collect = [&](std::vector<float>& to) {
            return [&to](int32_t i, std::span<const float> logits) -> Result<void> {
                EXPECT_EQ(to.size(), size_t(i) * TinyModel::kVocab);
                to.insert(to.end(), logits.begin(), logits.end());
                return {};
            };
        };
        ASSERT_TRUE(plain->score({tokens, collect(want), 0}).ok());
        ASSERT_TRUE(e->score({tokens, collect(got), 0}).ok());
        ASSERT_EQ(want.size(), size_t(length) * TinyModel::kVocab);
        EXPECT_EQ(want, got);
    }
    EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
}

double log_sum_exp(std::span<const float> logits) {
    double top = -INFINITY, sum = 0;
    for (float l : logits) top = std::max(top, double(l));
    for (float l : logits) sum += std::exp(double(l) - top);
    return top + std::log(sum);
}

// Risk: generation and rating see different sequences, or log-probabilities are of something but the raw
// logits.
TEST_P(EveryWay, GreedyAndLogprobsAgreeWithScore) {
    TestEngine e = make_engine(setup_of(GetParam()));
    Request r = random_request(100, 60, 6);
    r.sampling = {.temperature = 0};
    r.logprobs = 5;
    const RequestId id = e->submit(r).value();
    Answers answers;
    run_all(*e.engine, answers);
    std::vector<TokenId> tokens = r.prompt;
    for (TokenId t : answers[id].tokens()) tokens.push_back(t);
    int seen = 0;
    const auto check = [&](int32_t i, std::span<const float> logits) -> Result<void> {
        if (i + 1 >= int32_t(tokens.size())) return {};
        const Said& said = answers[id].said[size_t(i) + 1 - r.prompt.size()];
        const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
        EXPECT_EQ(raw(said.token), int32_t(best));
        EXPECT_EQ(said.logprobs.size(), 11u);
        EXPECT_NEAR(said.logprobs[0], double(logits[size_t(best)]) - log_sum_exp(logits), 1e-5);
        EXPECT_EQ(said.logprobs[1], float(best));
        ++seen;
        return {};
    };
    ASSERT_TRUE(e->score({tokens, check, int32_t(r.prompt.size()) - 1}).ok());
    EXPECT_EQ(seen, 60);
    const auto rated = e->score_logprobs(tokens).value();
    ASSERT_EQ(rated.size(), tokens.size() - 1);
    for (size_t i = r.prompt.size(); i < tokens.size(); ++i) {
        EXPECT_EQ(rated[i - 1].target, raw(tokens[i]));
        EXPECT_EQ(rated[i - 1].logprob, answers[id].said[i - r.prompt.size()].logprobs[0]);
    }
}

}  // namespace
}  // namespace sparkinfer
