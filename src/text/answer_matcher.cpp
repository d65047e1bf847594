#include "text/answer_matcher.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace sparkinfer {
namespace {

constexpr size_t kTagMax = 256;    // bytes
constexpr int kCharacterWait = 3;  // tokens over the budget that a character may take to be whole

// How much of `tag` the text ends in, after `matched` bytes of it and one more byte.
int16_t match_on(std::string_view tag, int16_t matched, char byte) {
    std::string seen(tag.substr(0, static_cast<size_t>(matched)));
    seen += byte;
    while (!seen.empty() && !tag.starts_with(seen)) seen.erase(0, 1);
    return static_cast<int16_t>(seen.size());
}

// Bytes that a UTF-8 character lacks after `byte`.
uint8_t owed_after(uint8_t owed, unsigned char byte) {
    if (byte >= 0xF0) return 3;
    if (byte >= 0xE0) return 2;
    if (byte >= 0xC0) return 1;
    return byte >= 0x80 && owed > 0 ? owed - 1 : 0;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

Result<AnswerMatcher> AnswerMatcher::make(const Tokenizer& tokenizer, std::optional<GrammarMatcher> grammar,
                                          std::optional<ReasoningBudget> budget) {
    if (!budget) return AnswerMatcher(tokenizer, std::move(grammar), nullptr);
    if (budget->tokens < 0)
        return bad_input("the reasoning's budget: found {} tokens, expected 0 or more", budget->tokens);
    if (budget->close.empty() || budget->close.size() > kTagMax || budget->open.size() > kTagMax ||
        (!budget->started && budget->open.empty()))
        return bad_input("the reasoning's budget: the model has no tags around its reasoning");
    auto forced = std::make_shared<Forced>();
    TRY(forced->tokens, tokenizer.encode(budget->close + budget->after, Tokenizer::Specials::parse, false));
    forced->budget = std::move(*budget);
    return AnswerMatcher(tokenizer, std::move(grammar), std::move(forced));
}

AnswerMatcher::AnswerMatcher(const Tokenizer& tokenizer, std::optional<GrammarMatcher> grammar,
                             std::shared_ptr<const Forced> forced)
    : tokenizer_(&tokenizer), grammar_(std::move(grammar)), forced_(std::move(forced)) {
    if (forced_) states_.push_back({.phase = forced_->budget.started ? Phase::inside : Phase::before});
}

bool AnswerMatcher::must_force(const State& state) const {
    if (state.phase == Phase::forced) return true;
    const int32_t over = state.count - forced_->budget.tokens;
    return state.phase == Phase::inside && over >= 0 && (state.owed == 0 || over >= kCharacterWait);
}

AnswerMatcher::State AnswerMatcher::after(State state, TokenId token) const {
    const std::vector<TokenId>& tokens = forced_->tokens;
    if (must_force(state)) {
        const size_t next = state.phase == Phase::forced ? static_cast<size_t>(state.count) : 0;
        if (token != tokens[next]) return {.phase = Phase::after};  // the sampler did as it liked
        if (next + 1 == tokens.size()) return {.phase = Phase::after};
        return {.phase = Phase::forced, .count = static_cast<int32_t>(next + 1)};
    }
    if (state.phase == Phase::after) return state;
    if (state.phase == Phase::inside) state.count++;
    for (const char byte : tokenizer_->piece(token)) {
        if (state.phase == Phase::after) break;
        if (state.phase == Phase::before) {
            const std::string& open = forced_->budget.open;
            if (state.matched == 0 && is_space(byte)) continue;
            state.matched = open[static_cast<size_t>(state.matched)] == byte ? state.matched + 1 : -1;
            if (state.matched < 0) return {.phase = Phase::after};
            if (state.matched == static_cast<int16_t>(open.size())) state = {.phase = Phase::inside};
            continue;
        }
        state.owed = owed_after(state.owed, static_cast<unsigned char>(byte));
        state.matched = match_on(forced_->budget.close, state.matched, byte);
        if (state.matched == static_cast<int16_t>(forced_->budget.close.size()))
            state = {.phase = Phase::after};
    }
    return state;
}

bool AnswerMatcher::advance(TokenId token) {
    if (forced_) states_.push_back(after(states_.back(), token));
    return !grammar_ || grammar_->advance(token);
}

void AnswerMatcher::mask(std::span<uint32_t> bits) {
    if (grammar_) {
        grammar_->mask(bits);
    } else {
        const auto size = static_cast<size_t>(tokenizer_->size());
        for (size_t i = 0; i < bits.size(); ++i) {
            const size_t rows = size > i * 32 ? size - i * 32 : 0;
            bits[i] = rows >= 32 ? ~0U : (1U << rows) - 1;
        }
    }
    if (!forced_ || !must_force(states_.back())) return;
    const State& state = states_.back();
    const auto id = static_cast<size_t>(
        raw(forced_->tokens[state.phase == Phase::forced ? static_cast<size_t>(state.count) : 0]));
    // A grammar that does not take the tag here has its reasons: it ended, or its answer is no reasoning.
    if (id / 32 >= bits.size() || (bits[id / 32] >> (id % 32) & 1) == 0) return;
    std::fill(bits.begin(), bits.end(), 0);
    bits[id / 32] = 1U << (id % 32);
}

void AnswerMatcher::rollback(int32_t tokens) {
    CHECK(tokens >= 0);
    if (forced_)
        states_.resize(std::max<size_t>(
            1, states_.size() - std::min<size_t>(states_.size(), static_cast<size_t>(tokens))));
    if (grammar_) grammar_->rollback(tokens);
}

bool AnswerMatcher::accepting() { return !grammar_ || grammar_->accepting(); }

Result<AnswerMatcher> AnswerMatcher::clone() const {
    std::optional<GrammarMatcher> grammar;
    if (grammar_) {
        TRY(grammar, grammar_->clone());
    }
    AnswerMatcher copy(*tokenizer_, std::move(grammar), forced_);
    copy.states_ = states_;
    return copy;
}

}  // namespace sparkinfer
