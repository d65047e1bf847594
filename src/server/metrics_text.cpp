// metrics_text.cpp — the figures in Prometheus' text format. Names of ours begin with sparkinfer_; the same
// figures follow under the names that routers and dashboards made for vLLM read, old spellings included.
#include <unistd.h>

#include <cstdio>

#include "server/metrics.h"

namespace sparkinfer {

namespace {

std::string escaped(std::string_view label) {
    std::string text;
    for (const char c : label) {
        if (c == '\n') {
            text += "\\n";
            continue;
        }
        if (c == '"' || c == '\\') text += '\\';
        text += c;
    }
    return text;
}

class Page {
  public:
    explicit Page(std::string labels) : labels_(std::move(labels)) {}

    void head(std::string_view name, const char* type, std::string_view help) {
        text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    }
    // One figure of the labels that all have.
    template <class Number>
    void one(std::string_view name, const char* type, std::string_view help, Number value) {
        head(name, type, help);
        row(name, "", value);
    }
    template <class Number>
    void row(std::string_view name, std::string_view labels, Number value) {
        const char* comma = labels_.empty() || labels.empty() ? "" : ",";
        if (labels_.empty() && labels.empty())
            text += fmt::format("{} {}\n", name, value);
        else
            text += fmt::format("{}{{{}{}{}}} {}\n", name, labels_, comma, labels, value);
    }
    void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
        head(name, "histogram", help);
        histogram.print(text, name, labels_);
    }
    std::string text;

  private:
    std::string labels_;
};

int64_t resident_bytes() {
    int64_t pages = 0;
    if (FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%*s %ld", &pages) != 1) pages = 0;
        std::fclose(file);
    }
    return pages * ::sysconf(_SC_PAGESIZE);
}

double kv_used(const EngineStats& e) { return e.kv_pages > 0 ? double(e.kv_pages_used) / e.kv_pages : 0; }

void print_engine(Page& p, const EngineStats& e) {
    p.one("sparkinfer_requests_running", "gauge", "Requests that have a slot.", e.running);
    p.one("sparkinfer_requests_waiting", "gauge", "Requests that wait for a slot.", e.waiting);
    p.one("sparkinfer_slots", "gauge", "Requests that can run at once.", e.slots);
    p.one("sparkinfer_kv_usage_ratio", "gauge", "Share of the KV pages in use, 0 to 1.", kv_used(e));
    p.head("sparkinfer_kv_pages", "gauge", "KV pages by state; cached ones may be in use too.");
    p.row("sparkinfer_kv_pages", "state=\"all\"", e.kv_pages);
    p.row("sparkinfer_kv_pages", "state=\"used\"", e.kv_pages_used);
    p.row("sparkinfer_kv_pages", "state=\"cached\"", e.kv_pages_cached);
    p.one("sparkinfer_checkpoints", "gauge", "Recurrent states kept on the device.", e.checkpoints);
    p.one("sparkinfer_checkpoint_bytes", "gauge", "Bytes of them.", e.checkpoint_bytes);
    p.one("sparkinfer_checkpoint_budget_bytes", "gauge", "Most bytes of them.", e.checkpoint_budget);
    p.one("sparkinfer_host_cache_entries", "gauge", "Pages and states kept in host memory.", e.host_entries);
    p.one("sparkinfer_host_cache_bytes", "gauge", "Bytes of them.", e.host_bytes);
    p.one("sparkinfer_host_cache_budget_bytes", "gauge", "Most bytes of them.", e.host_budget);
    p.one("sparkinfer_prefix_cache_query_tokens_total", "counter", "Prompt tokens looked up in the cache.",
          e.cache_query_tokens);
    p.one("sparkinfer_prefix_cache_hit_tokens_total", "counter", "Of them, not computed again.",
          e.cache_hit_tokens);
    p.head("sparkinfer_cache_misses_total", "counter",
           "Admitted requests by why not more of the prompt was cached.");
    for (int i = 0; i < kCacheMisses; ++i)
        p.row("sparkinfer_cache_misses_total", fmt::format("reason=\"{}\"", cache_miss_name(CacheMiss(i))),
              e.misses[i]);
    p.head("sparkinfer_restores_total", "counter", "Requests that began at a kept point, by where it lay.");
    p.row("sparkinfer_restores_total", "tier=\"device\"", e.restores - e.host_restores);
    p.row("sparkinfer_restores_total", "tier=\"host\"", e.host_restores);
    p.one("sparkinfer_evictions_total", "counter", "Kept pages and states that gave way.", e.evictions);
    p.one("sparkinfer_preemptions_total", "counter", "Running requests put back for want of KV pages.",
          e.preemptions);
    p.one("sparkinfer_prompt_tokens_total", "counter", "Prompt tokens of admitted requests.",
          e.prompt_tokens);
    p.one("sparkinfer_generated_tokens_total", "counter", "Tokens generated.", e.generated_tokens);
    p.one("sparkinfer_engine_steps_total", "counter", "Steps of the engine.", e.steps);
    p.one("sparkinfer_engine_step_seconds", "gauge", "Time of the newest step.", e.last_step_ms * 1e-3);
}

void print_vllm_engine(Page& p, const EngineStats& e) {
    p.one("vllm:num_requests_running", "gauge", "Requests that have a slot.", e.running);
    p.one("vllm:num_requests_waiting", "gauge", "Requests that wait for a slot.", e.waiting);
    p.one("vllm:kv_cache_usage_perc", "gauge", "Share of the KV pages in use, 0 to 1.", kv_used(e));
    p.one("vllm:gpu_cache_usage_perc", "gauge", "The same, as it was called.", kv_used(e));
    p.head("vllm:cache_config_info", "gauge", "Geometry of the KV cache.");
    p.row("vllm:cache_config_info",
          fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\"", e.page_tokens, e.kv_pages), 1);
    for (const char* prefix : {"vllm:", "vllm:gpu_"}) {
        p.one(fmt::format("{}prefix_cache_queries_total", prefix), "counter", "Prompt tokens looked up.",
              e.cache_query_tokens);
        p.one(fmt::format("{}prefix_cache_hits_total", prefix), "counter", "Of them, found.",
              e.cache_hit_tokens);
    }
    p.one("vllm:gpu_prefix_cache_hit_rate", "gauge", "Share of looked-up tokens found, 0 to 1.",
          e.cache_query_tokens > 0 ? double(e.cache_hit_tokens) / double(e.cache_query_tokens) : 0.0);
    p.one("vllm:num_preemptions_total", "counter", "Running requests put back.", e.preemptions);
    p.one("vllm:prompt_tokens_total", "counter", "Prompt tokens.", e.prompt_tokens);
    p.one("vllm:generation_tokens_total", "counter", "Tokens generated.", e.generated_tokens);
}

}  // namespace

