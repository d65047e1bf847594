#include "server/anthropic.h"

#include <gtest/gtest.h>

#include "server/test_answers.h"
#include "server/test_requests.h"

namespace sparkinfer {
namespace {

Json json_of(const std::string& text) {
    auto json = parse_json(text, "test");
    EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().message);
    return json.ok() ? std::move(json).value() : Json(nullptr);
}
MessagesRequest request(const std::string& text) {
    auto parsed = parse_messages(json_of(text));
    EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
    return parsed.ok() ? std::move(parsed).value() : MessagesRequest{};
}
std::string refusal(const std::string& text) {
    const auto parsed = parse_messages(json_of(text));
    if (parsed.ok()) return "nothing";
    EXPECT_EQ(parsed.error().status, 400);
    EXPECT_NE(parsed.error().message.find(parsed.error().param), std::string::npos)
        << "the sentence names it";
    return parsed.error().message;
}
std::string streamed(const std::vector<AnswerEvent>& events, bool omit_thinking = false) {
    MessagesAnswer answer("msg_0", "m", omit_thinking);
    std::string stream;
    for (const AnswerEvent& event : events) stream += answer.add(event);
    return stream;
}

// A client's reading of a stream: the message that its events add up to.
JsonObject read_stream(const std::vector<SseEvent>& events) {
    JsonObject message;
    JsonArray* content = nullptr;
    std::vector<std::string> input;
    int open = -1, stopped = 0;
    for (const SseEvent& e : events) {
        EXPECT_EQ(e.data.at("type"), Json(e.name));
        if (e.name == "ping") continue;
        if (e.name == "message_start") {
            message = e.data.at("message").as_object();
            content = &message.at("content").as_array();
            continue;
        }
        EXPECT_NE(content, nullptr) << e.name << " before message_start";
        if (e.name == "content_block_start") {
            EXPECT_EQ(open, -1) << "two blocks at once";
            open = int(e.data.at("index").as_int64());
            EXPECT_EQ(size_t(open), content->size()) << "a block is started twice, or one is left out";
            content->push_back(e.data.at("content_block"));
            input.emplace_back();
        } else if (e.name == "content_block_delta") {
            EXPECT_EQ(e.data.at("index"), Json(open));
            JsonObject& block = content->back().as_object();
            const JsonObject& delta = e.data.at("delta").as_object();
            const std::string type(delta.at("type").as_string());
            const auto grow = [&](const char* key) {
                block[key] = std::string(block.at(key).as_string()) + std::string(delta.at(key).as_string());
            };
            if (type == "text_delta") grow("text");
            if (type == "thinking_delta") grow("thinking");
            if (type == "signature_delta") block["signature"] = delta.at("signature");
            if (type == "input_json_delta") input.back() += delta.at("partial_json").as_string();
        } else if (e.name == "content_block_stop") {
            EXPECT_EQ(e.data.at("index"), Json(open));
            open = -1;
            if (!input.back().empty()) content->back().as_object()["input"] = json_of(input.back());
        } else if (e.name == "message_delta") {
            EXPECT_EQ(open, -1);
            for (const auto& [key, value] : e.data.at("delta").as_object()) message[key] = value;
            message["usage"] = e.data.at("usage");
        } else if (e.name == "message_stop") {
            ++stopped;
        } else {
            ADD_FAILURE() << "unknown event " << e.name;
        }
    }
    EXPECT_EQ(stopped, 1);
    EXPECT_EQ(events.back().name, "message_stop");
    return message;
}

const Usage kStart{120, 64, 0, 0}, kEnd{120, 64, 17, 5};

// Risk: the order or shape of events changes, and clients that are matched to it break.
TEST(Messages, StreamsAreFrozen) {
    std::vector<AnswerEvent> tools{answer_started(kStart), answer_reasoning("Look "),
                                   answer_reasoning("first."), answer_content("I read "),
                                   answer_content("it.")};
    add_call(tools, 0, "call_a", "read", R"({"path":"a.txt","lines":[1,2]})", 9);
    add_call(tools, 1, "call_b", "list", "{}", 9);
    tools.push_back(answer_finished(AnswerFinish::tool_calls, kEnd));
    expect_golden("anthropic/thinking_text_tools.sse", streamed(tools));
    expect_golden("anthropic/thinking_omitted.sse", streamed(tools, true));
    expect_golden("anthropic/text.sse",
                  streamed({answer_started(kStart), answer_content("Hi \xf0\x9f\x99\x82\n"),
                            answer_finished(AnswerFinish::stop, kEnd)}));
    expect_golden("anthropic/stop_sequence.sse",
                  streamed({answer_started(kStart), answer_content("one"),
                            answer_finished(AnswerFinish::stop, kEnd, "END")}));
    expect_golden("anthropic/max_tokens.sse", streamed({answer_started(kStart), answer_reasoning("so long"),
                                                        answer_finished(AnswerFinish::length, kEnd)}));
    expect_golden("anthropic/nothing.sse",
                  streamed({answer_started(kStart), answer_finished(AnswerFinish::stop, kEnd)}));
    expect_golden("anthropic/failed.sse",
                  streamed({answer_started(kStart), answer_content("on"),
                            answer_failed({500, "internal_error", "", "the device failed"})}));
}

// Risk: the object and the stream of one answer differ, so a client's history depends on how it asked.
TEST(Messages, TheObjectIsTheUnionOfTheStream) {
    std::mt19937 random(1);
    for (int i = 0; i < 500; ++i) {
        const std::vector<AnswerEvent> events = random_answer(random);
        MessagesAnswer answer("msg_7", "m", i % 3 == 0);
        std::string stream;
        for (const AnswerEvent& event : events) stream += answer.add(event);
        ASSERT_EQ(to_json(read_stream(parse_sse(stream))), to_json(answer.message())) << stream;
        ASSERT_FALSE(testing::Test::HasFailure()) << stream;
    }
}

// Risk: a history that carries cache marks renders otherwise than the same one without: every turn of an
// agent is computed from its beginning.
TEST(Messages, CacheMarksAndBlocksChangeNothing) {
    const std::string head = R"({"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"},)";
    const auto late = [&](const std::string& content) {
        return to_json(chat_json(request(head + R"({"role":"system","content":)" + content + "}]}").chat));
    };
    const std::string plain = late(R"("be brief")");
    EXPECT_EQ(late(R"([{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}])"), plain);
    EXPECT_EQ(late(R"([{"type":"text","text":"be "},{"type":"text","text":"brief"}])"), plain);
    const auto top = [](const std::string& system) {
        return to_json(chat_json(
            request(R"({"model":"m","messages":[{"role":"user","content":"hi"}],"system":)" + system + "}")
                .chat));
    };
    EXPECT_EQ(
        top(R"([{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}])"),
        top(R"("ab")"));
}

// Risk: a part of a request is lost, moved or put into the wrong field.
TEST(Messages, RequestsAreFrozen) {
    for (const std::string name : {"agent_first", "agent_second", "conversation", "parameters"}) {
        std::ifstream file(SPARKINFER_SOURCE_DIR "/tests/golden/server/anthropic/" + name + ".request.json");
        std::stringstream text;
        text << file.rdbuf();
        const MessagesRequest parsed = request(text.str());
        JsonObject canonical = chat_json(parsed.chat);
        canonical["stream"] = parsed.stream;
        canonical["omit_thinking"] = parsed.omit_thinking;
        JsonArray notices;
        for (const std::string& notice : parsed.notices) notices.emplace_back(notice);
        canonical["notices"] = std::move(notices);
        expect_golden("anthropic/" + name + ".canonical.json", to_json_pretty(canonical) + "\n");
    }
}

// Risk: the second request of an agent does not begin as its first did.
TEST(Messages, ALaterTurnOnlyAdds) {
    const auto chat = [](const std::string& name) {
        std::ifstream file(SPARKINFER_SOURCE_DIR "/tests/golden/server/anthropic/" + name + ".request.json");
        std::stringstream text;
        text << file.rdbuf();
        return request(text.str()).chat;
    };
    const ChatRequest first = chat("agent_first"), second = chat("agent_second");
    ASSERT_GT(second.messages.size(), first.messages.size());
    for (size_t i = 0; i < first.messages.size(); ++i)
        EXPECT_EQ(to_json(message_json(first.messages[i])), to_json(message_json(second.messages[i]))) << i;
    EXPECT_EQ(to_json(chat_json(first).at("tools")), to_json(chat_json(second).at("tools")));
}

// Risk: what cannot be understood is answered as if it had been.
TEST(Messages, RefusesWithTheField) {
    const auto with = [](const std::string& rest) {
        return refusal(R"({"model":"m","messages":[{"role":"user","content":"hi"}],)" + rest + "}");
    };
    const auto content = [](const std::string& role, const std::string& blocks) {
        return refusal(R"({"model":"m","messages":[{"role":")" + role + R"(","content":)" + blocks + "}]}");
    };
    EXPECT_EQ(refusal("[]"), "the body is an array, expected an object");
    EXPECT_EQ(refusal(R"({"model":"m"})"), "messages is missing, expected an array");
    EXPECT_EQ(refusal(R"({"model":"m","messages":[]})"), "messages is empty, expected at least one message");
    EXPECT_EQ(content("robot", R"("x")"),
              "messages[0].role is \"robot\", expected user, assistant or system");
    EXPECT_EQ(content("user", "5"),
              "messages[0].content is a number, expected a string or an array of blocks");
    EXPECT_EQ(content("user", R"([{"type":"image","source":{}}])"),
              "messages[0].content[0] is an image, expected text: this server reads no other content");
    EXPECT_EQ(content("user", R"([{"type":"tool_result"}])"),
              "messages[0].content[0].tool_use_id is missing, expected a string");
    EXPECT_EQ(
        content("user", R"([{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}])"),
        "messages[0].content[0].content[0] is an image, expected text: this server reads no other content");
    EXPECT_EQ(content("assistant", R"([{"type":"tool_use","id":"a","name":"f","input":"x"}])"),
              "messages[0].content[0].input is a string, expected an object");
    EXPECT_EQ(with(R"("tools":[{"name":"f"}])"), "tools[0].input_schema is missing, expected an object");
    EXPECT_EQ(with(R"("tool_choice":{"type":"some"})"),
              "tool_choice.type is \"some\", expected auto, any, none or tool");
    EXPECT_EQ(with(R"("max_tokens":-1)").substr(0, 16), "max_tokens is -1");
    EXPECT_EQ(with(R"("thinking":{"type":"enabled","budget_tokens":1.5})").substr(0, 29),
              "thinking.budget_tokens is 1.5");
}

// Risk: reasoning that came from somewhere else is taken for an answer of this server.
TEST(Messages, OnlyOwnSignaturesNameAnAnswer) {
    const auto id = [](const std::string& signature) {
        return request(R"({"model":"m","messages":[{"role":"assistant","content":[{"type":"thinking",)"
                       R"("thinking":"x","signature":")" +
                       signature + R"("}]}]})")
            .chat.messages[0]
            .id;
    };
    EXPECT_EQ(id("msg_1"), "msg_1");
    EXPECT_EQ(id("EqQBCgIYAhIM"), "");
}

}  // namespace
}  // namespace sparkinfer
