// openai_test.cpp — the handlers of OpenAI's endpoints and the small ones around them, over a service that
// plays scripts.
#include "server/openai.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "server/endpoints.h"
#include "server/errors.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/test_service.h"

namespace sparkinfer {
namespace {

using Kind = AnswerEvent::Kind;
using Events = std::vector<AnswerEvent>;

AnswerEvent content(std::string text, int32_t choice = 0) {
    AnswerEvent e{Kind::content};
    e.text = std::move(text);
    e.choice = choice;
    return e;
}
AnswerEvent finished(int32_t tokens, int32_t choice = 0) {
    AnswerEvent e{Kind::finished};
    e.usage = {10, 4, tokens, 0};
    e.choice = choice;
    return e;
}
AnswerEvent started() {
    AnswerEvent e{Kind::started};
    e.usage = {10, 4, 0, 0};
    return e;
}
AnswerEvent failed(ApiError error) {
    AnswerEvent e{Kind::failed};
    e.error = std::move(error);
    return e;
}
Events hello() { return {started(), content("Hel"), content("lo"), finished(2)}; }

struct Served {
    FakeService service;
    std::shared_ptr<KeptResponder> client = std::make_shared<KeptResponder>();

    KeptResponder& post(const std::string& path, const std::string& body, ApiOptions options = {}) {
        client = std::make_shared<KeptResponder>();
        HttpRequest request = test_post(path, body);
        if (body.empty()) request.method = "GET";
        for (const Route& route : openai_routes(service, options)) {
            const size_t brace = route.path.find('{');
            const bool same = brace == std::string::npos ? route.path == path
                                                         : path.rfind(route.path.substr(0, brace), 0) == 0;
            if (!same || route.method != request.method) continue;
            route.handler(request, client);
            return *client;
        }
        ADD_FAILURE() << "no route for " << path;
        return *client;
    }
    KeptResponder& chat(const std::string& fields = "") {
        return post("/v1/chat/completions",
                    R"({"model":"tiny","messages":[{"role":"user","content":"hi"}])" + fields + "}");
    }
    Json json() const {
        const auto parsed = parse_json(client->body, "body");
        EXPECT_TRUE(parsed.ok()) << client->body;
        return parsed.ok() ? parsed.value() : Json();
    }
};

Json at(const Json& value, std::string_view pointer) {
    boost::system::error_code none;
    const Json* found = value.find_pointer(pointer, none);
    return found ? *found : Json("nothing there");
}
size_t count(const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t i = text.find(part); i != std::string::npos; i = text.find(part, i + 1)) n++;
    return n;
}

TEST(OpenaiHandlers, OneAnswerAndOneStream) {
    // Risk: an answer is sent twice, never ended, or its sink is kept for ever.
    Served s;
    s.service.scripts = {hello(), hello()};
    KeptResponder& whole = s.chat();
    EXPECT_EQ(whole.status, 200);
    EXPECT_EQ(whole.type, "application/json");
    EXPECT_EQ(at(s.json(), "/choices/0/message/content"), Json("Hello"));
    EXPECT_EQ(at(s.json(), "/usage/prompt_tokens_details/cached_tokens"), Json(4));
    EXPECT_EQ(at(s.json(), "/id"), Json(s.service.answer_ids[0])) << "replay finds the answer by its id";
    EXPECT_EQ(whole.misuse, 0);
    KeptResponder& stream = s.chat(R"(,"stream":true)");
    EXPECT_TRUE(stream.streamed && stream.finished);
    EXPECT_EQ(stream.type, "text/event-stream; charset=utf-8");
    EXPECT_EQ(stream.keep_alive, ": keep-alive\n\n");
    EXPECT_EQ(count(stream.body, "[DONE]"), 1u);
    EXPECT_EQ(stream.misuse, 0);
    EXPECT_NE(s.service.answer_ids[0], s.service.answer_ids[1]);
    EXPECT_EQ(s.service.held(), 0u);
}

TEST(OpenaiHandlers, TheHeadOfAStreamDoesNotWaitForTheFirstToken) {
    // Risk: no bytes during a long prefill, and the client gives up.
    Served s;
    s.service.later = true;
    s.service.scripts = {hello()};
    KeptResponder& stream = s.chat(R"(,"stream":true)");
    EXPECT_TRUE(stream.streamed);
    EXPECT_FALSE(stream.finished);
    s.service.play(2);
    EXPECT_EQ(count(stream.body, "data: "), 2u);
    EXPECT_EQ(count(stream.body, "Hel"), 1u);
    s.service.play();
    EXPECT_TRUE(stream.finished);
    EXPECT_EQ(stream.misuse, 0);
}

TEST(OpenaiHandlers, ClientsThatLeave) {
    // Risk: an answer nobody reads goes on and holds its slot.
    for (const char* fields : {"", R"(,"stream":true)"}) {
        Served s;
        s.service.later = true;
        s.service.scripts = {hello()};
        KeptResponder& client = s.chat(fields);
        s.service.play(2);
        client.leave();
        EXPECT_EQ(s.service.cancelled, 1);
        EXPECT_EQ(s.service.held(), 0u);
        EXPECT_EQ(count(client.body, "[DONE]"), 0u);
        EXPECT_LE(client.misuse, 0);
        s.service.play();
    }
    Served s;  // leaving after the end is no cancellation
    s.service.scripts = {hello()};
    s.chat().leave();
    EXPECT_EQ(s.service.cancelled, 0);
}

TEST(OpenaiHandlers, Failures) {
    // Risk: a failure looks like an answer, or a client does not know when to come again.
    for (const bool stream : {false, true}) {
        const std::string fields = stream ? R"(,"stream":true)" : "";
        Served s;
        s.service.no_start = ApiError{429, "", "", "the queue is full", 3};
        s.service.starts_allowed = 0;
        KeptResponder& full = s.chat(fields);
        EXPECT_EQ(full.status, 429);
        EXPECT_EQ(full.header("retry-after"), "3");
        EXPECT_EQ(at(s.json(), "/error/code"), Json("rate_limit_exceeded"));
        EXPECT_FALSE(full.streamed);

        Served early;  // before the head is out, a failure still is a status
        early.service.scripts = {{failed({503, "overloaded", "", "no memory", 1})}};
        EXPECT_EQ(early.chat(fields).status, 503);
        EXPECT_EQ(early.client->misuse, 0);

        Served late;
        late.service.later = true;
        late.service.scripts = {
            {started(), content("x"), failed({500, "", "", "the device failed"}), content("y")}};
        KeptResponder& half = late.chat(fields);
        late.service.play();
        EXPECT_TRUE(half.finished);
        EXPECT_EQ(half.misuse, 0);
        EXPECT_EQ(count(half.body, "[DONE]"), 0u);
        EXPECT_EQ(count(half.body, "\"error\""), 1u);
        EXPECT_EQ(half.body.find("\"y\""), std::string::npos);
        EXPECT_EQ(half.status, stream ? 200 : 500);
        EXPECT_EQ(half.body.find("req-1") != std::string::npos, !stream) << "the log is found by the id";
        EXPECT_EQ(late.service.held(), 0u);
    }
}

TEST(OpenaiHandlers, ContextOverflowInTheWordsOfAgents) {
    // Risk: an agent does not see that it must shorten its conversation.
    Served s;
    s.service.no_prepare = ApiError{400, "context_length_exceeded", "messages", "too long", 0, 5000, 4096};
    EXPECT_EQ(s.chat().status, 400);
    EXPECT_EQ(at(s.json(), "/error/code"), Json("context_length_exceeded"));
    EXPECT_EQ(at(s.json(), "/error/param"), Json("messages"));
    EXPECT_NE(s.client->body.find(
                  "This model's maximum context length is 4096 tokens. However, you requested 5000"),
              std::string::npos)
        << s.client->body;
}

TEST(OpenaiHandlers, ModelNames) {
    // Risk: a wrong model answers without a word, or the right one is not found.
    const auto status = [](const std::string& name, ApiOptions options = {}) {
        Served s;
        s.service.scripts = {hello()};
        return s
            .post("/v1/chat/completions",
                  R"({"model":)" + name + R"(,"messages":[{"role":"user","content":"hi"}]})", options)
            .status;
    };
    EXPECT_EQ(status(R"("tiny")"), 200);
    EXPECT_EQ(status(R"("claude")"), 200);
    EXPECT_EQ(status("null"), 200);
    EXPECT_EQ(status(R"("gpt-9")"), 404);
    EXPECT_EQ(status(R"("gpt-9")", {.any_model = true}), 200);
    Served s;
    s.post("/v1/completions", R"({"model":"gpt-9","prompt":"a"})");
    EXPECT_EQ(at(s.json(), "/error/code"), Json("model_not_found"));
    EXPECT_EQ(at(s.json(), "/error/message"),
              Json(R"(The model "gpt-9" does not exist; there is "tiny", "gpt-4o", "claude")"));
}

TEST(OpenaiHandlers, NamedToolChoiceEndsAsDocumented) {
    // Risk: clients that wait for "tool_calls" (or, as OpenAI does it, "stop") wait in vain.
    const auto finish = [](const std::string& choice, ApiOptions options) {
        Served s;
        AnswerEvent call{Kind::call_started};
        call.id = "call_1";
        call.text = "ls";
        AnswerEvent end = finished(5);
        end.finish = AnswerFinish::tool_calls;
        s.service.scripts = {{started(), call, AnswerEvent{Kind::call_finished}, end}};
        s.post(
            "/v1/chat/completions",
            R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"ls"}}],
                   "tool_choice":)" +
                choice + "}",
            options);
        return at(s.json(), "/choices/0/finish_reason");
    };
    const std::string named = R"({"type":"function","function":{"name":"ls"}})";
    EXPECT_EQ(finish(named, {}), Json("stop"));
    EXPECT_EQ(finish(named, {.named_tool_calls = true}), Json("tool_calls"));
    EXPECT_EQ(finish(R"("auto")", {}), Json("tool_calls"));
    EXPECT_EQ(finish(R"("required")", {}), Json("tool_calls"));
}

