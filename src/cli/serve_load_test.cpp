// What a measured request says, what a run is summed up to, and sessions that grow.
#include "cli/serve_load.h"

#include <gtest/gtest.h>

#include "cli/serve_stats.h"
#include "cli/serve_trace.h"

namespace sparkinfer {
namespace {

TEST(AnswerStream, ReadsChatsAndCompletions) {
    // Risk: first tokens are timed at an empty first chunk, or calls and usage are lost.
    AnswerStream chat;
    EXPECT_FALSE(chat.take(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"));
    EXPECT_TRUE(chat.take(R"({"choices":[{"delta":{"reasoning_content":"why"}}]})"));
    EXPECT_TRUE(chat.take(R"({"choices":[{"delta":{"content":"yes"}}]})"));
    EXPECT_TRUE(chat.take(
        R"({"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":""}}]}}]})"));
    EXPECT_TRUE(
        chat.take(R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]})"));
    EXPECT_FALSE(chat.take(R"({"choices":[{"delta":{},"finish_reason":"tool_calls"}]})"));
    EXPECT_FALSE(chat.take(R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,)"
                           R"("prompt_tokens_details":{"cached_tokens":8}}})"));
    EXPECT_FALSE(chat.finished());
    EXPECT_FALSE(chat.take("[DONE]"));
    EXPECT_TRUE(chat.finished());
    LoadResult result;
    chat.count(result);
    EXPECT_EQ(std::tuple(result.prompt_tokens, result.cached_tokens, result.completion_tokens),
              std::tuple(9, 8, 4));
    EXPECT_EQ(to_json(chat.message()),
              R"({"role":"assistant","content":"yes","reasoning_content":"why","tool_calls":[{"id":"c1",)"
              R"("type":"function","function":{"name":"f","arguments":"{}"}}]})");

    AnswerStream text;
    EXPECT_TRUE(text.take(R"({"choices":[{"text":"a"}]})"));
    EXPECT_FALSE(text.take(R"({"error":{"message":"out of memory"}})"));
    EXPECT_EQ(text.error(), "out of memory");
    AnswerStream broken;
    EXPECT_FALSE(broken.take("{"));
    EXPECT_EQ(broken.error(), "an event is '{', expected a JSON object");
}

TEST(Quantile, IsBetweenSamplesInProportion) {
    // Risk: a p99 that is the maximum or lies outside of the samples.
    EXPECT_EQ(quantile({}, 0.5), 0);
    EXPECT_EQ(quantile({3}, 0.99), 3);
    EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
    EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.9), 9);
    EXPECT_EQ(quantile({1, 2, 3}, 1), 3);
}

TEST(ServeFields, AreOfTheRequestsThatWentWell) {
    // Risk: refusals that come back at once make a server look fast.
    LoadRun run{"2 clients", 2, 0, 10, 4, {}};
    run.results.push_back({.due_s = 1,
                           .first_s = 1.5,
                           .end_s = 3,
                           .gaps_s = {0.5, 1},
                           .prompt_tokens = 10,
                           .cached_tokens = 5,
                           .completion_tokens = 3});
    run.results.push_back({.due_s = 2,
                           .first_s = 2.1,
                           .end_s = 5,
                           .gaps_s = {0.25},
                           .prompt_tokens = 10,
                           .cached_tokens = 0,
                           .completion_tokens = 5});
    run.results.push_back({.due_s = 2, .first_s = 2, .end_s = 2, .error = "status 429: busy"});
    const JsonObject row = serve_fields(run);
    EXPECT_EQ(row.at("requests").as_uint64(), 3U);
    EXPECT_EQ(row.at("failed").as_int64(), 1);
    EXPECT_DOUBLE_EQ(row.at("seconds").as_double(), 4);
    EXPECT_DOUBLE_EQ(row.at("tokens_per_s").as_double(), 2);
    EXPECT_DOUBLE_EQ(row.at("cached_share").as_double(), 0.25);
    EXPECT_DOUBLE_EQ(row.at("ttft_ms").as_object().at("p50").as_double(), 300);
    EXPECT_DOUBLE_EQ(row.at("itl_ms").as_object().at("p50").as_double(), 500);
    EXPECT_DOUBLE_EQ(row.at("e2e_s").as_object().at("max").as_double(), 3);
    EXPECT_EQ(to_json(row.at("errors")), R"({"status 429: busy":1})");
    EXPECT_FALSE(row.contains("turns"));
}

