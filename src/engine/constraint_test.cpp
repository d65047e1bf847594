// Constraints: masks force tokens, arrive in time, and do not touch the neighbours.
#include <atomic>
#include <thread>

#include "engine/test_model.h"

namespace sparkinfer {
namespace {

// Allows, at each place, the two tokens that a rule names; checks that it is told exactly what was chosen.
struct TwoAllowed final : Constraint {
    explicit TwoAllowed(uint32_t seed) : seed(seed) {}
    TokenId allowed(size_t place, int which) const {
        return TokenId(int32_t((seed * 31 + place * 7 + size_t(which) * 13) % TinyModel::kVocab));
    }
    void advance(TokenId token) override {
        if (busy.exchange(true)) ++faults;
        if (token != allowed(told.size(), 0) && token != allowed(told.size(), 1)) ++faults;
        told.push_back(token);
        busy = false;
    }
    void mask(std::span<uint32_t> bits) override {
        if (busy.exchange(true)) ++faults;
        if (slow_us) std::this_thread::sleep_for(std::chrono::microseconds(slow_us));
        if (told.size() >= dead_after) return void(busy = false);
        for (int which : {0, 1}) {
            const auto t = uint32_t(raw(allowed(told.size(), which)));
            bits[t / 32] |= 1u << (t % 32);
        }
        busy = false;
    }
    void rollback(int32_t tokens) override { told.resize(told.size() - size_t(tokens)); }

    uint32_t seed;
    int slow_us = 0;
    size_t dead_after = SIZE_MAX;
    std::vector<TokenId> told;
    std::atomic<bool> busy = false;
    std::atomic<int> faults = 0;
};

class Masks : public testing::TestWithParam<std::tuple<TinyKind, int, bool>> {
  protected:
    TinyKind kind() const { return std::get<0>(GetParam()); }
    TestEngine open() {
        return make_engine({.kind = kind(),
                            .options = {.context = 512, .slots = 4, .chunk = 64, .state_slots = 20},
                            .tuning = {.pipeline = std::get<1>(GetParam())},
                            .lazy = std::get<2>(GetParam())});
    }
};
INSTANTIATE_TEST_SUITE_P(Ways, Masks,
                         testing::Combine(testing::Values(TinyKind::attention, TinyKind::hybrid),
                                          testing::Values(0, 1, 2, 3), testing::Bool()));

std::pair<Request, std::shared_ptr<TwoAllowed>> masked_request(int prompt, int tokens, uint32_t seed) {
    Request r = random_request(prompt, tokens, seed);
    auto rule = std::make_shared<TwoAllowed>(seed);
    r.constraint = rule;
    return {r, rule};
}

// Risk: a mask reaches the wrong row or step, a free row waits wrongly or is masked too.
TEST_P(Masks, ForceTokensAmongFreeNeighbours) {
    TestEngine e = open();
    Answers answers;
    std::map<RequestId, std::shared_ptr<TwoAllowed>> rules;
    std::map<RequestId, Request> requests;
    for (uint32_t seed = 1; seed <= 8; ++seed) {
        if (seed % 2) {
            auto [r, rule] = masked_request(int(seed * 19), 20, seed);
            rule->slow_us = seed == 3 ? 300 : 0;
            const RequestId id = e->submit(r).value();
            rules[id] = rule;
            requests[id] = r;
        } else {
            const Request r = random_request(int(seed * 23), 25, seed);
            requests[e->submit(r).value()] = r;
        }
    }
    run_all(*e.engine, answers);
    for (auto& [id, request] : requests) {
        if (rules.contains(id)) {
            TwoAllowed& rule = *rules[id];
            EXPECT_EQ(rule.faults, 0);
            ASSERT_EQ(answers[id].said.size(), 20u);
            for (size_t i = 0; i < 20; ++i) {
                const TokenId t = answers[id].said[i].token;
                EXPECT_TRUE(t == rule.allowed(i, 0) || t == rule.allowed(i, 1)) << i;
            }
            request.constraint = std::make_shared<TwoAllowed>(rule.seed);
        }
        EXPECT_EQ(answers[id], alone(kind(), request));
    }
}

// Risk: a constraint that allows nothing makes the device choose at random, or hangs its neighbours.
TEST_P(Masks, NothingAllowedEndsTheRequest) {
    TestEngine e = open();
    auto [r, rule] = masked_request(40, 20, 3);
    rule->dead_after = 4;
    const RequestId id = e->submit(r).value();
    const Request free = random_request(70, 20, 8);
    const RequestId neighbour = e->submit(free).value();
    Answers answers;
    run_all(*e.engine, answers);
    EXPECT_EQ(answers[id].finish, FinishReason::error);
    EXPECT_EQ(answers[id].error, "the constraint allows no token at index 44");
    EXPECT_EQ(answers[id].said.size(), 4u);
    EXPECT_EQ(answers[neighbour], alone(kind(), free));
}

// Risk: a cancelled request's mask, still being made, is used for the next holder of its slot.
TEST_P(Masks, CancelWhileAMaskIsMade) {
    TestEngine e = open();
    for (int steps = 0; steps < 6; ++steps) {
        auto [r, rule] = masked_request(30, 20, uint32_t(steps));
        rule->slow_us = 500;
        const RequestId id = e->submit(r).value();
        Answers answers;
        for (int i = 0; i < steps; ++i) step_once(*e.engine, answers);
        e->cancel(id);
        auto [next, next_rule] = masked_request(20, 6, uint32_t(steps) + 9);
        const RequestId next_id = e->submit(next).value();
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[id].finish, FinishReason::cancelled);
        EXPECT_EQ(answers[next_id].said.size(), 6u);
        EXPECT_EQ(next_rule->faults, 0);
        EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
    }
}

// Risk: after an undo the constraint stands where the old future left it.
TEST_P(Masks, UndoRollsTheConstraintBack) {
    TestEngine e = open();
    auto [r, rule] = masked_request(30, 20, 4);
    const RequestId id = e->submit(r).value();
    Answers answers;
    while (answers[id].said.size() < 3) step_once(*e.engine, answers);
    const SnapshotId point = e->keep(id).value();
    const auto stay = int32_t(e->snapshot(point)->tokens.size()) + 1;
    while (answers[id].said.size() < 9) step_once(*e.engine, answers);
    ASSERT_TRUE(e->undo(id, point, stay).ok());
    run_all(*e.engine, answers);
    e->drop(point);
    Request again = r;
    again.constraint = std::make_shared<TwoAllowed>(rule->seed);
    const EngineAnswer want = alone(kind(), again);
    EXPECT_EQ(rule->faults, 0);
    EXPECT_EQ(rule->told.size(), 19u);  // the last token needs no successor
    EXPECT_TRUE(std::equal(rule->told.begin(), rule->told.end(), want.tokens().begin()));
    EXPECT_EQ(answers[id].said.back(), want.said.back());
}

}  // namespace
}  // namespace sparkinfer
