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
      splitter_(rules.format, *rules.tools, rules.in_reasoning),
      stops_(rules.stop),
      in_reasoning_(rules.in_reasoning) {}

AnswerEvent Choice::event(AnswerEvent::Kind kind) const {
    AnswerEvent e{kind};
    e.choice = number_;
    return e;
}

void Choice::push(const Event& event, std::vector<AnswerEvent>& out) {
    if (stopped()) return;
    const TokenId id = *event.token;
    ++tokens_;
    reasoning_tokens_ += in_reasoning_;
    turn_.tokens.push_back(id);
    turn_.text += rules_->tokenizer->piece(id);
    if (rules_->logprobs && event.logprobs)
        logprobs_.push_back(token_logprob(id, *event.logprobs, *rules_->tokenizer));
    std::string text = decoder_.push(id);
    if (rules_->raw) return add_content(std::move(text), out);
    std::vector<AnswerPart> parts;
    splitter_.push(text, parts);
    take(parts, out);
}

void Choice::finish(std::vector<AnswerEvent>& out) {
    if (stopped()) return;
    std::string text = decoder_.finish();
    if (rules_->raw) {
        add_content(std::move(text), out);
    } else {
        std::vector<AnswerPart> parts;
        splitter_.push(text, parts);
        splitter_.finish(parts);
        take(parts, out);
    }
    flush_held(out);
    if (logprobs_.empty()) return;
    AnswerEvent e = event(AnswerEvent::Kind::content);
    e.logprobs = std::move(logprobs_);
    out.push_back(std::move(e));
}

void Choice::flush_held(std::vector<AnswerEvent>& out) {
    std::string held = stops_.finish();
    if (held.empty()) return;
    turn_.content += held;
    AnswerEvent e = event(AnswerEvent::Kind::content);
    e.text = std::move(held);
    e.logprobs = std::exchange(logprobs_, {});
    out.push_back(std::move(e));
}

void Choice::add_content(std::string text, std::vector<AnswerEvent>& out) {
    text = stops_.push(text);
    if (text.empty()) return;
    turn_.content += text;
    AnswerEvent e = event(AnswerEvent::Kind::content);
    e.text = std::move(text);
    e.logprobs = std::exchange(logprobs_, {});
    out.push_back(std::move(e));
}

void Choice::take(std::vector<AnswerPart>& parts, std::vector<AnswerEvent>& out) {
    for (AnswerPart& part : parts) {
        if (stopped()) return;
        if (part.kind == AnswerPart::Kind::content) {
            in_reasoning_ = false;
            add_content(std::move(part.text), out);
            continue;
        }
        flush_held(out);    // a stop string does not go on behind a call
        logprobs_.clear();  // those of visible content alone are told
        AnswerEvent e = event(AnswerEvent::Kind::reasoning);
        e.text = part.text;
        e.call = int32_t(turn_.calls.size()) - 1;
        switch (part.kind) {
            case AnswerPart::Kind::content: break;
            case AnswerPart::Kind::reasoning:
                in_reasoning_ = true;
                turn_.reasoning += part.text;
                break;
            case AnswerPart::Kind::call_started:
                in_reasoning_ = false;
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
