// loaded_model.h — what a handle of the C interface stands for: backend, engine, tokenizer, and the answers
// under way.
//
// Threads: any. What computes takes the model's lock for one step.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/decoder.h"
#include "text/tokenizer.h"

namespace sparkinfer::capi {

struct LoadChoice {
    std::string backend = "auto";  // "auto", "cuda", "cpu"
    int threads = 0;               // where a CPU computes; 0: one a usable core
    int32_t context = 0;           // tokens; 0: the model's own, as far as memory reaches
    int32_t sequences = 1;         // computed at once
};

// Errors: a backend that is not in this build or does not exist (usage), or not usable here (resources).
Result<std::unique_ptr<Backend>> make_backend(const LoadChoice& choice);

// A part of an answer.
struct Part {
    std::string text;             // whole characters
    std::vector<TokenId> tokens;  // without the end token
    FinishReason finish = FinishReason::none;
    std::optional<Error> error = std::nullopt;  // finish == error
};

// One answer: what the engine has said and nobody has taken yet. Under the lock of its model, which fills it.
struct Answer {
    Answer(const Tokenizer& tokenizer, std::vector<std::string> stop)
        : decoder(tokenizer), matcher(std::move(stop)) {}
    Decoder decoder;
    StopMatcher matcher;
    RequestId id = {};
    Part ready;
};

class LoadedModel {
  public:
    static Result<std::shared_ptr<LoadedModel>> open(const std::string& path, const LoadChoice& choice);

    const Tokenizer& tokenizer() const { return tokenizer_; }
    const Metadata& metadata() const { return engine_->metadata(); }
    int32_t vocab() const { return vocab_; }
    int32_t context() const { return engine_->options().context; }
    const std::string& backend() const { return backend_->info().name; }

    // OpenAI's messages as JSON, in the model's template.
    Result<std::vector<TokenId>> tokenize_chat(std::string_view messages) const;

    // Queues a request. `answer` must stay where it is until it has a finish or was cancelled.
    Result<void> start(Request request, Answer& answer);
    // What is new of an answer, after one step for all that are under way, unless there is something already.
    Part take(Answer& answer);
    void cancel(Answer& answer);

    // rows[i] of vocab() floats predicts the token behind ids[i]. Other answers are computed to their ends
    // first.
    Result<void> logits(std::span<const TokenId> ids, float* rows);

  private:
    LoadedModel(std::unique_ptr<Backend> backend, std::unique_ptr<Engine> engine, Tokenizer tokenizer);
    void step();
    void deliver(const Event& event);

    const std::unique_ptr<Backend> backend_;
    const std::unique_ptr<Engine> engine_;
    const Tokenizer tokenizer_;
    const Result<ChatTemplate> template_;  // few can do without one: it is missed when it is used
    const int32_t vocab_;
    std::mutex lock_;  // of what follows, and of the engine's changes
    std::map<RequestId, Answer*> live_;
};

}  // namespace sparkinfer::capi
