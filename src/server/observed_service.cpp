#include "server/observed_service.h"

#include <algorithm>

namespace sparkinfer {

namespace {

using Clock = std::chrono::steady_clock;

const char* finish_name(AnswerFinish finish) {
    switch (finish) {
        case AnswerFinish::stop: return "stop";
        case AnswerFinish::length: return "length";
        case AnswerFinish::tool_calls: return "tool_calls";
        case AnswerFinish::cancelled: return "cancelled";
    }
    return "?";
}

// Looks at the events of one start(), on the thread that delivers them. It goes with the sink that holds it,
// and lets go of the trace then.
class Observation {
  public:
    Observation(std::shared_ptr<RequestTrace> trace, Metrics& metrics)
        : trace_(std::move(trace)), metrics_(metrics) {
        trace_->note([](RequestFacts& facts) { ++facts.answers; });
    }

    void see(const AnswerEvent& event) {
        if (!trace_) return;
        const auto now = Clock::now();
        const double since = std::chrono::duration<double>(now - started_).count();
        switch (event.kind) {
            case AnswerEvent::Kind::started:
                trace_->note([&](RequestFacts& facts) {
                    facts.prompt_tokens += event.usage.prompt_tokens;
                    facts.cached_tokens += event.usage.cached_tokens;
                    if (event.cache_miss.empty()) return;  // it ended in the queue
                    if (facts.queue_s < 0)
                        facts.queue_s =
                            std::max(0.0, std::chrono::duration<double>(event.admitted - started_).count());
                    facts.miss = event.cache_miss;
                    facts.miss_detail = event.cache_detail;
                });
                break;
            case AnswerEvent::Kind::finished: finish(event, since); break;
            case AnswerEvent::Kind::failed:
                trace_->note([&](RequestFacts& facts) {
                    facts.finish = "error";
                    facts.error = event.error.message;
                });
                trace_.reset();
                break;
            default:
                if (last_) metrics_.inter_token(std::chrono::duration<double>(now - *last_).count());
                last_ = now;
                trace_->note([&](RequestFacts& facts) {
                    if (facts.first_token_s < 0) facts.first_token_s = since;
                    facts.last_token_s = since;
                });
        }
    }
    void refused() { trace_.reset(); }

  private:
    void finish(const AnswerEvent& event, double since) {
        trace_->note([&](RequestFacts& facts) {
            facts.finish = finish_name(event.finish);
            // Each `finished` has the sum of its request's answers so far.
            facts.tokens += event.usage.completion_tokens - counted_;
            facts.reasoning_tokens += event.usage.reasoning_tokens - counted_reasoning_;
            if (event.usage.completion_tokens > 0 && facts.first_token_s < 0) facts.first_token_s = since;
            if (facts.first_token_s >= 0) facts.last_token_s = since;
        });
        counted_ = event.usage.completion_tokens;
        counted_reasoning_ = event.usage.reasoning_tokens;
    }

    std::shared_ptr<RequestTrace> trace_;
    Metrics& metrics_;
    const Clock::time_point started_ = Clock::now();
    std::optional<Clock::time_point> last_;
    int32_t counted_ = 0, counted_reasoning_ = 0;
};

class ObservedService final : public Service {
  public:
    ObservedService(Service& service, Metrics& metrics) : service_(service), metrics_(metrics) {}
    const ModelCard& card() const override { return service_.card(); }
    const Tokenizer& tokenizer() const override { return service_.tokenizer(); }
    ApiResult<std::shared_ptr<Prepared>> prepare(const ChatRequest& request) override {
        return prepare_apart(request);
    }
    ApiResult<std::shared_ptr<Prepared>> prepare(const TextRequest& request) override {
        return prepare_apart(request);
    }
    ApiResult<std::string> render(const ChatRequest& request) override { return service_.render(request); }
    ApiResult<std::shared_ptr<RunningAnswer>> start(std::shared_ptr<Prepared> prepared, std::string answer_id,
                                                    AnswerSink sink) override {
        auto trace = RequestTrace::current();
        if (!trace) return service_.start(std::move(prepared), std::move(answer_id), std::move(sink));
        metrics_.live(trace);
        auto observation = std::make_shared<Observation>(std::move(trace), metrics_);
        auto running = service_.start(std::move(prepared), std::move(answer_id),
                                      [observation, sink = std::move(sink)](const AnswerEvent& event) {
                                          observation->see(event);
                                          sink(event);
                                      });
        if (!running.ok()) observation->refused();
        return running;
    }

  private:
    template <class Request>
    ApiResult<std::shared_ptr<Prepared>> prepare_apart(const Request& request) {
        const auto trace = RequestTrace::current();
        const std::string key = trace ? trace->facts().key : "";
        if (key.empty()) return service_.prepare(request);
        Request apart = request;
        apart.cache_salt = key + '\n' + apart.cache_salt;
        return service_.prepare(apart);
    }

    Service& service_;
    Metrics& metrics_;
};

}  // namespace

std::unique_ptr<Service> observe(Service& service, Metrics& metrics) {
    return std::make_unique<ObservedService>(service, metrics);
}

}  // namespace sparkinfer