TEST(OpenaiHandlers, ManyPromptsKeepTheirOrder) {
    // Risk: answers of a list are told under the wrong index, or a failed one leaves the others running.
    Served s;
    s.service.later = true;
    s.service.scripts = {{started(), content("a0"), content("a1", 1), finished(1, 1), finished(2)},
                         {started(), content("b0"), content("b1", 1), finished(3), finished(4, 1)}};
    s.post("/v1/completions", R"({"prompt":["x","y"],"n":2})");
    s.service.play();
    for (int i = 0; i < 4; ++i)
        EXPECT_EQ(at(s.json(), "/choices/" + std::to_string(i) + "/index"), Json(i)) << s.client->body;
    EXPECT_EQ(at(s.json(), "/choices/1/text"), Json("a1"));
    EXPECT_EQ(at(s.json(), "/choices/2/text"), Json("b0"));
    EXPECT_EQ(at(s.json(), "/usage/prompt_tokens"), Json(20));
    EXPECT_EQ(at(s.json(), "/usage/completion_tokens"), Json(6)) << "the last usage of each request counts";

    Served full;
    full.service.later = true;
    full.service.starts_allowed = 1;
    full.service.no_start = ApiError{429, "", "", "the queue is full", 1};
    full.service.scripts = {hello()};
    EXPECT_EQ(full.post("/v1/completions", R"({"prompt":["x","y"],"stream":true})").status, 429);
    EXPECT_EQ(full.service.cancelled, 1);
    EXPECT_EQ(full.service.held(), 0u);
    EXPECT_EQ(full.client->misuse, 0);
}

