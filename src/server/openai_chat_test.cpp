// openai_chat_test.cpp — requests of /v1/chat/completions as canonical ones.
#include "server/openai_chat.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

ApiResult<ChatCall> parse(const std::string& text) { return parse_chat(parse_json(text, "test").value()); }

// A request with these further fields.
ApiResult<ChatCall> parse_with(const std::string& fields) {
    return parse(R"({"messages":[{"role":"user","content":"hi"}])" + (fields.empty() ? "" : "," + fields) +
                 "}");
}
ChatRequest request_with(const std::string& fields) {
    const ApiResult<ChatCall> call = parse_with(fields);
    EXPECT_TRUE(call.ok()) << fields << ": " << (call.ok() ? "" : call.error().message);
    return call.ok() ? call.value().request : ChatRequest{};
}
std::vector<ChatMessage> messages(const std::string& json) {
    const ApiResult<ChatCall> call = parse(R"({"messages":)" + json + "}");
    EXPECT_TRUE(call.ok()) << (call.ok() ? "" : call.error().message);
    return call.ok() ? call.value().request.messages : std::vector<ChatMessage>{};
}
constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"ls","description":"lists","parameters":{"type":"object"}}},
                {"type":"function","function":{"name":"now","strict":true}}])";

TEST(OpenaiChat, ContentOfEveryKind) {
    // Risk: an agent's way to send text (parts, null, empty) loses text or is refused.
    const auto m = messages(
        R"([{"role":"system","content":"s"},{"role":"developer","content":[{"type":"text","text":"d"}]},
        {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"},"c"]},
        {"role":"assistant","content":null,"reasoning_content":"r",
         "tool_calls":[{"id":"call_1","type":"function","function":{"name":"ls","arguments":"{\"p\": 1}"}},
                       {"id":"call_2","function":{"name":"now","arguments":{"b":1,"a":[2]}}},
                       {"id":"call_3","type":"function","function":{"name":"now"}}]},
        {"role":"tool","tool_call_id":"call_1","content":"x"},{"role":"assistant","content":""},
        {"role":"assistant","content":[{"type":"text","text":"t"},{"type":"refusal","refusal":"u"}],"name":"bob"}])");
    ASSERT_EQ(m.size(), 7u);
    EXPECT_EQ(m[0].role, Role::system);
    EXPECT_EQ(m[1].role, Role::system);
    EXPECT_EQ(m[1].content, "d");
    EXPECT_EQ(m[2].content, "abc");
    EXPECT_EQ(m[3].content, "");
    EXPECT_EQ(m[3].reasoning, "r");
    ASSERT_EQ(m[3].calls.size(), 3u);
    EXPECT_EQ(m[3].calls[0].id, "call_1");
    EXPECT_EQ(m[3].calls[0].arguments, R"({"p": 1})") << "the client's text stays as it is";
    EXPECT_EQ(m[3].calls[1].arguments, R"({"b":1,"a":[2]})") << "the order of keys too";
    EXPECT_EQ(m[3].calls[2].arguments, "");
    EXPECT_EQ(m[4].role, Role::tool);
    EXPECT_EQ(m[4].call_id, "call_1");
    EXPECT_FALSE(m[5].reasoning.has_value());
    EXPECT_EQ(m[6].content, "tu");
    const auto as_string = messages(R"([{"role":"user","content":"same"}])");
    const auto as_part =
        messages(R"([{"role":"user","content":[{"type":"text","text":"same","cache_control":{}}]}])");
    EXPECT_EQ(as_string[0].content, as_part[0].content) << "the same text must give the same prompt";
}

TEST(OpenaiChat, InvalidArgumentsInHistoryAreKept) {
    // Risk: a call that was cut by the length limit makes every later request of its conversation fail.
    const auto m = messages(R"([{"role":"assistant","tool_calls":[{"id":"c","type":"function",
        "function":{"name":"ls","arguments":"{\"path\": \"/a"}}]},{"role":"user","content":"go on"}])");
    EXPECT_EQ(m[0].calls[0].arguments, R"({"path": "/a)");
}

