// answer_matcher.h — what may come next in an answer: its grammar, a limit on its reasoning, or both.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/tokenizer.h"

namespace sparkinfer {

// After `tokens` tokens of reasoning its end is forced, so that room is left for the answer.
struct ReasoningBudget {
    int32_t tokens = 0;
    bool started = true;     // the prompt ends inside the reasoning; else it begins with `open`, if at all
    std::string open = {};   // "<think>"
    std::string close = {};  // "</think>"
    std::string after = "\n\n";  // what the template puts between it and the answer
};

// Move-only; one thread at a time. advance(), mask(), rollback() and accepting() as of GrammarMatcher.
class AnswerMatcher {
  public:
    // The tokenizer must outlive it. Errors: bad_input for a budget below 0 or without a tag.
    static Result<AnswerMatcher> make(const Tokenizer& tokenizer, std::optional<GrammarMatcher> grammar,
                                      std::optional<ReasoningBudget> budget);

    bool advance(TokenId token);
    void mask(std::span<uint32_t> bits);
    void rollback(int32_t tokens);
    bool accepting();  // true without a grammar
    std::string error() const { return grammar_ ? grammar_->error() : std::string(); }
    Result<AnswerMatcher> clone() const;

  private:
    enum class Phase : uint8_t { before, inside, forced, after };
    // What the budget knows after a token.
    struct State {
        Phase phase = Phase::after;
        uint8_t owed = 0;     // bytes that the last character still lacks
        int16_t matched = 0;  // bytes of the tag that is looked for
        int32_t count = 0;    // tokens inside; forced: tokens that were
    };
    struct Forced {
        ReasoningBudget budget;
        std::vector<TokenId> tokens;  // close and after
    };

    AnswerMatcher(const Tokenizer& tokenizer, std::optional<GrammarMatcher> grammar,
                  std::shared_ptr<const Forced> forced);
    State after(State state, TokenId token) const;
    bool must_force(const State& state) const;

    const Tokenizer* tokenizer_;
    std::optional<GrammarMatcher> grammar_;
    std::shared_ptr<const Forced> forced_;  // null: no budget
    std::vector<State> states_;             // the first, and that after each token
};

}  // namespace sparkinfer