// Risk: prompts, or clients that wait, count as decoding.
TEST(ServeFields, DecodeRateIsOfFullBatches) {
    LoadRun run{"2 clients", 2, 0, 4, 5, {}};
    // One answer with a token each 0.1 s from 1 s on; one from 1.2 s to 1.6 s whose pieces hold two tokens.
    run.results.push_back({.first_s = 1, .end_s = 2, .gaps_s = std::vector<double>(10, 0.1)});
    run.results.back().completion_tokens = 11;
    run.results.push_back({.first_s = 1.2, .end_s = 1.6, .gaps_s = {0.2, 0.2}});
    run.results.back().completion_tokens = 5;
    const auto rate = [&] { return serve_fields(run).at("batch_decode_tokens_per_s").as_double(); };
    // Both write for 0.4 s: four tokens of one and four of the other.
    EXPECT_NEAR(rate(), 20, 2.6);
    run.clients = 3;
    EXPECT_EQ(rate(), 0);
    run.clients = 1;
    EXPECT_NEAR(rate(), 14, 1e-6);
}

TEST(ReplayedSession, OnlyAppends) {
    // Risk: a replay that changes the prompt's beginning measures a cache that no agent meets.
    SessionTrace trace(3);
    trace[0].messages = {JsonObject{{"role", "user"}, {"content", "a"}}};
    trace[0].tools = JsonArray{};
    trace[1].messages = {JsonObject{{"role", "tool"}, {"content", "r"}}};
    trace[1].max_tokens = 7;
    trace[2].messages = {JsonObject{{"role", "assistant"}, {"content", "recorded"}},
                         JsonObject{{"role", "user"}, {"content", "b"}}};
    const LoadTarget target{"m", "", {}};
    ReplayedSession session(trace, target, 5);
    const auto body = [&] { return parse_json(session.request().body, "body").value().as_object(); };
    const JsonObject first = body();
    EXPECT_EQ(to_json(first.at("messages")), R"([{"role":"user","content":"a"}])");
    EXPECT_EQ(first.at("max_tokens").as_int64(), 5);
    const JsonObject call{{"id", "c1"}, {"type", "function"}};
    session.answered(JsonObject{{"role", "assistant"}, {"content", ""}, {"tool_calls", JsonArray{call}}});
    const JsonObject second = body();
    EXPECT_EQ(
        to_json(second.at("messages")),
        R"([{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":)"
        R"("function"}]},{"role":"tool","content":"r","tool_call_id":"c1"}])");
    EXPECT_EQ(second.at("max_tokens").as_int64(), 7);
    EXPECT_TRUE(second.contains("tools"));
    session.answered(JsonObject{{"role", "assistant"}, {"content", "live"}});
    const std::string third = to_json(body().at("messages"));
    EXPECT_TRUE(
        third.ends_with(R"({"role":"assistant","content":"recorded"},{"role":"user","content":"b"}])"))
        << third;
    EXPECT_TRUE(session.ended());
}

TEST(MadeTrace, GrowsByTurns) {
    // Risk: sessions that all say the same share one cache entry.
    const SessionTrace trace = made_trace(50, 3, 10, 1), other = made_trace(50, 3, 10, 2);
    ASSERT_EQ(trace.size(), 3U);
    EXPECT_EQ(trace[0].messages.size(), 2U);
    EXPECT_EQ(trace[1].messages.size(), 1U);
    EXPECT_NE(to_json(trace[0].messages), to_json(other[0].messages));
    EXPECT_NE(to_json(trace[1].messages), to_json(trace[2].messages));
}

TEST(CompletionRequest, HasExactlyTheTokens) {
    // Risk: the server's caches answer because prompts repeat.
    const LoadTarget target{"m", "", {5, 6, 7}};
    const JsonObject body = parse_json(completion_request(target, 20, 4, 1).body, "body").value().as_object();
    EXPECT_EQ(body.at("prompt").as_array().size(), 20U);
    EXPECT_EQ(body.at("max_tokens").as_int64(), 4);
    EXPECT_TRUE(body.at("ignore_eos").as_bool());
    EXPECT_NE(completion_request(target, 20, 4, 1).body, completion_request(target, 20, 4, 2).body);
}

}  // namespace
}  // namespace sparkinfer
