// service.h — one model with everything around it that turns a canonical request into a stream of answer
// events: template, tokenizer, grammar, replay of sampled tokens, the engine. What the protocols stand on.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/chat.h"

namespace sparkinfer {

class Tokenizer;

struct ModelCard {
    std::string id;                    // the name in `model`
    std::vector<std::string> aliases;  // other names that mean it
    int64_t created = 0;               // seconds since 1970
    int32_t context = 0;               // most tokens of one request, prompt and answer
    int32_t trained_context = 0;
    int32_t vocab = 0;
    int32_t slots = 0;
    std::string chat_template;  // its source; empty: none
    bool tools = false;         // the model's tool format is known
    bool reasoning = false;
};

// A request that was checked and is ready to run. Opaque but for what protocols report.
struct Prepared {
    virtual ~Prepared() = default;
    std::vector<TokenId> prompt;
    std::vector<std::string> notices;  // what was understood otherwise than it was said, one sentence each
};

// An answer under way. Dropping the handle does not end it.
class RunningAnswer {
  public:
    virtual ~RunningAnswer() = default;
    virtual void cancel() = 0;  // any thread; a `finished` with AnswerFinish::cancelled follows
};

// Threads: any.
class Service {
  public:
    virtual ~Service() = default;
    virtual const ModelCard& card() const = 0;
    virtual const Tokenizer& tokenizer() const = 0;

    // Template, tokens, grammar, ranges. Errors: 400 with the field, context_length_exceeded with the
    // numbers.
    virtual ApiResult<std::shared_ptr<Prepared>> prepare(const ChatRequest& request) = 0;
    virtual ApiResult<std::shared_ptr<Prepared>> prepare(const TextRequest& request) = 0;
    // The prompt's text as the template prints it, for /apply-template.
    virtual ApiResult<std::string> render(const ChatRequest& request) = 0;
    // `answer_id` is the id under which the protocol sends the answer; it comes back in later requests.
    // Errors: 429, 503.
    virtual ApiResult<std::shared_ptr<RunningAnswer>> start(std::shared_ptr<Prepared> prepared,
                                                            std::string answer_id, AnswerSink sink) = 0;
};

}  // namespace sparkinfer
