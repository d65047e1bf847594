// engine_thread.h — owns an engine on one thread, so that all others may submit and cancel.
//
//     EngineThread engine(std::move(opened));
//     auto id = engine.submit(request, [](const Event& event) { … });   // called on the delivery thread
//
// Two threads: one steps the engine and waits for nobody's text work; one calls the sinks, in the order of
// the events. Without work both sleep. Threads: any, but for construction and destruction.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace sparkinfer {

// Hears of one request; after the event with a finish it is destroyed. Must not wait.
using EventSink = std::function<void(const Event&)>;

class EngineThread {
  public:
    explicit EngineThread(std::unique_ptr<Engine> engine);
    ~EngineThread();
    EngineThread(const EngineThread&) = delete;
    EngineThread& operator=(const EngineThread&) = delete;

    // What does not change while the engine lives.
    const Metadata& metadata() const { return engine_->metadata(); }
    const EngineOptions& options() const { return engine_->options(); }
    Result<void> check(const Request& request) const { return engine_->check(request); }

    // Queues a request; its id is this thread's, not the engine's. The sink may be called before this
    // returns. Errors: parameters (Engine::check), a full queue or a draining engine (resources), a failed
    // device (internal). Anything later arrives as an event.
    Result<RequestId> submit(Request request, EventSink sink);
    // Ends a request before the next step. Unknown ids are ignored.
    void cancel(RequestId request);
    // As of the newest step.
    EngineStats stats() const;
    // Runs `work` between two steps and waits for it. Errors: the engine has stopped. Not from a sink.
    Result<void> call(const std::function<void(Engine&)>& work);

    // The device has failed: every request was ended with this error, and new ones are refused. Empty: it has
    // not.
    std::string failure() const;
    bool failed() const { return failed_.load(); }
    // Requests that were submitted and have not had their last event delivered.
    int64_t pending() const { return pending_.load(); }
    // Refuses new requests from now on; those under way go on.
    void drain();
    bool draining() const { return draining_.load(); }
    // Ends what is live (finish == cancelled) and delivers everything before it returns; the sinks' owners
    // may go then. The thread that owns this.
    void stop();

  private:
    struct Submission {
        RequestId id;
        Request request;
        std::shared_ptr<EventSink> sink;
    };
    struct Call {
        const std::function<void(Engine&)>* work;
        bool done = false;
    };
    struct Delivery {
        std::shared_ptr<EventSink> sink;
        Event event;
    };
    struct Under {
        RequestId id;  // as submit() has named it
        std::shared_ptr<EventSink> sink;
        bool queued = true;  // not admitted yet
    };

    void run();
    bool take_commands();
    void start(Submission submission);
    void step();
    void fail(const std::string& message);
    void end(std::shared_ptr<EventSink> sink, RequestId id, FinishReason finish, std::string error);
    void deliver(std::vector<Delivery> deliveries);
    void run_deliveries();
    void end_deliveries();
    void publish();

    std::unique_ptr<Engine> engine_;
    std::atomic<int64_t> next_id_ = 1, queued_ = 0, pending_ = 0;
    std::atomic<bool> failed_ = false, draining_ = false;

    mutable std::mutex mutex_;
    std::condition_variable wake_, called_;
    std::deque<Submission> submissions_;
    std::vector<RequestId> cancels_;
    std::deque<Call*> calls_;
    bool stopping_ = false, stopped_ = false;
    std::string failure_;
    EngineStats stats_;

    // The engine thread's own: by the engine's ids and by ours.
    std::map<RequestId, Under> under_way_;
    std::map<RequestId, RequestId> engine_ids_;

    std::mutex delivery_mutex_;
    std::condition_variable delivery_wake_, delivery_room_;
    std::deque<Delivery> deliveries_;
    bool delivered_all_ = false;  // nothing more will come

    std::thread delivery_thread_, engine_thread_;
};

}  // namespace sparkinfer
