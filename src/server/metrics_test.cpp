#include "server/metrics.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "server/observed_service.h"

namespace sparkinfer {
namespace {

ServerFigures figures() {
    ServerFigures figures;
    figures.model = "a\"model";
    figures.state = "ready";
    figures.page_bytes = 1000;
    EngineStats stats;
    stats.slots = 8;
    stats.running = 2;
    stats.waiting = 3;
    stats.kv_pages = 100;
    stats.kv_pages_used = 25;
    stats.cache_query_tokens = 200;
    stats.cache_hit_tokens = 150;
    stats.misses[int(CacheMiss::diverged)] = 4;
    figures.engine = stats;
    return figures;
}

RequestFacts finished() {
    RequestFacts facts;
    facts.id = "req_1";
    facts.method = "POST";
    facts.route = "/v1/chat/completions";
    facts.status = 200;
    facts.answers = 1;
    facts.queue_s = 0.1;
    facts.first_token_s = 0.6;
    facts.last_token_s = 1.6;
    facts.seconds = 1.7;
    facts.prompt_tokens = 10;
    facts.cached_tokens = 4;
    facts.tokens = 11;
    facts.finish = "stop";
    facts.miss = "diverged";
    return facts;
}

// Risk: routers and dashboards do not find the figures they steer by, or Prometheus refuses the page.
TEST(Metrics, PageHasTheNamesThatRoutersRead) {
    Metrics metrics(figures);
    metrics.told(finished());
    metrics.inter_token(0.1);
    const std::string page = metrics.prometheus();
    for (
        const char* line :
        {"sparkinfer_requests_running 2",
         "sparkinfer_requests_waiting 3",
         "sparkinfer_kv_usage_ratio 0.25",
         "sparkinfer_cache_misses_total{reason=\"diverged\"} 4",
         "sparkinfer_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
         "sparkinfer_requests_finished_total{reason=\"stop\"} 1",
         "sparkinfer_state{state=\"ready\"} 1",
         R"(vllm:num_requests_running{model_name="a\"model",engine="0"} 2)",
         R"(vllm:num_requests_waiting{model_name="a\"model",engine="0"} 3)",
         R"(vllm:kv_cache_usage_perc{model_name="a\"model",engine="0"} 0.25)",
         R"(vllm:gpu_cache_usage_perc{model_name="a\"model",engine="0"} 0.25)",
         R"(vllm:prefix_cache_queries_total{model_name="a\"model",engine="0"} 200)",
         R"(vllm:gpu_prefix_cache_hits_total{model_name="a\"model",engine="0"} 150)",
         R"(vllm:gpu_prefix_cache_hit_rate{model_name="a\"model",engine="0"} 0.75)",
         R"(vllm:cache_config_info{model_name="a\"model",engine="0",block_size="64",num_gpu_blocks="100"} 1)",
         R"(vllm:request_success_total{model_name="a\"model",engine="0",finished_reason="stop"} 1)",
         R"(vllm:time_to_first_token_seconds_count{model_name="a\"model",engine="0"} 1)",
         R"(vllm:inter_token_latency_seconds_bucket{model_name="a\"model",engine="0",le="0.1"} 1)",
         R"(vllm:e2e_request_latency_seconds_sum{model_name="a\"model",engine="0"} 1.7)",
         R"(vllm:request_queue_time_seconds_bucket{model_name="a\"model",engine="0",le="+Inf"} 1)",
         R"(vllm:request_time_per_output_token_seconds_sum{model_name="a\"model",engine="0"} 0.1)"})
        EXPECT_NE(("\n" + page).find(std::string("\n") + line + "\n"), std::string::npos) << line;
    // Each line is a comment or a sample, each name has one type, and no sample comes twice.
    const std::regex sample(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? [0-9.e+-]+)re");
    std::set<std::string> types, samples;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("# TYPE ", 0) == 0) {
            EXPECT_TRUE(types.insert(line.substr(7, line.find(' ', 7) - 7)).second) << line;
        }
        if (line[0] == '#') continue;
        EXPECT_TRUE(std::regex_match(line, sample)) << line;
        EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << line;
    }
}

// Risk: the dashboard's page reads fields that are not there.
TEST(Metrics, DashboardHasWhatThePageReads) {
    Metrics metrics(figures);
    metrics.told(finished());
    RequestFacts failed = finished();
    failed.finish = "error";
    failed.error = "the device failed";
    metrics.told(failed);
    const auto running =
        std::make_shared<RequestTrace>([&](const RequestFacts& facts) { metrics.told(facts); });
    running->note([](RequestFacts& facts) {
        facts.id = "req_live";
        facts.answers = 1;
    });
    metrics.live(running);
    metrics.sample();
    const Json data = metrics.dashboard();
    for (const char* key : {"model", "started", "state", "ready", "now", "requests", "tokens_per_s", "ttft",
                            "itl", "kv", "checkpoints", "cache", "recent", "errors", "history"})
        EXPECT_TRUE(data.as_object().contains(key)) << key;
    const JsonArray& recent = data.at("recent").as_array();
    ASSERT_EQ(recent.size(), 3u);
    EXPECT_EQ(recent[0].at("id"), "req_live");
    EXPECT_TRUE(recent[0].at("finish").is_null());
    EXPECT_EQ(recent[1].at("finish"), "error");
    EXPECT_DOUBLE_EQ(recent[2].at("prefill_s").as_double(), 0.5);
    EXPECT_EQ(data.at("errors").as_array().at(0).at("message"), "the device failed");
    EXPECT_EQ(data.at("kv").at("used").as_int64(), 25000);
    EXPECT_EQ(data.at("cache").at("misses").at("diverged").as_int64(), 4);
}

