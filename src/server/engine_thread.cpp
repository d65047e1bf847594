#include "server/engine_thread.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace sparkinfer {
namespace {

// Events that wait for their sinks. Sinks do not wait, so that this is hours of text; beyond it the engine
// pauses rather than take all memory.
constexpr size_t kMaxDeliveries = 1 << 16;

}  // namespace

EngineThread::EngineThread(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {
    stats_ = engine_->stats();
    delivery_thread_ = std::thread([this] { run_deliveries(); });
    try {
        engine_thread_ = std::thread([this] { run(); });
    } catch (...) {  // the machine has no thread left
        end_deliveries();
        throw;
    }
}

EngineThread::~EngineThread() { stop(); }

void EngineThread::stop() {
    if (!engine_thread_.joinable()) return;
    draining_ = true;
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    engine_thread_.join();
    end_deliveries();
}

void EngineThread::end_deliveries() {
    {
        std::lock_guard lock(delivery_mutex_);
        delivered_all_ = true;
    }
    delivery_wake_.notify_all();
    delivery_thread_.join();
}

Result<RequestId> EngineThread::submit(Request request, EventSink sink) {
    TRY_VOID(check(request));
    const auto id = RequestId(next_id_++);
    {
        std::lock_guard lock(mutex_);
        if (!failure_.empty()) return internal_error("the device has failed: {}", failure_);
        if (draining_ || stopping_)
            return out_of_resources("the server is shutting down and takes no more requests");
        if (queued_.load() >= options().queue)
            return out_of_resources("{} requests are waiting, which is the queue's limit", options().queue);
        ++queued_;
        ++pending_;
        submissions_.push_back({id, std::move(request), std::make_shared<EventSink>(std::move(sink))});
    }
    wake_.notify_one();
    return id;
}

void EngineThread::cancel(RequestId request) {
    {
        std::lock_guard lock(mutex_);
        if (stopped_) return;
        cancels_.push_back(request);
    }
    wake_.notify_one();
}

EngineStats EngineThread::stats() const {
    std::lock_guard lock(mutex_);
    EngineStats s = stats_;
    s.waiting = std::max(s.waiting, int32_t(queued_.load()));
    return s;
}

Result<void> EngineThread::call(const std::function<void(Engine&)>& work) {
    Call call{&work};
    std::unique_lock lock(mutex_);
    if (stopping_ || stopped_) return out_of_resources("the engine has stopped");
    calls_.push_back(&call);
    wake_.notify_one();
    called_.wait(lock, [&] { return call.done || stopped_; });
    if (!call.done) return out_of_resources("the engine has stopped");
    return {};
}

std::string EngineThread::failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
}

void EngineThread::drain() { draining_ = true; }

void EngineThread::run() {
    while (take_commands()) {
        if (!engine_->idle()) step();
        publish();
    }
    for (const auto& [id, under] : under_way_) engine_->cancel(id);
    while (!engine_->idle()) step();
    std::lock_guard lock(mutex_);
    stopped_ = true;
    called_.notify_all();
}

// Waits for something to do and takes all that was asked. False: it is to stop.
bool EngineThread::take_commands() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] {
        return stopping_ || !submissions_.empty() || !cancels_.empty() || !calls_.empty() || !engine_->idle();
    });
    std::deque<Submission> submissions = std::exchange(submissions_, {});
    const std::vector<RequestId> cancels = std::exchange(cancels_, {});
    const std::deque<Call*> calls = std::exchange(calls_, {});
    const bool stopping = stopping_;
    lock.unlock();
    for (Submission& s : submissions) start(std::move(s));
    for (RequestId id : cancels) {
        const auto found = engine_ids_.find(id);
        if (found != engine_ids_.end()) engine_->cancel(found->second);
    }
    for (Call* call : calls) {
        (*call->work)(*engine_);
        std::lock_guard again(mutex_);
        call->done = true;
        called_.notify_all();
    }
    return !stopping;
}

void EngineThread::start(Submission s) {
    Result<RequestId> id = failed_ ? Result<RequestId>(internal_error("the device has failed"))
                                   : engine_->submit(std::move(s.request));
    if (!id.ok()) {
        --queued_;
        return end(std::move(s.sink), s.id, FinishReason::error, id.error().message);
    }
    under_way_[*id] = {s.id, std::move(s.sink)};
    engine_ids_[s.id] = *id;
}

void EngineThread::step() {
    const auto began = std::chrono::steady_clock::now();
    Result<std::vector<Event>> events = engine_->step();
    if (!events.ok()) return fail(events.error().message);
    std::vector<Delivery> deliveries;
    deliveries.reserve(events->size());
    for (Event& event : *events) {
        const auto found = under_way_.find(event.request);
        if (found == under_way_.end()) continue;
        Under& under = found->second;
        const bool ends = event.finish != FinishReason::none;
        if (under.queued && (event.admission || ends)) --queued_, under.queued = false;
        event.request = under.id;
        if (event.admission) event.admission->at = began;
        deliveries.push_back({under.sink, std::move(event)});
        if (!ends) continue;
        engine_ids_.erase(under.id);
        under_way_.erase(found);
    }
    deliver(std::move(deliveries));
}

// The engine has ended everything. Its requests hear why, and whoever asks failure().
void EngineThread::fail(const std::string& message) {
    {
        std::lock_guard lock(mutex_);
        failure_ = message;
        failed_ = true;
    }
    for (auto& [id, under] : std::exchange(under_way_, {})) {
        if (under.queued) --queued_;
        end(std::move(under.sink), under.id, FinishReason::error, message);
    }
    engine_ids_.clear();
}

void EngineThread::end(std::shared_ptr<EventSink> sink, RequestId id, FinishReason finish,
                       std::string error) {
    Event event{id};
    event.finish = finish;
    event.error = std::move(error);
    std::vector<Delivery> one;
    one.push_back({std::move(sink), std::move(event)});
    deliver(std::move(one));
}

void EngineThread::deliver(std::vector<Delivery> deliveries) {
    if (deliveries.empty()) return;
    {
        std::unique_lock lock(delivery_mutex_);
        delivery_room_.wait(lock, [&] { return deliveries_.size() < kMaxDeliveries; });
        for (Delivery& d : deliveries) deliveries_.push_back(std::move(d));
    }
    delivery_wake_.notify_one();
}

void EngineThread::run_deliveries() {
    std::unique_lock lock(delivery_mutex_);
    for (;;) {
        delivery_wake_.wait(lock, [&] { return delivered_all_ || !deliveries_.empty(); });
        if (deliveries_.empty()) return;
        std::deque<Delivery> batch = std::exchange(deliveries_, {});
        lock.unlock();
        delivery_room_.notify_one();
        for (Delivery& d : batch) {
            (*d.sink)(d.event);
            const bool ends = d.event.finish != FinishReason::none;
            d.sink.reset();
            if (ends) --pending_;
        }
        batch.clear();
        lock.lock();
    }
}

void EngineThread::publish() {
    const EngineStats now = engine_->stats();
    std::lock_guard lock(mutex_);
    stats_ = now;
}

}  // namespace sparkinfer
