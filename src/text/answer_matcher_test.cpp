#include "text/answer_matcher.h"

#include <gtest/gtest.h>

#include "text/test_grammar_walk.h"
#include "text/text_test_vocabulary.h"

namespace sparkinfer {
namespace {

class AnswerMatcherTest : public testing::Test {
  protected:
    void SetUp() override {
        auto tokenizer = Tokenizer::from_metadata(vocabulary_.metadata());
        ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
        tokenizer_.emplace(std::move(tokenizer).value());
    }
    TokenId id(const std::string& token) const { return TokenId(vocabulary_.id(token)); }
    AnswerMatcher make(ReasoningBudget budget, std::optional<GrammarMatcher> grammar = {}) {
        auto matcher = AnswerMatcher::make(*tokenizer_, std::move(grammar), std::move(budget));
        if (!matcher.ok()) ADD_FAILURE() << matcher.error().message;
        return std::move(matcher).value();
    }
    std::vector<TokenId> choices(AnswerMatcher& matcher) const {
        std::vector<uint32_t> bits((static_cast<size_t>(tokenizer_->size()) + 100) / 32, ~0U);
        matcher.mask(bits);
        std::vector<TokenId> out;
        for (int32_t i = 0; i < static_cast<int32_t>(bits.size() * 32); ++i)
            if (allowed(bits, i)) out.push_back(TokenId(i));
        return out;
    }

    TestVocabulary vocabulary_;
    std::optional<Tokenizer> tokenizer_;
    const ReasoningBudget budget_{.tokens = 3, .started = true, .open = "<think>", .close = "</think>"};
};

// Risk: reasoning goes on over its budget, or its end is forced early, twice, or without what follows it.
TEST_F(AnswerMatcherTest, TheEndIsForcedAfterTheBudgetAndOnce) {
    AnswerMatcher matcher = make(budget_);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(choices(matcher).size(), static_cast<size_t>(tokenizer_->size()));
        EXPECT_TRUE(matcher.advance(id("a")));
    }
    const TokenId line = id(byte_char('\n'));
    for (TokenId forced : {id("</think>"), line, line}) {
        EXPECT_EQ(choices(matcher), std::vector<TokenId>{forced});
        EXPECT_TRUE(matcher.advance(forced));
    }
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(choices(matcher).size(), static_cast<size_t>(tokenizer_->size()));
        matcher.advance(id("a"));
    }
}

// Risk: a reasoning that ended by itself, as a token or spelled out, is ended again.
TEST_F(AnswerMatcherTest, AnEndedReasoningIsLeftAlone) {
    AnswerMatcher token = make(budget_), spelled = make({.tokens = 30, .close = "</think>"});
    token.advance(id("</think>"));
    for (char c : std::string("<</think>")) spelled.advance(id(byte_char(static_cast<unsigned char>(c))));
    for (int i = 0; i < 40; ++i)
        for (AnswerMatcher* matcher : {&token, &spelled}) {
            EXPECT_EQ(choices(*matcher).size(), static_cast<size_t>(tokenizer_->size()));
            matcher->advance(id("a"));
        }
}

// Risk: an answer that has no reasoning is cut, or one that opens it itself is not.
TEST_F(AnswerMatcherTest, ReasoningThatTheModelOpensCountsFromThere) {
    ReasoningBudget budget = budget_;
    budget.started = false;
    AnswerMatcher plain = make(budget), opened = make(budget);
    opened.advance(id(byte_char('\n')));
    opened.advance(id("<think>"));
    for (int i = 0; i < 3; ++i) {
        EXPECT_GT(choices(opened).size(), 1U);
        opened.advance(id("a"));
        plain.advance(id("a"));
    }
    EXPECT_EQ(choices(opened), std::vector<TokenId>{id("</think>")});
    EXPECT_GT(choices(plain).size(), 1U);
}

// Risk: the tag is put into the middle of a character.
TEST_F(AnswerMatcherTest, ACharacterUnderWayIsFinishedFirst) {
    AnswerMatcher matcher = make(budget_);
    matcher.advance(id("a"));
    matcher.advance(id("a"));
    matcher.advance(id(byte_char(0xF0)));
    EXPECT_GT(choices(matcher).size(), 1U);
    for (unsigned char byte : {0x9F, 0x98, 0x80}) {
        EXPECT_GT(choices(matcher).size(), 1U);
        matcher.advance(id(byte_char(byte)));
    }
    EXPECT_EQ(choices(matcher), std::vector<TokenId>{id("</think>")});
}

// Risk: a rollback across the budget, or a clone, leaves its count or its place behind.
TEST_F(AnswerMatcherTest, RollbackAndCloneEqualReplay) {
    auto compiler = GrammarCompiler::make(*tokenizer_);
    ASSERT_TRUE(compiler.ok());
    const Grammar grammar =
        Grammar::lark("start: reasoned /[ \\n]*/ \"12\"+\nreasoned[lazy]: /(?s:.*)<\\/think>/");
    const std::vector<TokenId> answer = {
        id("a"),  id("aa"), id("hello"), id("</think>"), id(byte_char('\n')), id(byte_char('\n')),
        id("12"), id("1"),  id("2")};
    std::mt19937 random(3);
    auto first = compiler->compile(grammar);
    ASSERT_TRUE(first.ok()) << first.error().message;
    AnswerMatcher matcher = make(budget_, std::move(first).value());
    size_t at = 0;
    for (int round = 0; round < 200; ++round) {
        const size_t to = std::uniform_int_distribution<size_t>(0, answer.size())(random);
        if (to < at) matcher.rollback(static_cast<int32_t>(at - to));
        for (; at < to; ++at) EXPECT_TRUE(matcher.advance(answer[at])) << at;
        at = to;
        auto fresh_grammar = compiler->compile(grammar);
        AnswerMatcher fresh = make(budget_, std::move(fresh_grammar).value());
        for (size_t i = 0; i < at; ++i) fresh.advance(answer[i]);
        EXPECT_EQ(choices(matcher), choices(fresh)) << at;
        EXPECT_EQ(matcher.accepting(), fresh.accepting());
        auto clone = matcher.clone();
        ASSERT_TRUE(clone.ok());
        EXPECT_EQ(choices(*clone), choices(fresh));
        if (at == 3) {
            EXPECT_EQ(choices(matcher), std::vector<TokenId>{id("</think>")});
        }
        if (at == answer.size()) {
            EXPECT_TRUE(matcher.accepting());
        }
    }
}

// Risk: a budget that cannot work is taken, and nothing is forced.
TEST_F(AnswerMatcherTest, BadBudgetsAreErrors) {
    EXPECT_FALSE(
        AnswerMatcher::make(*tokenizer_, {}, ReasoningBudget{.tokens = -1, .close = "</think>"}).ok());
    EXPECT_FALSE(AnswerMatcher::make(*tokenizer_, {}, ReasoningBudget{.tokens = 5}).ok());
    EXPECT_FALSE(
        AnswerMatcher::make(*tokenizer_, {}, ReasoningBudget{.started = false, .close = "</think>"}).ok());
    AnswerMatcher none = make({.tokens = 0, .close = "</think>"});
    EXPECT_EQ(choices(none), std::vector<TokenId>{id("</think>")});
}

}  // namespace
}  // namespace sparkinfer