TEST(OpenaiChat, ParametersInEverySpelling) {
    // Risk: a parameter is taken for another one, or a client's spelling of it has no effect.
    const ChatRequest r = request_with(
        R"("model":"m","temperature":0,"top_p":0.5,"min_p":0.1,"top_k":-1,"presence_penalty":-2,
           "frequency_penalty":2,"repetition_penalty":1.1,"seed":7,"stop":["a","b"],"stop_token_ids":[3,4],
           "max_tokens":5,"max_completion_tokens":9,"min_tokens":2,"ignore_eos":true,"n":3,"logprobs":true,
           "top_logprobs":4,"logit_bias":{"17":-100,"5":2.5},"cache_salt":"s","parallel_tool_calls":false,
           "user":"u","store":false,"metadata":{"a":1},"unheard_of":[1])");
    const AnswerParams& p = r.params;
    EXPECT_EQ(r.model, "m");
    EXPECT_EQ(p.temperature, 0.0);
    EXPECT_EQ(p.top_p, 0.5);
    EXPECT_EQ(p.min_p, 0.1);
    EXPECT_EQ(p.top_k, 0);
    EXPECT_EQ(p.presence_penalty, -2.0);
    EXPECT_EQ(p.frequency_penalty, 2.0);
    EXPECT_EQ(p.repeat_penalty, 1.1);
    EXPECT_EQ(p.repeat_last_n, -1);
    EXPECT_EQ(p.seed, 7u);
    EXPECT_EQ(p.stop, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(p.stop_token_ids, (std::vector<int64_t>{3, 4}));
    EXPECT_EQ(p.max_tokens, 9);
    EXPECT_EQ(p.min_tokens, 2);
    EXPECT_TRUE(p.ignore_eos);
    EXPECT_EQ(p.n, 3);
    EXPECT_EQ(p.logprobs, 4);
    EXPECT_EQ(p.logit_bias, (std::vector<std::pair<int64_t, double>>{{17, -100}, {5, 2.5}}));
    EXPECT_EQ(r.cache_salt, "s");
    EXPECT_FALSE(r.parallel_tool_calls);
    EXPECT_EQ(request_with(R"("stop":"one")").params.stop, (std::vector<std::string>{"one"}));
    EXPECT_EQ(request_with(R"("repeat_penalty":1.2,"repeat_last_n":32)").params.repeat_last_n, 32);
    EXPECT_EQ(request_with(R"("n_predict":-1)").params.max_tokens, std::nullopt);
    EXPECT_EQ(request_with(R"("n_predict":12)").params.max_tokens, 12);
    EXPECT_EQ(request_with(R"("seed":-1)").params.seed, std::nullopt);
    EXPECT_EQ(request_with(R"("seed":18446744073709551615)").params.seed, UINT64_MAX);
    EXPECT_EQ(request_with(R"("max_tokens":16.0)").params.max_tokens, 16);
    EXPECT_EQ(request_with(R"("logprobs":true)").params.logprobs, 0);
    EXPECT_GT(request_with(R"("top_p":0)").params.top_p, 0.0);
    const ChatRequest none = request_with("");
    EXPECT_EQ(none.params.max_tokens, std::nullopt) << "no small default: answers would be cut";
    EXPECT_EQ(none.params.logprobs, -1);
    EXPECT_TRUE(none.parallel_tool_calls);
    EXPECT_TRUE(none.add_generation_prompt);
    EXPECT_NE(request_with(R"("cache_prompt":false)").cache_salt,
              request_with(R"("cache_prompt":false)").cache_salt);
    EXPECT_EQ(request_with(R"("cache_prompt":true,"prompt_cache_key":"k")").cache_salt, "");
}

TEST(OpenaiChat, NullMeansMissing) {
    // Risk: SDKs that send every optional field as null are refused.
    const ChatRequest r = request_with(
        R"("temperature":null,"stop":null,"tools":null,"tool_choice":null,"response_format":null,"n":null,
           "stream":null,"stream_options":null,"logit_bias":null,"seed":null,"functions":null,"max_tokens":null)");
    EXPECT_EQ(r.params.n, 1);
    EXPECT_TRUE(r.tools.empty());
}

TEST(OpenaiChat, ToolsAndTheirChoice) {
    // Risk: a model is offered other tools than the client has, or is not held to the choice.
    using Kind = ToolChoice::Kind;
    const std::string tools = kTools;
    const ChatRequest r = request_with(tools);
    ASSERT_EQ(r.tools.size(), 2u);
    EXPECT_EQ(r.tools[0].name, "ls");
    EXPECT_EQ(r.tools[0].description, "lists");
    EXPECT_FALSE(r.tools[0].strict);
    EXPECT_TRUE(r.tools[1].strict);
    EXPECT_EQ(to_json(r.tools[1].parameters), R"({"type":"object","properties":{}})");
    EXPECT_EQ(r.tool_choice.kind, Kind::automatic);
    EXPECT_EQ(request_with(tools + R"(,"tool_choice":"none")").tool_choice.kind, Kind::none);
    EXPECT_EQ(request_with(tools + R"(,"tool_choice":"required")").tool_choice.kind, Kind::required);
    EXPECT_EQ(request_with(tools + R"(,"tool_choice":{"type":"none"})").tool_choice.kind, Kind::none);
    const ToolChoice named =
        request_with(tools + R"(,"tool_choice":{"type":"function","function":{"name":"now"}})").tool_choice;
    EXPECT_EQ(named.kind, Kind::named);
    EXPECT_EQ(named.name, "now");
}

TEST(OpenaiChat, FormatsInEverySpelling) {
    // Risk: a constraint is dropped and the answer comes unconstrained.
    using Kind = ResponseFormat::Kind;
    const auto format = [](const std::string& fields) { return request_with(fields).format; };
    EXPECT_EQ(format("").kind, Kind::text);
    EXPECT_EQ(format(R"("response_format":{"type":"text"})").kind, Kind::text);
    EXPECT_EQ(format(R"("response_format":{"type":"json_object"})").kind, Kind::json_object);
    for (
        const char* fields :
        {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"null"}}})",
         R"("response_format":{"type":"json_object","schema":{"type":"null"}})",
         R"("json_schema":{"type":"null"})", R"("guided_json":{"type":"null"})",
         R"("guided_json":"{\"type\":\"null\"}")", R"("structured_outputs":{"json":{"type":"null"}})"}) {
        EXPECT_EQ(format(fields).kind, Kind::json_schema) << fields;
        EXPECT_EQ(to_json(format(fields).schema), R"({"type":"null"})") << fields;
    }
    EXPECT_EQ(format(R"("guided_regex":"a+")").pattern, "a+");
    EXPECT_EQ(format(R"("guided_regex":"a+")").kind, Kind::regex);
    EXPECT_EQ(format(R"("structured_outputs":{"regex":"a+"})").kind, Kind::regex);
    EXPECT_EQ(format(R"("guided_choice":["a","b"])").choices, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(format(R"("guided_grammar":"start: \"a\"")").kind, Kind::lark);
    EXPECT_EQ(format(R"("structured_outputs":{"json_object":true})").kind, Kind::json_object);
}

TEST(OpenaiChat, ThinkingInEverySpelling) {
    // Risk: a switch for reasoning has no effect, and all the answer is reasoning.
    const auto thinking = [](const std::string& fields) { return request_with(fields).thinking; };
    EXPECT_EQ(thinking("").enabled, std::nullopt);
    for (const char* off :
         {R"("enable_thinking":false)", R"("chat_template_kwargs":{"enable_thinking":false})",
          R"("reasoning_effort":"none")", R"("thinking":{"type":"disabled"})",
          R"("reasoning":{"enabled":false})", R"("reasoning":{"effort":"none"})"})
        EXPECT_EQ(thinking(off).enabled, false) << off;
    for (const char* on : {R"("enable_thinking":true)", R"("thinking":{"type":"enabled","budget_tokens":5})"})
        EXPECT_EQ(thinking(on).enabled, true) << on;
    for (const char* five :
         {R"("thinking_budget":5)", R"("thinking_budget_tokens":5)", R"("reasoning_budget":5)",
          R"("reasoning":{"max_tokens":5})", R"("thinking":{"type":"enabled","budget_tokens":5})"})
        EXPECT_EQ(thinking(five).budget, 5) << five;
    EXPECT_EQ(thinking(R"("reasoning_budget":-1)").budget, std::nullopt);
    EXPECT_EQ(thinking(R"("reasoning_effort":"low")").effort, "low");
    const ChatRequest r = request_with(R"("chat_template_kwargs":{"enable_thinking":true,"k":[1]})");
    EXPECT_EQ(to_json(r.template_kwargs), R"({"k":[1]})");
    EXPECT_FALSE(parse_with(R"("include_reasoning":false)").value().include_reasoning);
    EXPECT_FALSE(parse_with(R"("reasoning":{"exclude":true})").value().include_reasoning);
    EXPECT_TRUE(parse_with("").value().include_reasoning);
}

TEST(OpenaiChat, StreamOptionsAndContinuation) {
    // Risk: usage is not sent although it was asked for; a prefilled answer is begun anew.
    const auto stream = [](const std::string& fields) { return parse_with(fields).value().stream; };
    EXPECT_FALSE(stream("").stream);
    EXPECT_FALSE(stream(R"("stream":true)").include_usage);
    EXPECT_TRUE(stream(R"("stream":true,"stream_options":{"include_usage":true})").include_usage);
    EXPECT_TRUE(stream(R"("stream":true,"stream_options":{"continuous_usage_stats":true})").include_usage);
    const auto call = parse(R"({"continue_final_message":true,"add_generation_prompt":false,
        "messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
    ASSERT_TRUE(call.ok());
    EXPECT_TRUE(call.value().request.continue_final_message);
    EXPECT_FALSE(call.value().request.add_generation_prompt);
}

}  // namespace
}  // namespace sparkinfer
