// metrics.h — figures of the server: counts and histograms of its requests, with those of the engine, as
// Prometheus reads them (our names and vLLM's) and as the dashboard shows them.
#pragma once
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "engine/engine.h"
#include "server/histogram.h"
#include "server/request_trace.h"

namespace sparkinfer {

// What does not come with a request. Asked for when figures are.
struct ServerFigures {
    std::string model, state = "loading";       // "loading", "ready", "draining", "failed"
    std::optional<EngineStats> engine = {};     // none: it is not open yet
    int64_t page_bytes = 0;                     // of a KV page, in all layers
    size_t connections = 0, http_requests = 0;  // open; in progress
    uint64_t refused_connections = 0;
    std::string version = {};
};

// Threads: any. One mutex: it is held for microseconds, and for milliseconds while figures are printed.
class Metrics {
  public:
    explicit Metrics(std::function<ServerFigures()> figures);

    // A request's answer began to be made; it shows as running until its trace is told.
    void live(std::weak_ptr<RequestTrace> trace);
    void inter_token(double seconds);
    // The request is over.
    void told(const RequestFacts& facts);
    // An answer whose head was sent already has failed.
    void sample();  // once a second: the dashboard's history

    std::string prometheus() const;
    Json dashboard() const;

  private:
    struct Sample {
        double time = 0, prompt = 0, generated = 0, ttft = 0;  // rates a second; seconds
        int32_t running = 0, waiting = 0;
    };
    struct Trouble {
        double time;
        int status;
        std::string message, id;
    };
    using Counts = std::map<std::string, uint64_t>;  // by labels; keys come from tables of ours

    void print_requests(std::string& text, const std::string& model) const;
    JsonArray recent_json() const;

    const std::function<ServerFigures()> figures_;
    const double started_;
    mutable std::mutex mutex_;
    Counts http_, finished_, cancelled_;
    Histogram ttft_, itl_, tpot_, e2e_, queue_, prefill_, decode_;
    std::list<std::weak_ptr<RequestTrace>> live_;
    std::deque<RequestFacts> recent_;  // the latest first
    std::deque<Trouble> troubles_;
    std::deque<Sample> history_;
    std::optional<EngineStats> last_;
    double last_at_ = 0;
};

// The facts as one line of JSON, for logs.
std::string facts_json_line(const RequestFacts& facts);
// The same for a person: "POST /v1/chat/completions 200 · 1.24 s · prompt 812 (768 cached) · 64 tokens …".
std::string facts_text_line(const RequestFacts& facts);

}  // namespace sparkinfer