TEST(OpenaiHandlers, CompletionPromptsOfEveryKind) {
    // Risk: token ids are taken for prompts, or several prompts for one.
    const auto parse = [](const std::string& prompt) {
        const auto call = parse_completion(
            parse_json(R"({"prompt":)" + prompt + R"(,"max_tokens":0,"echo":true,"logprobs":1})", "t")
                .value());
        EXPECT_TRUE(call.ok()) << (call.ok() ? "" : call.error().message);
        return call.value().requests;
    };
    EXPECT_EQ(std::get<std::string>(parse(R"("a")").at(0).prompt), "a");
    EXPECT_EQ(parse(R"(["a","b"])").size(), 2u);
    EXPECT_EQ(parse("[1,2,3]").size(), 1u);
    EXPECT_EQ(std::get<std::vector<TokenId>>(parse("[1,2,3]")[0].prompt).size(), 3u);
    const auto lists = parse("[[1,2],[3]]");
    ASSERT_EQ(lists.size(), 2u);
    EXPECT_EQ(raw(std::get<std::vector<TokenId>>(lists[1].prompt).at(0)), 3);
    EXPECT_TRUE(lists[0].echo && lists[0].prompt_logprobs);
    EXPECT_EQ(lists[0].params.max_tokens, 0);
    EXPECT_EQ(lists[0].params.logprobs, 1);
}

