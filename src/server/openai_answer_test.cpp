// openai_answer_test.cpp — what clients of OpenAI's endpoints get, byte for byte, and that streams and whole
// responses tell the same.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "server/openai_chat.h"
#include "server/openai_completions.h"

namespace sparkinfer {
namespace {

using Kind = AnswerEvent::Kind;
using Events = std::vector<AnswerEvent>;

// The text must be that of the file under tests/golden/server/openai. What came out is left in the build
// folder.
void expect_file(const std::string& name, const std::string& found) {
    std::ifstream file(SPARKINFER_SOURCE_DIR "/tests/golden/server/openai/" + name, std::ios::binary);
    std::stringstream golden;
    golden << file.rdbuf();
    if (file && golden.str() == found) return;
    const std::string path = SPARKINFER_BINARY_DIR "/openai-" + name;
    std::ofstream(path, std::ios::binary) << found;
    ADD_FAILURE() << "tests/golden/server/openai/" << name << " is not what came out, which is now in "
                  << path;
}

AnswerEvent event(Kind kind, std::string text = "", int32_t choice = 0) {
    AnswerEvent e{kind};
    e.text = std::move(text);
    e.choice = choice;
    return e;
}
AnswerEvent started(int32_t prompt, int32_t cached) {
    AnswerEvent e{Kind::started};
    e.usage = {prompt, cached, 0, 0};
    return e;
}
AnswerEvent finished(AnswerFinish finish, Usage usage, int32_t choice = 0, std::string stop = "") {
    AnswerEvent e{Kind::finished};
    e.finish = finish;
    e.usage = usage;
    e.choice = choice;
    e.stop = std::move(stop);
    return e;
}
void add_call(Events* events, int32_t call, const std::string& name, const std::vector<std::string>& pieces) {
    AnswerEvent begin = event(Kind::call_started, name);
    begin.call = call;
    begin.id = "call_" + std::to_string(call);
    events->push_back(begin);
    for (const std::string& piece : pieces) {
        events->push_back(event(Kind::call_arguments, piece));
        events->back().call = call;
    }
    events->push_back(event(Kind::call_finished));
    events->back().call = call;
}
TextLogprob logprob(int32_t id, std::string bytes, std::optional<float> value) {
    TextLogprob l{TokenId(id), bytes, value, {}, {}};
    if (!value) return l;
    l.top = {{TokenId(id), *value}, {TokenId(7), -3.5f}};
    l.top_bytes = {std::move(bytes), " other"};
    return l;
}

ChatHead chat_head() { return {"chatcmpl-1", 1700000000, "tiny", "fp_0"}; }
CompletionHead text_head() { return {"cmpl-1", 1700000000, "tiny", "fp_0"}; }

std::string told(AnswerWriter& writer, const Events& events) {
    std::string out;
    Usage usage;
    for (const AnswerEvent& e : events) {
        writer.write(e, &out);
        if (e.kind == Kind::finished) usage = e.usage;
    }
    writer.end(usage, &out);
    return out;
}
std::string streamed(const ChatHead& head, const Events& events) {
    ChatStream stream(head);
    return told(stream, events);
}
std::string collected(const ChatHead& head, const Events& events) {
    ChatCollector collector(head);
    return to_json_pretty(parse_json(told(collector, events), "answer").value()) + "\n";
}

Events text_answer() {
    return {started(11, 8), event(Kind::content, "Hel"), event(Kind::content, ""),
            event(Kind::content, "lo\n\"ü\""), finished(AnswerFinish::stop, {11, 8, 3, 0}, 0, "END")};
}

Events agent_answer() {
    Events events{started(30, 0), event(Kind::reasoning, "I should "), event(Kind::reasoning, "look."),
                  event(Kind::content, "Let me see.")};
    add_call(&events, 0, "read", {"{\"path\"", ": \"a.c\"}"});
    add_call(&events, 1, "now", {});
    events.push_back(finished(AnswerFinish::tool_calls, {30, 0, 25, 6}));
    return events;
}

Events logprob_answer() {
    Events events{started(5, 0), event(Kind::content, "a"), event(Kind::content, "b", 1)};
    events[1].logprobs = {logprob(3, "a", -0.1f)};
    events[2].logprobs = {logprob(4, "b", -INFINITY), logprob(5, "\xe2\x82", NAN)};
    events.push_back(event(Kind::content, "", 1));
    events.back().logprobs = {logprob(6, "\xac", 1e-9f)};
    events.push_back(finished(AnswerFinish::length, {5, 0, 3, 0}, 1));
    events.push_back(finished(AnswerFinish::stop, {5, 0, 4, 0}, 0));
    return events;
}

TEST(OpenaiAnswer, ChatSequences) {
    // Risk: an SDK or an agent does not understand a stream, or stops at it.
    expect_file("chat_text.sse", streamed(chat_head(), text_answer()));
    expect_file("chat_text.json", collected(chat_head(), text_answer()));
    ChatHead usage = chat_head();
    usage.stream = {true, true, false};
    expect_file("chat_tools_usage.sse", streamed(usage, agent_answer()));
    expect_file("chat_tools.json", collected(usage, agent_answer()));
    usage.stream.continuous_usage = true;
    expect_file("chat_continuous_usage.sse", streamed(usage, text_answer()));
    ChatHead logprobs = chat_head();
    logprobs.logprobs = true;
    expect_file("chat_logprobs_n2.sse", streamed(logprobs, logprob_answer()));
    expect_file("chat_logprobs_n2.json", collected(logprobs, logprob_answer()));
}

TEST(OpenaiAnswer, ChatErrorsEndTheStreamWithoutDone) {
    // Risk: an answer that failed half-way looks whole.
    ChatStream stream(chat_head());
    std::string out;
    stream.write(event(Kind::content, "Hel"), &out);
    stream.fail({500, "", "", "the device failed"}, &out);
    expect_file("chat_error.sse", out);
    EXPECT_EQ(out.find("[DONE]"), std::string::npos);
}

TEST(OpenaiAnswer, ReasoningThatIsNotWanted) {
    // Risk: reasoning is told although the client asked not to have it.
    ChatHead head = chat_head();
    head.include_reasoning = false;
    EXPECT_EQ(streamed(head, agent_answer()).find("look"), std::string::npos);
    EXPECT_EQ(collected(head, agent_answer()).find("look"), std::string::npos);
    EXPECT_NE(streamed(head, agent_answer()).find("Let me see"), std::string::npos);
}

TEST(OpenaiAnswer, FinishReasonsHoldTheirInvariant) {
    // Risk: "tool_calls" without a call, or calls that a client does not run because of "stop".
    ChatHead head = chat_head();
    EXPECT_STREQ(chat_finish_reason(AnswerFinish::tool_calls, false, head), "stop");
    EXPECT_STREQ(chat_finish_reason(AnswerFinish::stop, true, head), "tool_calls");
    EXPECT_STREQ(chat_finish_reason(AnswerFinish::tool_calls, true, head), "tool_calls");
    EXPECT_STREQ(chat_finish_reason(AnswerFinish::length, true, head), "length");
    head.calls_end_with_stop = true;  // a named tool_choice
    EXPECT_STREQ(chat_finish_reason(AnswerFinish::tool_calls, true, head), "stop");
    EXPECT_STREQ(chat_finish_reason(AnswerFinish::length, true, head), "length");
}

// A client's reading of a chat stream: the response it adds up to. Checks what every chunk must hold.
JsonObject read_chat_stream(const std::string& sse) {
    JsonObject head;
    std::map<int64_t, JsonObject> choices;
    Json usage = nullptr;
    std::istringstream lines(sse);
    std::string line, last;
    while (std::getline(lines, line)) {
        if (line.empty()) continue;
        EXPECT_EQ(line.rfind("data: ", 0), 0u) << line;
        last = line.substr(6);
        if (last == "[DONE]") continue;
        const JsonObject chunk = parse_json(last, "chunk").value().as_object();
        JsonObject same{{"id", chunk.at("id")},
                        {"created", chunk.at("created")},
                        {"model", chunk.at("model")},
                        {"system_fingerprint", chunk.at("system_fingerprint")}};
        if (head.empty()) head = same;
        EXPECT_EQ(head, same);
        if (const Json* u = json_find(chunk, "usage"); u && !u->is_null()) usage = *u;
        for (const Json& c : chunk.at("choices").as_array()) {
            const int64_t index = c.as_object().at("index").as_int64();
            JsonObject& choice = choices[index];
            const JsonObject& delta = c.as_object().at("delta").as_object();
            if (choice.empty()) {
                EXPECT_EQ(delta.at("role"), Json("assistant")) << "the first chunk of a choice has the role";
                choice = {{"index", index}, {"content", ""}, {"reasoning", ""}, {"calls", JsonArray()}};
            } else {
                EXPECT_EQ(json_find(delta, "role"), nullptr);
            }
            EXPECT_EQ(json_find(choice, "finish"), nullptr) << "something comes after the end of a choice";
            for (const auto& [key, to] :
                 {std::pair("content", "content"), std::pair("reasoning_content", "reasoning")})
                if (const Json* text = json_find(delta, key)) {
                    std::string joined(choice[to].as_string());
                    choice[to] = joined + std::string(text->as_string());
                }
            if (const Json* calls = json_find(delta, "tool_calls")) {
                JsonArray& have = choice["calls"].as_array();
                const JsonObject& call = calls->as_array().at(0).as_object();
                const JsonObject& function = call.at("function").as_object();
                if (const Json* id = json_find(call, "id")) {
                    EXPECT_EQ(call.at("index"), Json(have.size()));
                    have.push_back(JsonArray{*id, function.at("name"), ""});
                }
                JsonArray& mine = have.at(size_t(call.at("index").as_int64())).as_array();
                const std::string joined(mine[2].as_string());
                mine[2] = joined + std::string(function.at("arguments").as_string());
            }
            const Json& finish = c.as_object().at("finish_reason");
            if (!finish.is_null()) {
                choice["finish"] = finish;
                choice["stop"] = c.as_object().at("stop_reason");
            }
        }
    }
    EXPECT_EQ(last, "[DONE]");
    JsonArray all;
    for (auto& [index, choice] : choices) all.push_back(std::move(choice));
    return {{"head", std::move(head)}, {"choices", std::move(all)}, {"usage", std::move(usage)}};
}

// The whole response in the same form.
JsonObject read_chat_response(const std::string& json) {
    const JsonObject response = parse_json(json, "answer").value().as_object();
    JsonObject head{{"id", response.at("id")},
                    {"created", response.at("created")},
                    {"model", response.at("model")},
                    {"system_fingerprint", response.at("system_fingerprint")}};
    JsonArray all;
    for (const Json& c : response.at("choices").as_array()) {
        const JsonObject& choice = c.as_object();
        const JsonObject& message = choice.at("message").as_object();
        const Json* reasoning = json_find(message, "reasoning_content");
        JsonArray calls;
        if (const Json* list = json_find(message, "tool_calls"))
            for (const Json& call : list->as_array()) {
                const JsonObject& function = call.as_object().at("function").as_object();
                calls.push_back(
                    JsonArray{call.as_object().at("id"), function.at("name"), function.at("arguments")});
                EXPECT_TRUE(
                    parse_json(std::string_view(function.at("arguments").as_string()), "arguments").ok());
            }
        all.push_back(
            JsonObject{{"index", choice.at("index")},
                       {"content", message.at("content").is_null() ? Json("") : message.at("content")},
                       {"reasoning", reasoning ? *reasoning : Json("")},
                       {"calls", std::move(calls)},
                       {"finish", choice.at("finish_reason")},
                       {"stop", choice.at("stop_reason")}});
    }
    return {{"head", std::move(head)}, {"choices", std::move(all)}, {"usage", response.at("usage")}};
}

// Any answer of up to three choices whose events are interleaved.
Events random_answer(std::mt19937& random) {
    const auto below = [&](uint32_t n) { return int32_t(random() % n); };
    std::vector<Events> queues(random() % 3 + 1);
    for (int32_t c = 0; c < int32_t(queues.size()); ++c) {
        int32_t calls = 0;
        for (int32_t parts = below(6); parts > 0; --parts) {
            Events* q = &queues[size_t(c)];
            if (below(3) == 0)
                add_call(
                    q, calls++, "f",
                    below(3) ? std::vector<std::string>{"{\"a", "\":", "1}"} : std::vector<std::string>{});
            else
                q->push_back(event(below(2) ? Kind::content : Kind::reasoning, below(4) ? "t\n" : ""));
        }
        static constexpr AnswerFinish kEnds[] = {AnswerFinish::stop, AnswerFinish::length,
                                                 AnswerFinish::tool_calls};
        queues[size_t(c)].push_back(finished(kEnds[below(3)], {9, 3, 12, 4}, 0, below(2) ? "S" : ""));
        for (AnswerEvent& e : queues[size_t(c)]) e.choice = c;
    }
    Events events{started(9, 3)};
    std::vector<size_t> at(queues.size());
    while (true) {
        std::vector<size_t> left;
        for (size_t c = 0; c < at.size(); ++c)
            if (at[c] < queues[c].size()) left.push_back(c);
        if (left.empty()) break;
        const size_t c = left[random() % left.size()];
        events.push_back(queues[c][at[c]++]);
    }
    return events;
}

TEST(OpenaiAnswer, StreamAndResponseTellTheSame) {
    // Risk: text, calls, ends or usage depend on whether a client streams.
    std::mt19937 random(20261130);
    for (int i = 0; i < 500; ++i) {
        const Events events = random_answer(random);
        ChatHead head = chat_head();
        head.stream = {true, true, i % 2 == 0};
        head.calls_end_with_stop = i % 5 == 0;
        ChatCollector collector(head);
        const JsonObject stream = read_chat_stream(streamed(head, events));
        const JsonObject whole = read_chat_response(told(collector, events));
        ASSERT_EQ(to_json(stream), to_json(whole)) << "case " << i;
    }
}

TEST(OpenaiAnswer, CompletionSequences) {
    // Risk: as for chats; and a harness rates texts by columns that are shifted.
    const auto stream = [](const CompletionHead& head, const Events& events) {
        CompletionStream writer(head);
        return told(writer, events);
    };
    const auto whole = [](const CompletionHead& head, const Events& events) {
        CompletionCollector writer(head);
        return to_json_pretty(parse_json(told(writer, events), "answer").value()) + "\n";
    };
    expect_file("text.sse", stream(text_head(), text_answer()));
    expect_file("text.json", whole(text_head(), text_answer()));
    Events echo{started(3, 0), event(Kind::content, "The ü"), event(Kind::content, " end")};
    echo[1].logprobs = {logprob(1, "The", std::nullopt), logprob(2, " \xc3", -0.25f),
                        logprob(3, "\xbc", -1.5f)};
    echo[2].logprobs = {logprob(4, " end", -0.5f)};
    echo[2].logprobs[0].top = {{TokenId(9), -0.3f}};
    echo[2].logprobs[0].top_bytes = {" cat"};
    echo.push_back(finished(AnswerFinish::length, {3, 0, 1, 0}));
    CompletionHead head = text_head();
    head.logprobs = true;
    expect_file("text_echo_logprobs.json", whole(head, echo));
    head.stream = {true, true, false};
    expect_file("text_echo_logprobs.sse", stream(head, echo));
    CompletionStream failing(text_head());
    std::string out;
    failing.fail({503, "shutting_down", "", "the server is shutting down", 5}, &out);
    expect_file("text_error.sse", out);
}

TEST(OpenaiAnswer, LogprobsAreAlwaysNumbers) {
    // Risk: an infinity or a NaN makes JSON that clients cannot read.
    EXPECT_EQ(clamp_logprob(-INFINITY), -9999.0);
    EXPECT_EQ(clamp_logprob(INFINITY), 0.0);
    EXPECT_EQ(clamp_logprob(NAN), -9999.0);
    EXPECT_EQ(clamp_logprob(-0.1f), -0.1);
    EXPECT_EQ(clamp_logprob(-20000.f), -9999.0);
}

}  // namespace
}  // namespace sparkinfer
