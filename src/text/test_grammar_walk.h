// test_grammar_walk.h — random answers under a grammar's masks, for the tests of this folder.
#pragma once
#include <time.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"
#include "text/tokenizer.h"

namespace sparkinfer {

inline bool allowed(const std::vector<uint32_t>& bits, int32_t id) {
    return (bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

inline std::vector<uint32_t> mask_of(GrammarMatcher& matcher, const Tokenizer& tokenizer,
                                     size_t more_rows = 0) {
    std::vector<uint32_t> bits((static_cast<size_t>(tokenizer.size()) + more_rows + 31) / 32, ~0U);
    matcher.mask(bits);
    return bits;
}

// Of this thread, so that a busy machine does not show.
inline double cpu_us() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Walk {
    std::string text;
    std::vector<TokenId> tokens;
    bool ended = false;           // by an end token
    std::string broken;           // what the matcher did wrong; empty: nothing
    std::vector<double> mask_us;  // each mask's time of the processor
};

// Samples tokens evenly from the masks, with a liking for ends, for punctuation, and for `hints`, whose texts
// are followed byte by byte as far as they are allowed; else texts of free form never come to an end.
class Walker {
  public:
    Walker(const Tokenizer& tokenizer, uint32_t seed, std::vector<std::string> hints = {})
        : tokenizer_(tokenizer), random_(seed), hints_(std::move(hints)) {
        for (int32_t id = 0; id < tokenizer.size(); ++id) {
            const std::string_view piece = tokenizer.piece(TokenId(id));
            if (piece.size() == 1 && tokenizer.kind(TokenId(id)) == TokenKind::normal)
                byte_[static_cast<unsigned char>(piece[0])] = id;
        }
    }

    Walk run(GrammarMatcher& matcher, int steps) {
        Walk walk;
        std::string hint;
        for (int step = 0; step < steps && !walk.ended && walk.broken.empty(); ++step) {
            const double start_us = cpu_us();
            const std::vector<uint32_t> bits = mask_of(matcher, tokenizer_);
            walk.mask_us.push_back(cpu_us() - start_us);
            const std::optional<TokenId> token = pick(bits, hint);
            if (!token) {
                walk.broken = "an empty mask; " + matcher.error();
                break;
            }
            if (!matcher.advance(*token)) walk.broken = "a token of the mask is refused";
            if (!matcher.error().empty()) walk.broken = matcher.error();
            walk.tokens.push_back(*token);
            walk.ended = is_end(*token);
            if (!walk.ended) walk.text += tokenizer_.piece(*token);
            if (walk.ended && !matcher.accepting()) walk.broken = "an end where the text is not whole";
        }
        return walk;
    }

  private:
    bool is_end(TokenId token) const {
        const auto& ends = tokenizer_.end_tokens();
        return std::find(ends.begin(), ends.end(), token) != ends.end();
    }
    size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

    std::optional<TokenId> pick(const std::vector<uint32_t>& bits, std::string& hint) {
        for (TokenId end : tokenizer_.end_tokens())
            if (allowed(bits, raw(end)) && below(4) == 0) return end;
        if (hint.empty() && !hints_.empty() && below(12) == 0) hint = hints_[below(hints_.size())];
        if (!hint.empty()) {
            const int32_t id = byte_[static_cast<unsigned char>(hint[0])];
            hint.erase(0, 1);
            if (id >= 0 && allowed(bits, id)) return TokenId(id);
            hint.clear();
        }
        if (below(3) == 0) {
            const std::string_view marks = "\"}],:{[0>";
            const int32_t id = byte_[static_cast<unsigned char>(marks[below(marks.size())])];
            if (id >= 0 && allowed(bits, id)) return TokenId(id);
        }
        std::vector<int32_t> ids;
        for (int32_t id = 0; id < tokenizer_.size(); ++id)
            if (allowed(bits, id)) ids.push_back(id);
        if (ids.empty()) return std::nullopt;
        return TokenId(ids[below(ids.size())]);
    }

    const Tokenizer& tokenizer_;
    std::mt19937 random_;
    std::vector<std::string> hints_;
    int32_t byte_[256] = {};
};

}  // namespace sparkinfer
