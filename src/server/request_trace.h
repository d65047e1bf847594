// request_trace.h — what is told of one request in logs, metrics and the dashboard: never its text. The HTTP
// plane and the answers of a request each hold its trace and write into it; when all have let go, it is told.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace sparkinfer {

struct RequestFacts {
    std::string id, method, route, key;  // route as in the table; key: a label
    int status = 0;
    bool gone = false;  // the client left before the answer was complete
    int64_t sent_bytes = 0;
    double arrived = 0;  // seconds since 1970
    double seconds = 0;  // to the last byte

    // Of the answers; several in one request (n, lists of prompts) are taken together. Seconds since the
    // answer was asked for; -1: it did not come to that.
    int answers = 0;
    double queue_s = -1, first_token_s = -1, last_token_s = -1;
    int32_t prompt_tokens = 0, cached_tokens = 0, tokens = 0, reasoning_tokens = 0;
    std::string finish = {};  // "stop", "length", "tool_calls", "cancelled", "error"; empty: it runs
    std::string miss = {};    // why not more of the prompt was cached
    std::string miss_detail = {};
    std::string error = {};

    double prefill_s() const { return queue_s >= 0 && first_token_s >= 0 ? first_token_s - queue_s : -1; }
    double decode_s() const { return first_token_s >= 0 ? last_token_s - first_token_s : -1; }
};

// Threads: any.
class RequestTrace {
  public:
    using Told = std::function<void(const RequestFacts&)>;
    explicit RequestTrace(Told told) : told_(std::move(told)) {}
    ~RequestTrace() {
        if (told_) told_(facts_);
    }
    RequestTrace(const RequestTrace&) = delete;
    RequestTrace& operator=(const RequestTrace&) = delete;

    template <class Change>
    void note(Change change) {
        const std::lock_guard lock(mutex_);
        change(facts_);
    }
    RequestFacts facts() const {
        const std::lock_guard lock(mutex_);
        return facts_;
    }

    // The trace of the request whose handler runs on this thread; null: none does.
    static std::shared_ptr<RequestTrace> current();
    class Scope {
      public:
        explicit Scope(std::shared_ptr<RequestTrace> trace);
        ~Scope();
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
    };

  private:
    const Told told_;
    mutable std::mutex mutex_;
    RequestFacts facts_;
};

}  // namespace sparkinfer
