// protocols_test.cpp — the handlers of messages and responses over a scripted service, and one conversation
// through all three protocols.
#include <gtest/gtest.h>

#include "server/anthropic.h"
#include "server/openai.h"
#include "server/responses.h"
#include "server/test_answers.h"
#include "server/test_requests.h"
#include "server/test_service.h"

namespace sparkinfer {
namespace {

// A service with the routes of all protocols before it.
struct Server {
    FakeService service;
    std::vector<Route> routes;
    std::string key;  // of the next requests

    Server() {
        routes = anthropic_routes(service, {});
        for (Route& route : responses_routes(service, {})) routes.push_back(std::move(route));
        routes.push_back(
            {.method = "POST", .path = "/v1/chat/completions", .handler = chat_completions(service, {})});
    }
    std::shared_ptr<KeptResponder> ask(const std::string& method, const std::string& path,
                                       const std::string& body = "") {
        HttpRequest request = test_post(path, body);
        request.method = method;
        request.key = key;
        auto responder = std::make_shared<KeptResponder>();
        for (const Route& route : routes) {
            const size_t open = route.path.find('{');
            const bool fits = open == std::string::npos ? path == route.path
                                                        : path.compare(0, open, route.path, 0, open) == 0;
            if (route.method != method || !fits) continue;
            route.handler(request, responder);
            EXPECT_TRUE(responder->finished || service.later) << path;
            EXPECT_EQ(responder->misuse, 0) << path;
            return responder;
        }
        ADD_FAILURE() << "no route for " << method << " " << path;
        return responder;
    }
    JsonObject json(const std::shared_ptr<KeptResponder>& answer) {
        const auto body = parse_json(answer->body, "body");
        EXPECT_TRUE(body.ok() && body.value().is_object()) << answer->body;
        return body.ok() && body.value().is_object() ? body.value().get_object() : JsonObject{};
    }
};

const Usage kStart{120, 64, 0, 0}, kEnd{120, 64, 17, 5};

std::vector<AnswerEvent> says(const std::string& text) {
    return {answer_started(kStart), answer_content(text), answer_finished(AnswerFinish::stop, kEnd)};
}

// Risk: the same conversation is another prompt in another protocol.
TEST(Protocols, OneConversationIsOneRequest) {
    const std::string schema =
        R"({"type":"object","properties":{"path":{"type":"string"}},"required":["path"]})";
    Server server;
    for (int i = 0; i < 3; ++i) server.service.scripts.push_back(says("ok"));
    server.ask("POST", "/v1/chat/completions",
               R"({"model":"tiny","messages":[{"role":"system","content":"Be brief."},
        {"role":"user","content":"Read a.txt"},
        {"role":"assistant","content":"I look.","reasoning_content":"Hm.","tool_calls":[{"id":"call_1","type":"function",
          "function":{"name":"read","arguments":"{\"path\":\"a.txt\"}"}}]},
        {"role":"tool","tool_call_id":"call_1","content":"42"},{"role":"user","content":"And?"}],
        "tools":[{"type":"function","function":{"name":"read","description":"Reads.","parameters":)" +
                   schema + R"(}}],
        "tool_choice":"required","parallel_tool_calls":false,"temperature":0.5,"top_p":0.9,"max_tokens":100,
        "response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"}}}})");
    server.ask("POST", "/v1/messages",
               R"({"model":"tiny","system":"Be brief.","messages":[
        {"role":"user","content":[{"type":"text","text":"Read "},{"type":"text","text":"a.txt"}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"x"},{"type":"text","text":"I look."},
          {"type":"tool_use","id":"call_1","name":"read","input":{"path":"a.txt"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":"42"},{"type":"text","text":"And?"}]}],
        "tools":[{"name":"read","description":"Reads.","input_schema":)" +
                   schema + R"(}],
        "tool_choice":{"type":"any","disable_parallel_tool_use":true},"temperature":0.5,"top_p":0.9,"max_tokens":100,
        "output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}})");
    server.ask("POST", "/v1/responses",
               R"({"model":"tiny","instructions":"Be brief.","input":[
        {"role":"user","content":"Read a.txt"},
        {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]},
        {"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
        {"type":"function_call","call_id":"call_1","name":"read","arguments":"{\"path\":\"a.txt\"}"},
        {"type":"function_call_output","call_id":"call_1","output":"42"},{"role":"user","content":"And?"}],
        "tools":[{"type":"function","name":"read","description":"Reads.","parameters":)" +
                   schema + R"(}],
        "tool_choice":"required","parallel_tool_calls":false,"temperature":0.5,"top_p":0.9,"max_output_tokens":100,
        "text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}}})");
    ASSERT_EQ(server.service.chats.size(), 3u);
    const std::string chat = to_json_pretty(chat_json(server.service.chats[0]));
    EXPECT_EQ(to_json_pretty(chat_json(server.service.chats[1])), chat) << "messages";
    EXPECT_EQ(to_json_pretty(chat_json(server.service.chats[2])), chat) << "responses";
}

// Risk: a client is told another count than it is charged, and shortens its conversation too late.
TEST(Protocols, CountedTokensAreThePrompts) {
    Server server;
    const std::string body =
        R"({"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"count me"}]})";
    server.service.scripts.push_back(
        {answer_started({8, 3, 0, 0}), answer_finished(AnswerFinish::stop, {8, 3, 1, 0})});
    const JsonObject usage = server.json(server.ask("POST", "/v1/messages", body)).at("usage").as_object();
    const JsonObject counted = server.json(server.ask("POST", "/v1/messages/count_tokens", body));
    EXPECT_EQ(counted.at("input_tokens").as_int64(), usage.at("input_tokens").as_int64() +
                                                         usage.at("cache_read_input_tokens").as_int64() +
                                                         usage.at("cache_creation_input_tokens").as_int64());
    server.service.no_prepare = ApiError{400, "context_length_exceeded", "messages", "long", 0, 9000, 4096};
    EXPECT_EQ(server.ask("POST", "/v1/messages/count_tokens", body)->body, R"({"input_tokens":9000})");
    server.service.no_prepare = bad_request("messages", "messages is odd");
    EXPECT_EQ(server.ask("POST", "/v1/messages/count_tokens", body)->status, 400);
}

