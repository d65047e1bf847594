// Forks, undo, saves and verified rows: each must leave exactly what one sequence alone would have.
#include "engine/test_model.h"

namespace sparkinfer {
namespace {

class KeptPoints : public testing::TestWithParam<std::tuple<TinyKind, int>> {
  protected:
    TinyKind kind() const { return std::get<0>(GetParam()); }
    TestEngine open(int32_t slots = 6) {
        return make_engine(
            {.kind = kind(),
             .options =
                 {.context = 512, .slots = slots, .chunk = 64, .kv_tokens = 512 * 12, .state_slots = 64},
             .tuning = {.pipeline = std::get<1>(GetParam())},
             .lazy = true});
    }
    // Steps until the request has said so many tokens.
    static void run_until(LiveEngine& engine, Answers& answers, RequestId id, size_t tokens) {
        while (answers[id].said.size() < tokens) step_once(engine, answers);
    }
};
INSTANTIATE_TEST_SUITE_P(Ways, KeptPoints,
                         testing::Combine(testing::Values(TinyKind::attention, TinyKind::hybrid),
                                          testing::Values(1, 2, 3)));

// Risk: a fork and its origin write into each other's last page or state.
TEST_P(KeptPoints, ForksEqualTheirOrigin) {
    TestEngine e = open();
    for (int prompt : {5, 63, 64, 65, 120}) {
        const Request r = random_request(prompt, 30, uint32_t(prompt));
        const EngineAnswer want = alone(kind(), r);
        Answers answers;
        const RequestId id = e->submit(r).value();
        std::map<RequestId, size_t> forks;  // where they begin
        for (size_t at : {1, 2, 9}) {
            run_until(*e.engine, answers, id, at);
            auto twin = e->fork(id);
            ASSERT_TRUE(twin.ok()) << twin.error().message;
            const Sequence* s = e->scheduler().find(*twin);
            forks[*twin] = size_t(s->generated());
            e->check_integrity();
        }
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[id], want);
        for (const auto& [twin, at] : forks) {
            EngineAnswer rest = want;
            rest.said.erase(rest.said.begin(), rest.said.begin() + int(at));
            EXPECT_EQ(answers[twin], rest) << "fork after " << at;
        }
        EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
    }
}

// Risk: sequences that part at a shared, partial page or state see each other's tokens.
TEST_P(KeptPoints, SequencesPartFromOnePoint) {
    TestEngine e = open();
    for (int prompt : {3, 64, 100}) {
        const Request r = random_request(prompt, 40, uint32_t(prompt) + 1);
        Answers answers;
        const RequestId id = e->submit(r).value();
        run_until(*e.engine, answers, id, 6);
        const SnapshotId point = e->keep(id).value();
        std::map<RequestId, Request> others;
        for (uint32_t i = 0; i < 4; ++i) {
            Request o = random_request(1, 20, i + 300);
            o.prompt = e->snapshot(point)->tokens;
            for (TokenId t : random_tokens(int(1 + i * 30), i)) o.prompt.push_back(t);
            others.emplace(e->submit_from(point, o).value(), o);
        }
        e->drop(point);
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[id], alone(kind(), r));
        for (const auto& [other, request] : others) EXPECT_EQ(answers[other], alone(kind(), request));
        EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
        EXPECT_EQ(e->runner().states().pool().free(), e->runner().states().pool().count());
    }
}

// Risk: after an undo the old future shines through: history, pages, state, cursor or random numbers.
TEST_P(KeptPoints, UndoRepeatsTheSameFuture) {
    TestEngine e = open();
    for (int prompt : {10, 60, 64}) {
        const Request r = random_request(prompt, 40, uint32_t(prompt) + 3);
        const EngineAnswer want = alone(kind(), r);
        Answers answers;
        const RequestId id = e->submit(r).value();
        const RequestId neighbour = e->submit(random_request(80, 60, 77)).value();
        run_until(*e.engine, answers, id, 4);
        const SnapshotId point = e->keep(id).value();
        const int32_t stay = int32_t(e->snapshot(point)->tokens.size()) + 1;
        run_until(*e.engine, answers, id, 20);
        ASSERT_TRUE(e->drain().ok());
        const size_t said = size_t(e->scheduler().find(id)->generated());
        ASSERT_TRUE(e->undo(id, point, stay).ok());
        e->check_integrity();
        run_all(*e.engine, answers);
        std::vector<Said> expected(want.said.begin(), want.said.begin() + int(said));
        expected.insert(expected.end(), want.said.begin() + (stay - prompt), want.said.end());
        EXPECT_EQ(answers[id].said, expected);
        EXPECT_EQ(answers[neighbour], alone(kind(), random_request(80, 60, 77)));
        e->drop(point);
        EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
    }
    EXPECT_FALSE(e->undo(RequestId(9999), SnapshotId(1), 4).ok());
}

