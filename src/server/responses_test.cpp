#include "server/responses.h"

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
std::optional<JsonObject> nothing_stored(const std::string&) { return std::nullopt; }
ResponsesRequest request(const Json& body) {
    auto parsed = parse_responses(body, nothing_stored);
    EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
    return parsed.ok() ? std::move(parsed).value() : ResponsesRequest{};
}
ResponsesRequest with_input(const std::string& items) {
    return request(json_of(R"({"model":"m","input":)" + items + "}"));
}
std::string refusal(const std::string& rest) {
    const auto parsed =
        parse_responses(json_of(R"({"model":"m","input":"hi",)" + rest + "}"), nothing_stored);
    if (parsed.ok()) return "nothing";
    EXPECT_EQ(parsed.error().status, 400);
    EXPECT_NE(parsed.error().message.find(parsed.error().param), std::string::npos)
        << "the sentence names it";
    return parsed.error().message;
}

ResponsesAnswer::Head head() {
    const ResponsesRequest asked = request(json_of(
        R"({"model":"m","input":"hi","include":["reasoning.encrypted_content"],"tools":[{"type":"function",)"
        R"("name":"read","parameters":{"type":"object"}},{"type":"namespace","name":"box","description":"d",)"
        R"("tools":[{"type":"function","name":"list","parameters":{"type":"object"}}]}]})"));
    return {.id = "resp_0",
            .model = "m",
            .created = 1700000000,
            .echo = asked.echo,
            .namespaces = asked.namespaces,
            .encrypted_reasoning = asked.encrypted_reasoning};
}
std::string streamed(const std::vector<AnswerEvent>& events) {
    ResponsesAnswer answer(head());
    std::string stream;
    for (const AnswerEvent& event : events) stream += answer.add(event);
    return stream;
}

const Usage kStart{120, 64, 0, 0}, kEnd{120, 64, 17, 5};

// Risk: the order or shape of events changes, and clients that are matched to it break.
TEST(Responses, StreamsAreFrozen) {
    std::vector<AnswerEvent> tools{answer_started(kStart), answer_reasoning("Look "),
                                   answer_reasoning("first."), answer_content("I read "),
                                   answer_content("it.")};
    add_call(tools, 0, "call_a", "read", R"({"path":"a.txt","lines":[1,2]})", 9);
    add_call(tools, 1, "call_b", "box__list", "{}", 9);
    tools.push_back(answer_finished(AnswerFinish::tool_calls, kEnd));
    expect_golden("responses/reasoning_text_tools.sse", streamed(tools));
    expect_golden("responses/text.sse",
                  streamed({answer_started(kStart), answer_content("Hi \xf0\x9f\x99\x82\n"),
                            answer_finished(AnswerFinish::stop, kEnd)}));
    expect_golden("responses/incomplete.sse", streamed({answer_started(kStart), answer_content("so long"),
                                                        answer_finished(AnswerFinish::length, kEnd)}));
    expect_golden("responses/nothing.sse",
                  streamed({answer_started(kStart), answer_finished(AnswerFinish::stop, kEnd)}));
    expect_golden("responses/failed.sse", streamed({answer_started(kStart), answer_content("on"),
                                                    answer_failed({500, "", "", "the device failed"})}));
    expect_golden(
        "responses/over_the_context.sse",
        streamed({answer_failed({400, "context_length_exceeded", "input", "too long", 0, 9000, 8192})}));
}

// A client's reading of a stream: checks each event against those before it, and gives the output that they
// add up to.
class Reader {
  public:
    void read(const std::vector<SseEvent>& events) {
        for (size_t i = 0; i < events.size(); ++i) {
            EXPECT_EQ(events[i].data.at("type"), Json(events[i].name));
            EXPECT_EQ(events[i].data.at("sequence_number"), Json(int64_t(i)));
            take(events[i].name, events[i].data);
        }
        EXPECT_EQ(events.front().name, "response.created");
        EXPECT_EQ(done_.size(), grown_.size()) << "an item is not done";
    }
    const JsonArray& done() const { return done_; }    // what output_item.done said
    const JsonArray& grown() const { return grown_; }  // what the deltas add up to
    const JsonObject& last() const { return last_; }   // the last response object

