// running.h — the choices of one request under way: the engine's events in, the answer's events out.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/answer_constraint.h"
#include "server/choice.h"
#include "server/engine_thread.h"
#include "server/service.h"

namespace sparkinfer {

// A request ready to run: what prepare() made of it.
struct ReadyRequest : Prepared {
    Request engine;      // without constraint; one copy a choice
    ReadingRules rules;  // refers to `tools`
    std::vector<ToolSpec> tools;
    int32_t choices = 1;
    std::string prompt_tail;               // behind the header of the turn to be generated
    bool echo = false;                     // the prompt's text comes first
    bool remember = false;                 // the answer may come back in a later request
    ConstraintMaker make_constraint = {};  // empty: the answers are free
};

class Running : public RunningAnswer, public std::enable_shared_from_this<Running> {
  public:
    Running(EngineThread& engine, SampledTurns& turns, std::shared_ptr<ReadyRequest> ready,
            std::string answer_id, AnswerSink sink);
    // Submits every choice. Errors: 429 when the queue is full, 503 when the engine cannot take any.
    ApiResult<void> start();
    void cancel() override;

  private:
    void hear(size_t choice, const Event& event);
    void started(const Event& event);
    void end_choice(size_t choice, FinishReason reason);
    void fail(const std::string& message);
    void give_up(size_t choice);
    void deliver(std::vector<AnswerEvent>& events);
    void echo(size_t choice);

    EngineThread& engine_;
    SampledTurns& turns_;
    std::shared_ptr<ReadyRequest> ready_;
    std::string answer_id_;
    AnswerSink sink_;
    // The delivery thread's own.
    std::vector<Choice> choices_;
    std::vector<bool> ended_;
    size_t left_;
    bool has_started_ = false, failed_ = false;
    Usage usage_;
    std::vector<TokenLogprobs> prompt_logprobs_;  // of the prompt's tokens but the first
    // Shared with whoever cancels.
    std::mutex mutex_;
    struct Submitted {
        std::optional<RequestId> id;
        bool unwanted = false;
    };
    std::vector<Submitted> requests_;  // of the choices
};

}  // namespace sparkinfer