// Risk: a state saved in the middle of a chunk is that of another row.
TEST_P(KeptPoints, SavesAtMultiplesOf64) {
    for (int32_t chunk : {64, 256}) {
        TestEngine e = make_engine(
            {.kind = kind(),
             .options = {.context = 512, .slots = 3, .chunk = chunk, .kv_tokens = 512 * 4, .state_slots = 40},
             .tuning = {.pipeline = std::get<1>(GetParam())}});
        Request r = random_request(330, 3, 8);
        Answers answers;
        const RequestId id = e->submit_saving(r, 64).value();
        run_until(*e.engine, answers, id, 1);
        const std::vector<SnapshotId> saves = e->saves(id);
        ASSERT_EQ(saves.size(), 5u);
        run_all(*e.engine, answers);
        EXPECT_EQ(answers[id], alone(kind(), r));
        std::map<RequestId, Request> others;
        for (size_t i = 0; i < saves.size(); ++i) {
            ASSERT_EQ(e->snapshot(saves[i])->tokens.size(), (i + 1) * 64);
            Request o = random_request(1, 10, uint32_t(i) + 40);
            o.prompt = e->snapshot(saves[i])->tokens;
            for (TokenId t : random_tokens(20 + int(i) * 15, uint32_t(i))) o.prompt.push_back(t);
            others.emplace(e->submit_from(saves[i], o).value(), o);
        }
        run_all(*e.engine, answers);
        for (const auto& [other, request] : others) EXPECT_EQ(answers[other], alone(kind(), request));
        for (SnapshotId save : saves) e->drop(save);
        EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
        EXPECT_EQ(e->runner().states().pool().free(), e->runner().states().pool().count());
    }
}

std::vector<float> logits_after(TestEngine& e, const std::vector<TokenId>& tokens, int32_t from) {
    std::vector<float> all;
    EXPECT_TRUE(e->score({tokens,
                          [&](int32_t, std::span<const float> l) -> Result<void> {
                              all.insert(all.end(), l.begin(), l.end());
                              return {};
                          },
                          from})
                    .ok());
    return all;
}

// Risk: rows that were verified and turned down, or accepted and not yet folded, are wrong in state or pages.
TEST_P(KeptPoints, VerifiedRowsAcceptNoneToAll) {
    TestEngine e = open();
    TestEngine rater = make_engine({.kind = kind()});
    for (int accepted = 0; accepted <= kMaxVerifyRows; ++accepted) {
        Request r = random_request(58, 50, uint32_t(accepted) + 1);
        r.logprobs = 3;
        const EngineAnswer want = alone(kind(), r);
        Answers answers;
        const RequestId id = e->submit(r).value();
        run_until(*e.engine, answers, id, 3);
        ASSERT_TRUE(e->drain().ok());
        const Sequence* s = e->scheduler().find(id);
        std::vector<Said> expected(want.said.begin(), want.said.begin() + s->generated());
        // Twice in a row, so that a log is folded into a state that is logged to again.
        for (int round = 0; round < 2; ++round) {
            const int32_t at = s->generated();
            std::vector<TokenId> draft;
            for (int i = 0; i + 1 < kMaxVerifyRows; ++i) {
                const TokenId right = want.said[size_t(at) + size_t(i)].token;
                draft.push_back(i + 1 < accepted ? right : TokenId((raw(right) + 1) % TinyModel::kVocab));
            }
            std::vector<TokenId> fed = s->tokens;
            const auto from = int32_t(fed.size()) - 1;
            fed.insert(fed.end(), draft.begin(), draft.end());
            auto logits = e->verify(id, draft);
            ASSERT_TRUE(logits.ok()) << logits.error().message;
            EXPECT_EQ(*logits, logits_after(rater, fed, from));
            const TokenId next = want.said[size_t(at) + size_t(std::max(0, accepted - 1))].token;
            ASSERT_TRUE(e->accept(id, accepted, next).ok());
            e->check_integrity();
            EXPECT_EQ(s->generated(), at + accepted);
        }
        const int32_t now = s->generated();
        run_all(*e.engine, answers);
        expected.insert(expected.end(), want.said.begin() + now, want.said.end());
        EXPECT_EQ(answers[id].said, expected) << accepted << " accepted";
    }
}