// Risk: a stream of another shape than what the golden files show, or without keep-alives that count as
// events.
TEST(Protocols, MessagesAreAnswered) {
    Server server;
    const std::string body =
        R"({"model":"claude","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":)";
    server.service.scripts = {says("Hello"), says("Hello")};
    const auto whole = server.ask("POST", "/v1/messages", body + "false}");
    EXPECT_EQ(whole->status, 200);
    const JsonObject message = server.json(whole);
    EXPECT_EQ(message.at("model"), Json("tiny"));
    EXPECT_EQ(std::string(message.at("id").as_string()), server.service.answer_ids.at(0));
    const auto streamed = server.ask("POST", "/v1/messages", body + "true}");
    EXPECT_TRUE(streamed->streamed);
    EXPECT_EQ(streamed->keep_alive, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    const auto events = parse_sse(streamed->body);
    EXPECT_EQ(events.front().name, "message_start");
    EXPECT_EQ(events.back().name, "message_stop");
    EXPECT_EQ(server.ask("POST", "/api/event_logging/batch", "{}")->status, 200);
    EXPECT_EQ(server.service.held(), 0u);
}

// Risk: errors in the shape of another protocol, which clients do not read.
TEST(Protocols, ErrorsAreTheProtocols) {
    Server server;
    const std::string hi = R"("messages":[{"role":"user","content":"hi"}],"input":"hi"})";
    const auto unknown = server.ask("POST", "/v1/messages", R"({"model":"nobody",)" + hi);
    EXPECT_EQ(unknown->status, 404);
    EXPECT_EQ(server.json(unknown).at("error").as_object().at("type"), Json("not_found_error"));
    server.service.scripts = {says("hello")};
    EXPECT_EQ(server.ask("POST", "/v1/messages", R"({"model":"sparkinfer",)" + hi)->status, 200);
    server.service.no_prepare = ApiError{400, "context_length_exceeded", "messages", "long", 0, 9000, 4096};
    const auto over = server.ask("POST", "/v1/messages", R"({"model":"tiny",)" + hi);
    EXPECT_EQ(over->status, 400);
    EXPECT_NE(over->body.find("prompt is too long: 9000 tokens > 4096 maximum"), std::string::npos)
        << over->body;
    const auto plain = server.ask("POST", "/v1/responses", R"({"model":"tiny",)" + hi);
    EXPECT_EQ(plain->status, 400);
    EXPECT_EQ(server.json(plain).at("error").as_object().at("code"), Json("context_length_exceeded"));
    // In a stream, where agents of this protocol look for it.
    const auto stream = server.ask("POST", "/v1/responses", R"({"model":"tiny","stream":true,)" + hi);
    EXPECT_EQ(stream->status, 200);
    const auto events = parse_sse(stream->body);
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[1].name, "response.failed");
    const JsonObject error = events[1].data.at("response").as_object().at("error").as_object();
    EXPECT_EQ(error.at("code"), Json("context_length_exceeded"));
    EXPECT_NE(to_json(error).find("maximum context length is 4096 tokens"), std::string::npos)
        << to_json(error);
}

