#include "server/choice.h"

#include <random>

namespace sparkinfer {

std::string random_id(std::string_view prefix) {
    thread_local std::random_device device;
    std::string id(prefix);
    for (int i = 0; i < 3; ++i) id += fmt::format("{:08x}", device());
    return id;
}

TextLogprob token_logprob(TokenId id, const TokenLogprobs& from, const Tokenizer& tokenizer) {
    TextLogprob to;
    to.id = id;
    to.bytes = tokenizer.piece(id);
    to.logprob = from.logprob;
    to.top = from.top;
    for (const auto& [other, logprob] : from.top) to.top_bytes.emplace_back(tokenizer.piece(other));
    return to;
}

Choice::Choice(const ReadingRules& rules, int32_t number)
    : rules_(&rules),
      number_(number),
      decoder_(*rules.tokenizer),
      reader_(AnswerSplitter(rules.raw ? AnswerFormat() : rules.format, *rules.tools, rules.in_reasoning),
              rules.stop) {}

AnswerEvent Choice::event(AnswerEvent::Kind kind) const {
    AnswerEvent e{kind};
    e.choice = number_;
    return e;
}

void Choice::push(const Event& event, std::vector<AnswerEvent>& out) {
    if (stopped()) return;
    const TokenId id = *event.token;
    ++tokens_;
    reasoning_tokens_ += reader_.in_reasoning();
    turn_.tokens.push_back(id);
    turn_.text += rules_->tokenizer->piece(id);
    if (rules_->logprobs && event.logprobs)
        logprobs_.push_back(token_logprob(id, *event.logprobs, *rules_->tokenizer));
    std::vector<AnswerPart> parts;
    reader_.push(decoder_.push(id), parts);
    take(parts, out);
}

void Choice::finish(std::vector<AnswerEvent>& out) {
    if (stopped()) return;
    std::vector<AnswerPart> parts;
    reader_.push(decoder_.finish(), parts);
    reader_.finish(parts);
    take(parts, out);
    if (!logprobs_.empty() && !reader_.in_reasoning()) add_content("", out);
}

void Choice::add_content(std::string text, std::vector<AnswerEvent>& out) {
    turn_.content += text;
    AnswerEvent e = event(AnswerEvent::Kind::content);
    e.text = std::move(text);
    e.logprobs = std::exchange(logprobs_, {});
    out.push_back(std::move(e));
}

void Choice::take(std::vector<AnswerPart>& parts, std::vector<AnswerEvent>& out) {
    for (AnswerPart& part : parts) {  // of an answer that just met a stop string: what comes before it
        if (part.kind == AnswerPart::Kind::content) {
            add_content(std::move(part.text), out);
            continue;
        }
        logprobs_.clear();  // those of visible content alone are told
        AnswerEvent e = event(AnswerEvent::Kind::reasoning);
        e.text = part.text;
        e.call = int32_t(turn_.calls.size()) - 1;
        switch (part.kind) {
            case AnswerPart::Kind::content: break;
            case AnswerPart::Kind::reasoning: turn_.reasoning += part.text; break;
            case AnswerPart::Kind::call_started:
                turn_.calls.push_back({random_id("call_"), part.text, ""});
                e.kind = AnswerEvent::Kind::call_started;
                e.call += 1;
                e.id = turn_.calls.back().id;
                break;
            case AnswerPart::Kind::call_arguments:
                turn_.calls.back().arguments += part.text;
                e.kind = AnswerEvent::Kind::call_arguments;
                break;
            case AnswerPart::Kind::call_finished: e.kind = AnswerEvent::Kind::call_finished; break;
        }
        out.push_back(std::move(e));
    }
}

}  // namespace sparkinfer
