#include "server/answer_pump.h"

#include <mutex>
#include <utility>

#include "core/log.h"
#include "server/errors.h"

namespace sparkinfer {
namespace {

// One answer on its way to one client. Events come from the service's thread; the opening and the client's
// going come from others. Of the two locks, `output_` is held while the writer and the responder work, so
// that bytes keep their order; `running_lock_` is never held over a call. Nothing is cancelled under
// `output_`: the service may say the end of an answer before cancel() returns.
class Pump : public std::enable_shared_from_this<Pump> {
  public:
    Pump(PumpOrder order, std::unique_ptr<AnswerWriter> writer, std::shared_ptr<Responder> responder)
        : order_(std::move(order)),
          writer_(std::move(writer)),
          responder_(std::move(responder)),
          usage_(order_.prepared.size()),
          open_choices_(int64_t(order_.prepared.size()) * order_.n) {}

    void start(Service& service);

  private:
    enum class State { running, complete, failed };

    void take(size_t request, AnswerEvent event);
    State handle(size_t request, AnswerEvent& event);
    void emit(std::string bytes);
    void complete();
    void fail(const ApiError& error);
    void open();
    void keep(std::shared_ptr<RunningAnswer> answer);
    void let_go(bool cancel);

    const PumpOrder order_;
    const std::unique_ptr<AnswerWriter> writer_;
    const std::shared_ptr<Responder> responder_;

    std::mutex output_;
    std::vector<Usage> usage_;
    int64_t open_choices_;
    std::string backlog_;  // of a stream whose head is not out yet
    bool opened_ = false;  // the head is out
    State state_ = State::running;

    std::mutex running_lock_;
    std::vector<std::shared_ptr<RunningAnswer>>
        running_;  // emptied at the end: they may own the sink, which owns us
    bool ended_ = false, cancelled_ = false;
};

void Pump::start(Service& service) {
    for (size_t i = 0; i < order_.prepared.size(); ++i) {
        auto sink = [self = shared_from_this(), i](const AnswerEvent& event) { self->take(i, event); };
        ApiResult<std::shared_ptr<RunningAnswer>> answer =
            service.start(order_.prepared[i], order_.answer_id, std::move(sink));
        if (!answer.ok()) {
            AnswerEvent failure{AnswerEvent::Kind::failed};
            failure.error = answer.error();
            take(i, std::move(failure));
            break;
        }
        keep(std::move(answer).value());
    }
    if (order_.stream) open();
    responder_->on_gone([weak = weak_from_this()] {
        if (const auto pump = weak.lock()) pump->let_go(true);
    });
}

void Pump::take(size_t request, AnswerEvent event) {
    State state;
    {
        const std::lock_guard lock(output_);
        if (state_ != State::running) return;
        state = state_ = handle(request, event);
    }
    if (state != State::running) let_go(state == State::failed);
}

// Says one event; its choices and usage become those of the whole.
Pump::State Pump::handle(size_t request, AnswerEvent& event) {
    using Kind = AnswerEvent::Kind;
    if (event.kind == Kind::finished && event.finish == AnswerFinish::cancelled) {
        event.kind = Kind::failed;
        event.error = {503, "overloaded", "", "the server ended this answer before it was complete", 1};
    }
    if (event.kind == Kind::failed) {
        fail(event.error);
        return State::failed;
    }
    if (event.kind == Kind::started || event.kind == Kind::finished) usage_[request] = event.usage;
    event.choice += int32_t(request) * order_.n;
    std::string bytes;
    writer_->write(event, &bytes);
    emit(std::move(bytes));
    if (event.kind != Kind::finished || --open_choices_ > 0) return State::running;
    complete();
    return State::complete;
}

void Pump::emit(std::string bytes) {
    if (bytes.empty()) return;
    if (opened_)
        responder_->write(std::move(bytes));
    else
        backlog_ += bytes;
}

void Pump::complete() {
    Usage sum;
    for (const Usage& u : usage_) {
        sum.prompt_tokens += u.prompt_tokens;
        sum.cached_tokens += u.cached_tokens;
        sum.completion_tokens += u.completion_tokens;
        sum.reasoning_tokens += u.reasoning_tokens;
    }
    std::string bytes;
    writer_->end(sum, &bytes);
    if (!order_.stream) return responder_->send(200, "application/json", std::move(bytes));
    emit(std::move(bytes));
    if (opened_) responder_->finish();
}

void Pump::fail(const ApiError& error) {
    if (!opened_) {
        HttpRequest request;
        request.path = order_.path;
        request.id = order_.request_id;
        return send_error(*responder_, request, error);
    }
    std::string bytes;
    writer_->fail(error, &bytes);
    responder_->write(std::move(bytes));
    responder_->finish();
}

// Sends the head of a stream, unless an error went out in its place.
void Pump::open() {
    const std::lock_guard lock(output_);
    if (state_ == State::failed) return;
    responder_->start_stream("text/event-stream; charset=utf-8", order_.keep_alive);
    opened_ = true;
    emit(std::exchange(backlog_, {}));
    if (state_ == State::complete) responder_->finish();
}

void Pump::keep(std::shared_ptr<RunningAnswer> answer) {
    bool cancel = false;
    {
        const std::lock_guard lock(running_lock_);
        cancel = cancelled_;
        if (!ended_) running_.push_back(answer);
    }
    if (cancel) answer->cancel();
}

void Pump::let_go(bool cancel) {
    std::vector<std::shared_ptr<RunningAnswer>> running;
    {
        const std::lock_guard lock(running_lock_);
        ended_ = true;
        cancelled_ = cancelled_ || cancel;
        running.swap(running_);
    }
    if (cancel)
        for (const auto& answer : running) answer->cancel();
}

}  // namespace

void pump_answer(Service& service, PumpOrder order, std::unique_ptr<AnswerWriter> writer,
                 std::shared_ptr<Responder> responder) {
    for (const auto& prepared : order.prepared) log_notices(order.request_id, *prepared);
    std::make_shared<Pump>(std::move(order), std::move(writer), std::move(responder))->start(service);
}

void log_notices(const std::string& request_id, const Prepared& prepared) {
    for (const std::string& notice : prepared.notices) log_info("request {}: {}", request_id, notice);
}

}  // namespace sparkinfer