// Risk: an answer that goes on from another one sees something else than was said, or what was not to be
// kept.
TEST(Protocols, ResponsesGoOnFromStoredOnes) {
    Server server;
    server.key = "a";
    std::vector<AnswerEvent> calls{answer_started(kStart), answer_reasoning("Hm."),
                                   answer_content("I look.")};
    add_call(calls, 0, "call_1", "box__list", "{}", 9);
    calls.push_back(answer_finished(AnswerFinish::tool_calls, kEnd));
    server.service.scripts = {calls, says("done"), says("done")};
    const std::string tools =
        R"("tools":[{"type":"namespace","name":"box","tools":[{"type":"function","name":"list"}]}])";
    const JsonObject first = server.json(server.ask(
        "POST", "/v1/responses", R"({"model":"tiny","instructions":"first","input":"Look",)" + tools + "}"));
    const std::string id(first.at("id").as_string());
    EXPECT_EQ(to_json(first.at("output").as_array().at(2).as_object().at("namespace")), "\"box\"");
    const std::string next =
        R"({"model":"tiny","instructions":"second","previous_response_id":")" + id +
        R"(","input":[{"type":"function_call_output","call_id":"call_1","output":"a.txt"}],)";
    const JsonObject second = server.json(server.ask("POST", "/v1/responses", next + tools + "}"));
    std::string seen;
    for (const ChatMessage& m : server.service.chats.at(1).messages) seen += to_json(message_json(m)) + "\n";
    EXPECT_EQ(
        seen,
        "{\"role\":\"system\",\"content\":\"second\"}\n{\"role\":\"user\",\"content\":\"Look\"}\n"
        "{\"role\":\"assistant\",\"content\":\"I look.\",\"reasoning\":\"Hm.\",\"calls\":[{\"id\":\"call_1\","
        "\"name\":\"box__list\",\"arguments\":\"{}\"}],\"id\":\"" +
            id +
            "\"}\n"
            "{\"role\":\"tool\",\"content\":\"a.txt\",\"call_id\":\"call_1\"}\n");
    EXPECT_EQ(second.at("previous_response_id"), Json(id));

    // By reference to its items it is the same.
    std::string references;
    for (const Json& item : first.at("output").as_array())
        references += R"({"type":"item_reference","id":)" + to_json(item.as_object().at("id")) + "},";
    server.ask("POST", "/v1/responses",
               R"({"model":"tiny","input":[{"role":"user","content":"Look"},)" + references +
                   R"({"type":"function_call_output","call_id":"call_1","output":"a.txt"}]})");
    std::string again;
    for (const ChatMessage& m : server.service.chats.at(2).messages) again += to_json(message_json(m)) + "\n";
    EXPECT_EQ("{\"role\":\"system\",\"content\":\"second\"}\n" + again, seen);

    EXPECT_EQ(server.json(server.ask("GET", "/v1/responses/" + id)).at("output"), first.at("output"));
    server.key = "b";
    EXPECT_EQ(server.ask("GET", "/v1/responses/" + id)->status, 404) << "another key's";
    const auto foreign = server.ask("POST", "/v1/responses", next + tools + "}");
    EXPECT_EQ(foreign->status, 404);
    EXPECT_NE(foreign->body.find(id), std::string::npos) << "the sentence names the id";
    server.key = "a";
    EXPECT_EQ(server.ask("DELETE", "/v1/responses/" + id)->status, 200);
    EXPECT_EQ(server.ask("DELETE", "/v1/responses/" + id)->status, 404);
    EXPECT_EQ(server.ask("GET", "/v1/responses/" + id)->status, 404);
}

// Risk: what a client asked not to keep is kept; what has not ended well can be gone on from.
TEST(Protocols, OnlyWholeAnswersThatMayBeAreStored) {
    Server server;
    server.service.scripts = {
        says("a"), {answer_started(kStart), answer_failed({500, "", "", "no"})}, says("b")};
    const auto id_of = [&](const std::string& rest) {
        server.ask("POST", "/v1/responses", R"({"model":"tiny","input":"hi")" + rest + "}");
        return server.service.answer_ids.back();
    };
    EXPECT_EQ(server.ask("GET", "/v1/responses/" + id_of(R"(,"store":false)"))->status, 404);
    EXPECT_EQ(server.ask("GET", "/v1/responses/" + id_of(R"(,"stream":true)"))->status, 404);
    EXPECT_EQ(server.ask("GET", "/v1/responses/" + id_of(R"(,"stream":true)"))->status, 200);
}

}  // namespace
}  // namespace sparkinfer
