#include "server/metrics.h"

#include <cmath>

namespace sparkinfer {

namespace {

constexpr double kLongBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1,
                                  2.5,   5,     7.5,  10,   20,   40,   80,   160, 320,  640, 1280, 2560};
constexpr double kTokenBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075,
                                   0.1,   0.15,   0.2,   0.3,  0.4,   0.5,  0.75,  1,    2.5,  5,    10};
constexpr size_t kRecent = 100, kTroubles = 50, kHistory = 300, kWindow = 4096;
constexpr double kQuantiles[] = {0.5, 0.9, 0.99};
constexpr double kQuantileAge = 300;

double unix_seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json number_or_null(double value) { return value >= 0 && std::isfinite(value) ? Json(value) : Json(nullptr); }

JsonObject quantiles_json(const Histogram& histogram) {
    const std::vector<double> values = histogram.quantiles(kQuantiles, unix_seconds(), kQuantileAge);
    return {{"p50", number_or_null(values[0])},
            {"p90", number_or_null(values[1])},
            {"p99", number_or_null(values[2])}};
}

JsonObject request_json(const RequestFacts& f) {
    JsonObject row;
    row["id"] = f.id;
    row["route"] = f.route;
    row["status"] = f.status;
    row["start"] = f.arrived;
    row["queue_s"] = number_or_null(f.queue_s);
    row["prefill_s"] = number_or_null(f.prefill_s());
    row["decode_s"] = number_or_null(f.decode_s());
    row["prompt_tokens"] = f.prompt_tokens;
    row["cached_tokens"] = f.cached_tokens;
    row["tokens"] = f.tokens;
    row["miss"] = f.miss;
    row["finish"] = f.finish.empty() ? Json(nullptr) : Json(f.finish);
    return row;
}

}  // namespace

Metrics::Metrics(std::function<ServerFigures()> figures)
    : figures_(std::move(figures)),
      started_(unix_seconds()),
      ttft_(kLongBounds, kWindow),
      itl_(kTokenBounds, kWindow),
      tpot_(kTokenBounds),
      e2e_(kLongBounds),
      queue_(kLongBounds),
      prefill_(kLongBounds),
      decode_(kLongBounds) {}

void Metrics::live(std::weak_ptr<RequestTrace> trace) {
    const std::lock_guard lock(mutex_);
    live_.remove_if([](const auto& one) { return one.expired(); });
    live_.push_back(std::move(trace));
}

void Metrics::inter_token(double seconds) {
    const std::lock_guard lock(mutex_);
    itl_.add(seconds, unix_seconds());
}

void Metrics::told(const RequestFacts& f) {
    const double now = unix_seconds();
    const std::lock_guard lock(mutex_);
    ++http_[fmt::format("route=\"{}\",status=\"{}\"", f.route.empty() ? "none" : f.route, f.status)];
    if (f.status >= 500 || !f.error.empty()) {
        troubles_.push_front({now, f.status, f.error.empty() ? "see the log" : f.error, f.id});
        if (troubles_.size() > kTroubles) troubles_.pop_back();
    }
    if (f.answers == 0) return;
    ++finished_[f.finish];
    if (f.finish == "cancelled")
        ++cancelled_[f.queue_s < 0 ? "queue" : f.first_token_s < 0 ? "prefill" : "decode"];
    if (f.queue_s >= 0) queue_.add(f.queue_s, now);
    if (f.first_token_s >= 0) {
        ttft_.add(f.first_token_s, now);
        prefill_.add(f.prefill_s(), now);
        decode_.add(f.decode_s(), now);
        if (f.tokens > 1 && f.answers == 1) tpot_.add(f.decode_s() / (f.tokens - 1), now);
    }
    e2e_.add(f.seconds, now);
    recent_.push_front(f);
    if (recent_.size() > kRecent) recent_.pop_back();
}

void Metrics::sample() {
    const ServerFigures figures = figures_();
    if (!figures.engine) return;
    const EngineStats& now = *figures.engine;
    const std::lock_guard lock(mutex_);
    const double at = unix_seconds(), passed = at - last_at_;
    if (last_ && passed > 0) {
        const auto computed = [](const EngineStats& s) { return s.prompt_tokens - s.cache_hit_tokens; };
        Sample sample;
        sample.time = at;
        sample.prompt = double(computed(now) - computed(*last_)) / passed;
        sample.generated = double(now.generated_tokens - last_->generated_tokens) / passed;
        sample.ttft = ttft_.quantiles(kQuantiles, at, kQuantileAge)[0];
        sample.running = now.running;
        sample.waiting = now.waiting;
        history_.push_back(sample);
        if (history_.size() > kHistory) history_.pop_front();
    }
    last_ = now;
    last_at_ = at;
}

// The requests that run, then those that are over, the latest first.
JsonArray Metrics::recent_json() const {
    JsonArray rows;
    for (auto one = live_.rbegin(); one != live_.rend() && rows.size() < kRecent; ++one)
        if (const auto trace = one->lock()) rows.emplace_back(request_json(trace->facts()));
    for (const RequestFacts& facts : recent_)
        if (rows.size() < kRecent) rows.emplace_back(request_json(facts));
    return rows;
}