  private:
    void take(const std::string& name, const JsonObject& data) {
        if (const Json* response = json_find(data, "response")) {
            last_ = response->get_object();
            return;
        }
        const size_t index = size_t(data.at("output_index").as_int64());
        if (name == "response.output_item.added") {
            EXPECT_EQ(index, grown_.size()) << "an item is added twice, or one is left out";
            EXPECT_EQ(done_.size(), grown_.size()) << "two items at once";
            grown_.push_back(data.at("item"));
            return;
        }
        ASSERT_EQ(index + 1, grown_.size());
        JsonObject& item = grown_.back().as_object();
        if (name == "response.output_item.done") {
            EXPECT_EQ(data.at("item").as_object().at("id"), item.at("id"));
            done_.push_back(data.at("item"));
            item["status"] = data.at("item").as_object().at("status");
            return;
        }
        EXPECT_EQ(data.at("item_id"), item.at("id"));
        if (name == "response.content_part.added") {
            item.at("content").as_array().push_back(data.at("part"));
        } else if (name.ends_with("arguments.delta")) {
            item["arguments"] = std::string(item.at("arguments").as_string()) + text_of(data.at("delta"));
        } else if (name.ends_with("arguments.done")) {
            EXPECT_EQ(data.at("arguments"), item.at("arguments"));
        } else {
            JsonObject& part =
                item.at("content").as_array().at(size_t(data.at("content_index").as_int64())).as_object();
            if (name.ends_with("_text.delta"))
                part["text"] = text_of(part.at("text")) + text_of(data.at("delta"));
            if (name.ends_with("_text.done")) {
                EXPECT_EQ(data.at("text"), part.at("text"));
            }
            if (name == "response.content_part.done") {
                EXPECT_EQ(data.at("part"), Json(part));
            }
        }
    }
    static std::string text_of(const Json& json) { return std::string(json.as_string()); }

    JsonArray done_, grown_;
    JsonObject last_;
};

// Risk: the last object has other items or ids than the stream before it, or none.
TEST(Responses, TheObjectIsTheUnionOfTheStream) {
    std::mt19937 random(2);
    for (int i = 0; i < 500; ++i) {
        const std::vector<AnswerEvent> events = random_answer(random);
        ResponsesAnswer answer(head());
        std::string stream;
        for (const AnswerEvent& event : events) stream += answer.add(event);
        Reader reader;
        reader.read(parse_sse(stream));
        ASSERT_EQ(to_json(reader.last()), to_json(answer.response())) << stream;
        ASSERT_EQ(to_json(reader.last().at("output")), to_json(reader.done())) << stream;
        ASSERT_EQ(to_json(reader.grown()), to_json(reader.done())) << stream;
        ASSERT_FALSE(testing::Test::HasFailure()) << stream;
    }
}

// Risk: an answer that comes back as input is another message than the one that was sent: nothing of the
// cache fits any more.
TEST(Responses, OutputComesBackAsTheAnswerItWas) {
    std::mt19937 random(3);
    for (int i = 0; i < 300; ++i) {
        ResponsesAnswer answer(head());
        for (const AnswerEvent& event : random_answer(random)) answer.add(event);
        const JsonObject response = answer.response();
        if (response.at("output").as_array().empty()) continue;
        JsonObject body = {{"model", "m"}, {"input", response.at("output")}};
        const std::vector<ChatMessage> back = request(body).chat.messages;
        ASSERT_EQ(back.size(), 1u);
        EXPECT_EQ(to_json(message_json(back[0])), to_json(message_json(answer.message())));
    }
}

// Risk: a part of a request is lost, moved or put into the wrong field.
TEST(Responses, RequestsAreFrozen) {
    for (const std::string name : {"agent_second", "conversation", "parameters"}) {
        std::ifstream file(SPARKINFER_SOURCE_DIR "/tests/golden/server/responses/" + name + ".request.json");
        std::stringstream text;
        text << file.rdbuf();
        const ResponsesRequest parsed = request(json_of(text.str()));
        JsonObject canonical = chat_json(parsed.chat);
        canonical["instructions"] = parsed.instructions;
        canonical["previous"] = parsed.previous;
        canonical["stream"] = parsed.stream;
        canonical["store"] = parsed.store;
        canonical["encrypted_reasoning"] = parsed.encrypted_reasoning;
        canonical["echo"] = parsed.echo;
        JsonArray notices;
        for (const std::string& notice : parsed.notices) notices.emplace_back(notice);
        canonical["notices"] = std::move(notices);
        expect_golden("responses/" + name + ".canonical.json", to_json_pretty(canonical) + "\n");
    }
}