// Risk: a log line that holds text of a request, or cannot be read by machines.
TEST(Metrics, LogLines) {
    const auto line = parse_json(facts_json_line(finished()), "line");
    ASSERT_TRUE(line.ok());
    EXPECT_EQ(line.value().at("ttft_s").as_double(), 0.6);
    EXPECT_EQ(line.value().at("miss"), "diverged");
    EXPECT_EQ(facts_text_line(finished()),
              "POST /v1/chat/completions 200 · 1.70 s · prompt 10 (4 cached, diverged) · 11 tokens · first "
              "after 0.60 s "
              "· 10.0 tok/s · stop · req_1");
}

// A service whose answers the test speaks.
class SpokenService final : public Service {
  public:
    const ModelCard& card() const override { return card_; }
    const Tokenizer& tokenizer() const override { std::abort(); }
    ApiResult<std::shared_ptr<Prepared>> prepare(const ChatRequest& request) override {
        salts.push_back(request.cache_salt);
        return std::make_shared<Prepared>();
    }
    ApiResult<std::shared_ptr<Prepared>> prepare(const TextRequest& request) override {
        salts.push_back(request.cache_salt);
        return std::make_shared<Prepared>();
    }
    ApiResult<std::string> render(const ChatRequest&) override { return ApiError{}; }
    ApiResult<std::shared_ptr<RunningAnswer>> start(std::shared_ptr<Prepared>, std::string,
                                                    AnswerSink sink) override {
        if (full) return ApiError{429, "", "", "full"};
        speak = std::move(sink);
        return std::shared_ptr<RunningAnswer>();
    }
    AnswerSink speak;
    bool full = false;
    std::vector<std::string> salts;

  private:
    ModelCard card_;
};

// Risk: a request is told before its answer is over, twice, or never; tokens of several answers are counted
// wrongly.
TEST(ObservedService, ARequestIsToldOnceWhenAllOfItIsOver) {
    Metrics metrics(figures);
    SpokenService spoken;
    const auto observed = observe(spoken, metrics);
    std::vector<RequestFacts> told;
    auto trace = std::make_shared<RequestTrace>([&](const RequestFacts& facts) { told.push_back(facts); });
    {
        const RequestTrace::Scope scope(trace);
        ASSERT_TRUE(observed->start(nullptr, "id", [](const AnswerEvent&) {}).ok());
    }
    trace.reset();  // the client has left
    using Kind = AnswerEvent::Kind;
    AnswerEvent started{.kind = Kind::started};
    started.usage = {.prompt_tokens = 20, .cached_tokens = 16};
    started.cache_miss = "diverged";
    spoken.speak(started);
    spoken.speak({.kind = Kind::content, .text = "a"});
    spoken.speak({.kind = Kind::content, .text = "b"});
    AnswerEvent finished{.kind = Kind::finished};
    finished.usage = {.completion_tokens = 5};
    spoken.speak(finished);
    finished.choice = 1;
    finished.finish = AnswerFinish::cancelled;
    finished.usage = {.completion_tokens = 9};
    spoken.speak(finished);
    EXPECT_TRUE(told.empty());
    spoken.speak = nullptr;
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].prompt_tokens, 20);
    EXPECT_EQ(told[0].cached_tokens, 16);
    EXPECT_EQ(told[0].tokens, 9);
    EXPECT_EQ(told[0].miss, "diverged");
    EXPECT_EQ(told[0].finish, "cancelled");
    EXPECT_GE(told[0].first_token_s, told[0].queue_s);
    EXPECT_GE(told[0].last_token_s, told[0].first_token_s);
}

// Risk: by the speed of an answer one tenant learns what another one has asked.
TEST(ObservedService, RequestsOfDifferentKeysShareNoCache) {
    Metrics metrics(figures);
    SpokenService spoken;
    const auto observed = observe(spoken, metrics);
    for (const char* key : {"", "key-1", "key-2"}) {
        const auto trace = std::make_shared<RequestTrace>(RequestTrace::Told());
        trace->note([&](RequestFacts& facts) { facts.key = key; });
        const RequestTrace::Scope scope(trace);
        ChatRequest chat;
        chat.cache_salt = "mine";
        ASSERT_TRUE(observed->prepare(chat).ok());
        ASSERT_TRUE(observed->prepare(TextRequest{}).ok());
    }
    EXPECT_EQ(spoken.salts,
              (std::vector<std::string>{"mine", "", "key-1\nmine", "key-1\n", "key-2\nmine", "key-2\n"}));
}

}  // namespace
}  // namespace sparkinfer