Json Metrics::dashboard() const {
    const ServerFigures figures = figures_();
    const EngineStats e = figures.engine.value_or(EngineStats{});
    // A trace that ends while this holds its last reference is told by told(), which wants the mutex.
    std::vector<std::shared_ptr<RequestTrace>> held;
    const std::unique_lock lock(mutex_);
    for (const auto& one : live_)
        if (auto trace = one.lock()) held.push_back(std::move(trace));
    JsonObject data;
    data["model"] = figures.model;
    data["version"] = figures.version;
    data["started"] = started_;
    data["state"] = figures.state;
    data["ready"] = figures.state == "ready";
    data["now"] = unix_seconds();
    data["requests"] = JsonObject{{"running", e.running}, {"waiting", e.waiting}, {"slots", e.slots}};
    const Sample last = history_.empty() ? Sample{} : history_.back();
    data["tokens_per_s"] = JsonObject{{"prompt", last.prompt}, {"generated", last.generated}};
    data["ttft"] = quantiles_json(ttft_);
    data["itl"] = quantiles_json(itl_);
    data["kv"] = JsonObject{{"used", e.kv_pages_used * figures.page_bytes},
                            {"cached", e.kv_pages_cached * figures.page_bytes},
                            {"total", e.kv_pages * figures.page_bytes}};
    JsonObject checkpoints{
        {"count", e.checkpoints}, {"bytes", e.checkpoint_bytes}, {"budget", e.checkpoint_budget}};
    if (e.host_budget > 0)
        checkpoints["host"] =
            JsonObject{{"count", e.host_entries}, {"bytes", e.host_bytes}, {"budget", e.host_budget}};
    data["checkpoints"] = std::move(checkpoints);
    JsonObject misses;
    for (int i = 0; i < kCacheMisses; ++i)
        if (e.misses[i] > 0) misses[cache_miss_name(CacheMiss(i))] = e.misses[i];
    data["cache"] = JsonObject{{"hit_tokens", e.cache_hit_tokens},
                               {"query_tokens", e.cache_query_tokens},
                               {"misses", std::move(misses)}};
    data["recent"] = recent_json();
    JsonArray errors, history;
    for (const Trouble& t : troubles_)
        errors.emplace_back(
            JsonObject{{"time", t.time}, {"status", t.status}, {"message", t.message}, {"id", t.id}});
    for (const Sample& s : history_)
        history.emplace_back(JsonObject{{"time", s.time},
                                        {"prompt", s.prompt},
                                        {"generated", s.generated},
                                        {"running", s.running},
                                        {"waiting", s.waiting},
                                        {"ttft", number_or_null(s.ttft)}});
    data["errors"] = std::move(errors);
    data["history"] = std::move(history);
    return data;
}

std::string facts_json_line(const RequestFacts& f) {
    JsonObject line;
    line["time"] = f.arrived;
    line["id"] = f.id;
    line["method"] = f.method;
    line["route"] = f.route;
    line["status"] = f.status;
    line["key"] = f.key;
    line["seconds"] = f.seconds;
    line["bytes"] = f.sent_bytes;
    line["gone"] = f.gone;
    if (f.answers > 0) {
        line["answers"] = f.answers;
        line["prompt_tokens"] = f.prompt_tokens;
        line["cached_tokens"] = f.cached_tokens;
        line["tokens"] = f.tokens;
        line["reasoning_tokens"] = f.reasoning_tokens;
        line["queue_s"] = number_or_null(f.queue_s);
        line["ttft_s"] = number_or_null(f.first_token_s);
        line["decode_s"] = number_or_null(f.decode_s());
        line["finish"] = f.finish;
        line["miss"] = f.miss;
        if (!f.miss_detail.empty()) line["miss_detail"] = f.miss_detail;
    }
    if (!f.error.empty()) line["error"] = f.error;
    return to_json(line);
}

std::string facts_text_line(const RequestFacts& f) {
    std::string text = fmt::format("{} {} {} · {:.2f} s", f.method.empty() ? "?" : f.method,
                                   f.route.empty() ? "-" : f.route, f.status, f.seconds);
    if (f.answers > 0) {
        text += fmt::format(" · prompt {} ({} cached", f.prompt_tokens, f.cached_tokens);
        if (!f.miss.empty() && f.miss != "none") text += ", " + f.miss;
        text += fmt::format(") · {} tokens", f.tokens);
        if (f.first_token_s >= 0) text += fmt::format(" · first after {:.2f} s", f.first_token_s);
        if (f.decode_s() > 0 && f.tokens > 1)
            text += fmt::format(" · {:.1f} tok/s", (f.tokens - 1) / f.decode_s());
        text += " · " + f.finish;
    }
    if (!f.key.empty()) text += " · " + f.key;
    if (f.gone) text += " · client gone";
    if (!f.error.empty()) text += " · " + f.error;
    return text + " · " + f.id;
}

}  // namespace sparkinfer