void Metrics::print_requests(std::string& text, const std::string& model) const {
    Page p("");
    p.head("sparkinfer_http_requests_total", "counter", "Requests by route and status.");
    for (const auto& [labels, count] : http_) p.row("sparkinfer_http_requests_total", labels, count);
    p.head("sparkinfer_requests_finished_total", "counter", "Answers by how they ended.");
    for (const auto& [reason, count] : finished_)
        p.row("sparkinfer_requests_finished_total", fmt::format("reason=\"{}\"", reason), count);
    p.head("sparkinfer_cancelled_total", "counter", "Cancelled answers by how far they were.");
    for (const auto& [phase, count] : cancelled_)
        p.row("sparkinfer_cancelled_total", fmt::format("phase=\"{}\"", phase), count);
    p.histogram("sparkinfer_time_to_first_token_seconds", "From request to first token.", ttft_);
    p.histogram("sparkinfer_inter_token_seconds", "Between pieces of an answer.", itl_);
    p.histogram("sparkinfer_time_per_output_token_seconds", "Decode time by tokens.", tpot_);
    p.histogram("sparkinfer_request_seconds", "From request to last byte.", e2e_);
    p.histogram("sparkinfer_request_queue_seconds", "In the queue.", queue_);
    p.histogram("sparkinfer_request_prefill_seconds", "From slot to first token.", prefill_);
    p.histogram("sparkinfer_request_decode_seconds", "From first to last token.", decode_);

    Page v(fmt::format("model_name=\"{}\",engine=\"0\"", escaped(model)));
    v.head("vllm:request_success_total", "counter", "Answers by how they ended.");
    for (const auto& [reason, count] : finished_) {
        const bool call = reason == "tool_calls";  // a stop, in vLLM's words
        if (reason == "stop" || reason == "length" || call)
            v.row("vllm:request_success_total",
                  fmt::format("finished_reason=\"{}\"", call ? "tool_calls" : reason), count);
    }
    v.histogram("vllm:time_to_first_token_seconds", "From request to first token.", ttft_);
    v.histogram("vllm:inter_token_latency_seconds", "Between pieces of an answer.", itl_);
    v.histogram("vllm:request_time_per_output_token_seconds", "Decode time by tokens.", tpot_);
    v.histogram("vllm:time_per_output_token_seconds", "Between pieces of an answer, as it was called.", itl_);
    v.histogram("vllm:e2e_request_latency_seconds", "From request to last byte.", e2e_);
    v.histogram("vllm:request_queue_time_seconds", "In the queue.", queue_);
    v.histogram("vllm:request_prefill_time_seconds", "From slot to first token.", prefill_);
    v.histogram("vllm:request_decode_time_seconds", "From first to last token.", decode_);
    text += p.text + v.text;
}

std::string Metrics::prometheus() const {
    const ServerFigures figures = figures_();
    Page p("");
    p.head("sparkinfer_build_info", "gauge", "The program.");
    p.row("sparkinfer_build_info", fmt::format("version=\"{}\"", escaped(figures.version)), 1);
    p.head("sparkinfer_state", "gauge", "1 for the state that the server is in.");
    for (const char* state : {"loading", "ready", "draining", "failed"})
        p.row("sparkinfer_state", fmt::format("state=\"{}\"", state), figures.state == state ? 1 : 0);
    p.one("process_start_time_seconds", "gauge", "When the server started, Unix time.", started_);
    p.one("process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    p.one("sparkinfer_http_connections", "gauge", "Open connections.", figures.connections);
    p.one("sparkinfer_http_requests_in_progress", "gauge", "Requests that are not answered yet.",
          figures.http_requests);
    p.one("sparkinfer_http_connections_refused_total", "counter", "Connections over a limit.",
          figures.refused_connections);
    if (figures.engine) {
        print_engine(p, *figures.engine);
        Page v(fmt::format("model_name=\"{}\",engine=\"0\"", escaped(figures.model)));
        print_vllm_engine(v, *figures.engine);
        p.text += v.text;
    }
    const std::lock_guard lock(mutex_);
    print_requests(p.text, figures.model);
    return std::move(p.text);
}

}  // namespace sparkinfer