// Risk: items of two answers run together, or one answer falls apart, and the template prints other turns.
TEST(Responses, ItemsBecomeTheMessagesTheyWere) {
    const auto messages = [](const std::string& items) {
        std::string all;
        for (const ChatMessage& m : with_input(items).chat.messages) all += to_json(message_json(m)) + "\n";
        return all;
    };
    const std::string said =
        R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]})";
    const std::string thought =
        R"({"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]})";
    const std::string called = R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})";
    const std::string one =
        R"({"role":"assistant","content":"a","reasoning":"t","calls":[{"id":"c","name":"f","arguments":"{}"},)"
        R"({"id":"c","name":"f","arguments":"{}"}]})";
    EXPECT_EQ(messages("[" + thought + "," + said + "," + called + "," + called + "]"), one + "\n");
    // A second text or thought without ids is a second answer.
    EXPECT_EQ(messages("[" + said + "," + said + "]"),
              "{\"role\":\"assistant\",\"content\":\"a\"}\n{\"role\":\"assistant\",\"content\":\"a\"}\n");
    EXPECT_EQ(messages("[" + said + "," + thought + "]"),
              "{\"role\":\"assistant\",\"content\":\"a\"}\n"
              "{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"t\"}\n");
    // Ids say so where order does not.
    const auto text = [](const char* id) {
        return std::string(R"({"type":"message","role":"assistant","id":")") + id + R"(","content":"a"})";
    };
    EXPECT_EQ(messages("[" + text("msg_x_0") + "," + text("msg_x_1") + "," + text("msg_y_0") + "]"),
              "{\"role\":\"assistant\",\"content\":\"aa\",\"id\":\"resp_x\"}\n"
              "{\"role\":\"assistant\",\"content\":\"a\",\"id\":\"resp_y\"}\n");
    EXPECT_EQ(messages(R"([{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"resp_q"},)" +
                       said + "]"),
              "{\"role\":\"assistant\",\"content\":\"a\",\"id\":\"resp_q\"}\n");
}

// Risk: what cannot be understood is answered as if it had been.
TEST(Responses, RefusesWithTheField) {
    EXPECT_EQ(refusal(R"("truncation":"auto")"),
              "truncation is 'auto', expected disabled: nothing is cut from a prompt");
    EXPECT_EQ(refusal(R"("background":true)"),
              "background is true, expected false: answers are not made unattended");
    EXPECT_EQ(refusal(R"("conversation":"c")"),
              "conversation is not supported here; send the conversation in input, or previous_response_id");
    EXPECT_EQ(refusal(R"("tool_choice":"some")"),
              R"(tool_choice is "some", expected auto, none, required or an object)");
    EXPECT_EQ(refusal(R"("tool_choice":{"type":"web_search"})"),
              R"(tool_choice.type is "web_search", expected function or allowed_tools)");
    EXPECT_EQ(refusal(R"("text":{"format":{"type":"yaml"}})"),
              R"(text.format.type is "yaml", expected text, json_object or json_schema)");
    EXPECT_EQ(refusal(R"("max_output_tokens":0)").substr(0, 22), "max_output_tokens is 0");
    EXPECT_EQ(refusal(R"("tools":[{"type":"function"}])"), "tools[0].name is missing, expected a string");
    EXPECT_EQ(refusal(R"("tools":[{"type":"namespace","name":"n","tools":[{"name":"f"}]}])"),
              "tools[0].tools[0].type is missing, expected a string");
    const auto input = [](const std::string& items) {
        const auto parsed =
            parse_responses(json_of(R"({"model":"m","input":)" + items + "}"), nothing_stored);
        return parsed.ok() ? "nothing" : parsed.error().message;
    };
    EXPECT_EQ(input("5"), "input is a number, expected a string or an array of items");
    EXPECT_EQ(input(R"([{"role":"user","content":[{"type":"input_image"}]}])"),
              "input[0].content[0] is 'input_image', expected text: this server reads no other content");
    EXPECT_EQ(input(R"([{"type":"function_call_output","call_id":"c"}])"),
              "input[0].output is missing, expected a string or an array of parts");
    EXPECT_EQ(input(R"([{"type":"item_reference","id":"msg_1_0"}])"),
              "input[0].id is 'msg_1_0', which is not stored here");
}

// Risk: a namespace's function comes back under a name that the client does not know.
TEST(Responses, NamesOfNamespacesComeBack) {
    const auto output = [](const std::string& offered) {
        ResponsesAnswer answer(head());
        std::vector<AnswerEvent> events{answer_started(kStart)};
        add_call(events, 0, "c", offered, "{}", 9);
        for (const AnswerEvent& event : events) answer.add(event);
        const JsonObject item = answer.response().at("output").as_array().at(0).as_object();
        const Json* space = json_find(item, "namespace");
        return std::string(item.at("name").as_string()) + (space ? " of " + to_json(*space) : "");
    };
    EXPECT_EQ(output("box__list"), "list of \"box\"");
    EXPECT_EQ(output("read"), "read");
    const auto twice =
        request(json_of(R"({"model":"m","input":"x","tools":[{"type":"function","name":"a__b"},)"
                        R"({"type":"namespace","name":"a","tools":[{"type":"function","name":"b"}]}]})"));
    EXPECT_EQ(twice.chat.tools.size(), 1u);
    EXPECT_TRUE(twice.namespaces.empty()) << "the first function of that name is no namespace's";
    EXPECT_EQ(twice.notices.size(), 1u);
}

}  // namespace
}  // namespace sparkinfer