// Risk: a fork of a sequence whose state still has a log loses the log.
TEST_P(KeptPoints, ForkWithLoggedRows) {
    TestEngine e = open();
    const Request r = random_request(50, 40, 5);
    const EngineAnswer want = alone(kind(), r);
    Answers answers;
    const RequestId id = e->submit(r).value();
    run_until(*e.engine, answers, id, 2);
    ASSERT_TRUE(e->drain().ok());
    const int32_t at = e->scheduler().find(id)->generated();
    const std::vector<TokenId> draft = {want.said[size_t(at)].token, want.said[size_t(at) + 1].token};
    ASSERT_TRUE(e->verify(id, draft).ok());
    ASSERT_TRUE(e->accept(id, 3, want.said[size_t(at) + 2].token).ok());
    const RequestId twin = e->fork(id).value();
    run_all(*e.engine, answers);
    const std::vector<Said> rest(want.said.begin() + at + 3, want.said.end());
    EXPECT_EQ(answers[twin].said, rest);
    EXPECT_TRUE(std::equal(rest.rbegin(), rest.rend(), answers[id].said.rbegin()));
}

// Risk: rows accepted up to the limit leave a sequence that wants nothing and never ends.
TEST_P(KeptPoints, AcceptingTheLastTokenEnds) {
    TestEngine e = open();
    Answers answers;
    const RequestId id = e->submit(random_request(50, 6, 5)).value();
    run_until(*e.engine, answers, id, 1);
    ASSERT_TRUE(e->drain().ok());
    const int32_t left = 6 - e->scheduler().find(id)->generated();
    const std::vector<TokenId> draft(size_t(left) - 1, TokenId(1));
    ASSERT_TRUE(e->verify(id, draft).ok());
    ASSERT_TRUE(e->accept(id, left, TokenId(2)).ok());
    run_all(*e.engine, answers);
    EXPECT_EQ(answers[id].finish, FinishReason::length);
    EXPECT_EQ(e->runner().kv().free(), e->runner().kv().pages());
}

// Risk: a cancel between the two halves of a verification is a crash.
TEST_P(KeptPoints, CancelBeforeAccept) {
    TestEngine e = open();
    Answers answers;
    const RequestId id = e->submit(random_request(50, 20, 5)).value();
    run_until(*e.engine, answers, id, 2);
    ASSERT_TRUE(e->drain().ok());
    ASSERT_TRUE(e->verify(id, random_tokens(3, 1)).ok());
    e->cancel(id);
    EXPECT_FALSE(e->accept(id, 2, TokenId(2)).ok());
    run_all(*e.engine, answers);
    EXPECT_EQ(answers[id].finish, FinishReason::cancelled);
}

// Risk: memory that kept points hold makes the engine wait for ever, or take it from them.
TEST_P(KeptPoints, StarvedRequestEndsWithAnError) {
    TestEngine small =
        make_engine({.kind = kind(),
                     .options = {.context = 512, .slots = 2, .chunk = 64, .kv_tokens = 512, .state_slots = 8},
                     .tuning = {.pipeline = std::get<1>(GetParam())}});
    Answers answers;
    const Request r = random_request(400, 5, 2);
    const RequestId id = small->submit(r).value();
    run_until(*small.engine, answers, id, 1);
    const SnapshotId point = small->keep(id).value();
    run_all(*small.engine, answers);
    const RequestId starved = small->submit(random_request(200, 5, 3)).value();
    run_all(*small.engine, answers);
    EXPECT_EQ(answers[starved].finish, FinishReason::error);
    EXPECT_NE(answers[starved].error.find("no memory is left for token 0: 1 of 8 KV pages"),
              std::string::npos)
        << answers[starved].error;
    small->drop(point);
    const RequestId fed = small->submit(random_request(200, 5, 3)).value();
    run_all(*small.engine, answers);
    EXPECT_EQ(answers[fed], alone(kind(), random_request(200, 5, 3)));
}

}  // namespace
}  // namespace sparkinfer
