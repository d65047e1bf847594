// test_answers.h — scripted answers, streams taken apart again, and golden files, for the tests of protocols.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "core/json.h"
#include "server/chat.h"

namespace sparkinfer {

inline AnswerEvent answer_started(Usage usage) {
    return {.kind = AnswerEvent::Kind::started, .usage = usage};
}
inline AnswerEvent answer_reasoning(std::string text) {
    return {.kind = AnswerEvent::Kind::reasoning, .text = std::move(text)};
}
inline AnswerEvent answer_content(std::string text) {
    return {.kind = AnswerEvent::Kind::content, .text = std::move(text)};
}
inline AnswerEvent answer_failed(ApiError error) {
    return {.kind = AnswerEvent::Kind::failed, .error = std::move(error)};
}
inline AnswerEvent answer_finished(AnswerFinish finish, Usage usage, std::string stop = {}) {
    return {.kind = AnswerEvent::Kind::finished, .finish = finish, .stop = std::move(stop), .usage = usage};
}
// A call in pieces of about `piece` bytes, whole characters.
inline void add_call(std::vector<AnswerEvent>& to, int32_t call, const std::string& id,
                     const std::string& name, const std::string& arguments, size_t piece) {
    to.push_back({.kind = AnswerEvent::Kind::call_started, .call = call, .id = id, .text = name});
    for (size_t begin = 0, end = 0; begin < arguments.size(); begin = end) {
        end = std::min(begin + piece, arguments.size());
        while (end < arguments.size() && (uint8_t(arguments[end]) & 0xc0) == 0x80) ++end;
        to.push_back({.kind = AnswerEvent::Kind::call_arguments,
                      .call = call,
                      .text = arguments.substr(begin, end - begin)});
    }
    to.push_back({.kind = AnswerEvent::Kind::call_finished, .call = call});
}

// An answer of any shape that a service may give.
inline std::vector<AnswerEvent> random_answer(std::mt19937& random) {
    const auto below = [&](uint32_t n) { return uint32_t(random() % n); };
    const Usage usage{int32_t(below(1000) + 10), int32_t(below(10)), int32_t(below(500)), int32_t(below(5))};
    std::vector<AnswerEvent> events{answer_started({usage.prompt_tokens, usage.cached_tokens, 0, 0})};
    int32_t calls = 0;
    for (uint32_t parts = below(5); parts > 0; --parts) {
        const uint32_t kind = below(3);
        if (kind == 2) {
            const std::string n = std::to_string(calls);
            const std::string arguments = R"({"path":"a\"b/ü","n":)" + n + R"(,"list":[1,{"x":null}]})";
            add_call(events, calls++, "call_" + n, "f" + n, below(2) ? arguments : "{}", 1 + below(8));
            continue;
        }
        for (uint32_t pieces = below(4); pieces > 0; --pieces)
            events.push_back(kind ? answer_content(below(5) ? "text \n" + std::to_string(pieces) : "")
                                  : answer_reasoning("thought " + std::to_string(pieces)));
    }
    static constexpr AnswerFinish kEnds[] = {AnswerFinish::stop, AnswerFinish::length, AnswerFinish::stop};
    const AnswerFinish end = calls > 0 && below(2) ? AnswerFinish::tool_calls : kEnds[below(3)];
    events.push_back(answer_finished(end, usage, end == AnswerFinish::stop && below(2) ? "STOP" : ""));
    return events;
}

struct SseEvent {
    std::string name;
    JsonObject data;
};
// The events of a stream; a test failure where it is none.
inline std::vector<SseEvent> parse_sse(const std::string& stream) {
    std::vector<SseEvent> events;
    size_t at = 0;
    while (at < stream.size()) {
        const size_t end = stream.find("\n\n", at);
        const size_t line = stream.find('\n', at);
        if (end == std::string::npos || stream.compare(at, 7, "event: ") != 0 ||
            stream.compare(line + 1, 6, "data: ") != 0) {
            ADD_FAILURE() << "no event at " << at << ": " << stream.substr(at, 200);
            break;
        }
        const auto json = parse_json(stream.substr(line + 7, end - line - 7), "data");
        if (!json.ok() || !json.value().is_object()) {
            ADD_FAILURE() << "data of the event at " << at << " is no object";
            break;
        }
        events.push_back({stream.substr(at + 7, line - at - 7), json.value().get_object()});
        at = end + 2;
    }
    return events;
}

// The text must be the file's under tests/golden/server. What was found instead is left in the build folder.
inline void expect_golden(const std::string& name, const std::string& found) {
    std::ifstream file(SPARKINFER_SOURCE_DIR "/tests/golden/server/" + name, std::ios::binary);
    std::stringstream golden;
    golden << file.rdbuf();
    if (file && golden.str() == found) return;
    std::string flat = name;
    for (char& c : flat)
        if (c == '/') c = '-';
    const std::string path = SPARKINFER_BINARY_DIR "/" + flat;
    std::ofstream(path, std::ios::binary) << found;
    ADD_FAILURE() << "tests/golden/server/" << name << " is not what came out, which is now in " << path;
}

}  // namespace sparkinfer
