// openai_completions.h — /v1/completions: texts, token ids, and lists of either to go on with; with echo and
// logprobs it rates given texts, as evaluation harnesses do. Pure, as openai_chat.h.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "server/answer_pump.h"
#include "server/json_fields.h"
#include "server/openai_params.h"

namespace sparkinfer {

struct CompletionCall {
    std::vector<TextRequest> requests;  // one a prompt, in order; equal but for the prompt
    StreamOptions stream = {};
    bool echo = false;
};

ApiResult<CompletionCall> parse_completion(const Json& body);

struct CompletionHead {
    std::string id;
    int64_t created = 0;  // seconds since 1970
    std::string model;
    std::string fingerprint;
    StreamOptions stream = {};
    bool logprobs = false;  // asked for
};

// The shape of OpenAI's old logprobs: one column a field, one row a token.
class LogprobColumns {
  public:
    void add(const TextLogprob& token);
    // {tokens, token_logprobs, top_logprobs, text_offset} of what was added since the last time.
    Json take();

  private:
    JsonArray tokens_, logprobs_, top_, offsets_;
    int64_t characters_ = 0;  // of all tokens so far
};

class CompletionStream : public AnswerWriter {
  public:
    explicit CompletionStream(CompletionHead head);
    void write(const AnswerEvent& event, std::string* out) override;
    void end(const Usage& usage, std::string* out) override;
    void fail(const ApiError& error, std::string* out) override;

  private:
    const CompletionHead head_;
    const std::string prefix_;  // of every chunk's JSON, up to the choices
    std::map<int32_t, LogprobColumns> columns_;
    Usage usage_;  // what is known by now
};

class CompletionCollector : public AnswerWriter {
  public:
    explicit CompletionCollector(CompletionHead head) : head_(std::move(head)) {}
    void write(const AnswerEvent& event, std::string* out) override;
    void end(const Usage& usage, std::string* out) override;
    void fail(const ApiError&, std::string*) override {}

  private:
    struct Choice {
        std::string text, stop;
        LogprobColumns columns;
        AnswerFinish finish = AnswerFinish::stop;
    };
    const CompletionHead head_;
    std::map<int32_t, Choice> choices_;
};

}  // namespace sparkinfer