TEST(OpenaiHandlers, SmallEndpoints) {
    // Risk: an agent guesses the context, or counts tokens otherwise than the server.
    Served s;
    s.post("/v1/models", "");
    EXPECT_EQ(at(s.json(), "/data").as_array().size(), 3u);
    for (const char* key :
         {"max_model_len", "context_length", "context_window", "max_context_length", "meta/n_ctx"})
        EXPECT_EQ(at(s.json(), std::string("/data/0/") + key), Json(4096)) << key;
    EXPECT_EQ(at(s.json(), "/data/0/meta/n_ctx_train"), Json(8192));
    EXPECT_EQ(s.post("/v1/models/claude", "").status, 200);
    EXPECT_EQ(s.post("/v1/models/other", "").status, 404);
    s.post("/props", "");
    EXPECT_EQ(at(s.json(), "/default_generation_settings/n_ctx"), Json(4096));
    EXPECT_EQ(at(s.json(), "/total_slots"), Json(4));
    EXPECT_EQ(at(s.json(), "/chat_template"), Json("{{ x }}"));
    s.post("/apply-template", R"({"messages":[{"role":"user","content":"hi"}]})");
    EXPECT_EQ(at(s.json(), "/prompt"), Json("<prompt of 1>"));
    s.post("/tokenizer_info", "");
    EXPECT_EQ(at(s.json(), "/eos_token"), Json("<|im_end|>"));
}

TEST(OpenaiHandlers, TokensInBothSpellings) {
    // Risk: a client of llama.cpp or vLLM gets other tokens here, or cannot read them back.
    Served s;
    s.post("/tokenize", R"({"content":"hello w"})");
    const Json hello_ids = at(s.json(), "/tokens");
    EXPECT_EQ(at(s.json(), "/count"), Json(2));
    EXPECT_EQ(at(s.json(), "/max_model_len"), Json(4096));
    s.post("/tokenize", R"({"prompt":"hello w","add_special_tokens":false,"return_token_strs":true})");
    EXPECT_EQ(at(s.json(), "/tokens"), hello_ids);
    EXPECT_EQ(at(s.json(), "/token_strs"), (Json{"hello", " w"}));
    s.post("/detokenize", R"({"tokens":)" + to_json(hello_ids) + "}");
    EXPECT_EQ(at(s.json(), "/content"), Json("hello w"));
    EXPECT_EQ(at(s.json(), "/prompt"), Json("hello w"));
    s.post("/tokenize", R"({"content":"\u00e9","with_pieces":true})");
    EXPECT_EQ(at(s.json(), "/tokens/0/piece"), (Json{0xc3})) << "no whole character: as bytes";
    s.post("/tokenize", R"({"messages":[{"role":"user","content":"hello"}]})");
    EXPECT_EQ(at(s.json(), "/count"), Json(1));
    s.post("/tokenize", R"({"content":"<|im_end|>"})");
    EXPECT_EQ(at(s.json(), "/count"), Json(1));
    s.post("/tokenize", R"({"content":"<|im_end|>","parse_special":false})");
    EXPECT_GT(at(s.json(), "/count").as_int64(), 1);
    EXPECT_EQ(s.post("/detokenize", R"({"tokens":[999999]})").status, 400);
    EXPECT_EQ(at(s.json(), "/error/param"), Json("tokens[0]"));
    EXPECT_EQ(s.post("/tokenize", R"({})").status, 400);
}

// Every line of the file: path, request, then what it is answered with. A line whose answer changed is shown.
TEST(OpenaiHandlers, RefusalsAreFrozen) {
    // Risk: a bad request is accepted, or the sentence no longer names its field.
    const std::string name = "/tests/golden/server/openai/refusals.jsonl";
    std::ifstream file(SPARKINFER_SOURCE_DIR + name);
    ASSERT_TRUE(file) << name;
    std::string line, all;
    size_t lines = 0, same = 0;
    while (std::getline(file, line)) {
        const JsonObject golden = parse_json(line, "golden").value().as_object();
        const std::string path(golden.at("path").as_string());
        const Json& body = golden.at("body");
        Served s;
        s.post(path, body.is_string() ? std::string(body.as_string()) : to_json(body));
        JsonObject found{{"path", path}, {"body", body}, {"status", s.client->status}};
        found["error"] = at(s.json(), "/error");
        EXPECT_EQ(to_json(found), line);
        EXPECT_EQ(s.client->status / 100, 4) << line;
        all += to_json(found) + "\n";
        lines++;
        same += to_json(found) == line;
    }
    EXPECT_GT(lines, 60u);
    if (same != lines) std::ofstream(SPARKINFER_BINARY_DIR "/openai-refusals.jsonl") << all;
}

}  // namespace
}  // namespace sparkinfer
