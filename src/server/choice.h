// choice.h — one answer of a request as it is generated: tokens in, answer events out.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/chat.h"
#include "server/transcript.h"
#include "text/decoder.h"
#include "text/visible_stops.h"

namespace sparkinfer {

// How an answer's text is read; the same for all choices of a request. What it refers to must outlive it.
struct ReadingRules {
    const Tokenizer* tokenizer = nullptr;
    bool raw = false;  // the text as it is: no reasoning, no calls
    AnswerFormat format = {};
    bool in_reasoning = false;  // the prompt's end opened it
    const std::vector<ToolSpec>* tools = nullptr;
    std::vector<std::string> stop = {};  // strings, of the visible content
    bool logprobs = false;
};

class Choice {
  public:
    Choice(const ReadingRules& rules, int32_t number);

    // A generated token. Appends what it completes to `out`.
    void push(const Event& event, std::vector<AnswerEvent>& out);
    // The answer's end; appends what was held back, not the `finished` itself.
    void finish(std::vector<AnswerEvent>& out);

    bool stopped() const { return reader_.matched(); }  // by a stop string: whatever follows does not count
    const std::string& stop() const { return reader_.match(); }
    int32_t tokens() const { return tokens_; }
    int32_t reasoning_tokens() const { return reasoning_tokens_; }
    bool has_calls() const { return !turn_.calls.empty(); }
    bool echoed() const { return echoed_; }
    void set_echoed() { echoed_ = true; }
    // What was said, for the next request of the same conversation. Once, at the end.
    SampledTurn take_turn() { return std::move(turn_); }

  private:
    void take(std::vector<AnswerPart>& parts, std::vector<AnswerEvent>& out);
    void add_content(std::string text, std::vector<AnswerEvent>& out);
    AnswerEvent event(AnswerEvent::Kind kind) const;

    const ReadingRules* rules_;
    int32_t number_;
    Decoder decoder_;
    VisibleStops reader_;
    std::vector<TextLogprob> logprobs_;  // of tokens whose text has not come out yet
    SampledTurn turn_;
    int32_t tokens_ = 0, reasoning_tokens_ = 0;
    bool echoed_ = false;
};

// An engine's log-probabilities with the bytes of the tokens.
TextLogprob token_logprob(TokenId id, const TokenLogprobs& from, const Tokenizer& tokenizer);

// Ids that nobody can guess: "call_" and 24 hexadecimal digits.
std::string random_id(std::string_view prefix);

}  // namespace sparkinfer
