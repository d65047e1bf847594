// answer_test.h — for tests of split answers: tools as agents send them, and what a split gave in one piece.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/json.h"
#include "text/answer_splitter.h"

namespace sparkinfer {

inline const AnswerFormat kQwen{
    .tools = ToolFormat::qwen_xml, .think_open = "<think>", .think_close = "</think>", .reasoning = true};
inline const AnswerFormat kHermes{
    .tools = ToolFormat::hermes_json, .think_open = "<think>", .think_close = "</think>", .reasoning = true};

inline const std::vector<ToolSpec>& test_tools() {
    const char* parameters = R"({"type": "object", "properties": {
        "path": {"type": "string"}, "content": {"type": "string"}, "zip": {"type": "string"},
        "count": {"type": "integer"}, "ratio": {"type": "number"}, "force": {"type": "boolean"},
        "nothing": {"type": "null"}, "list": {"type": "array"}, "map": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "id": {"type": ["integer", "string"]}, "flag": {"oneOf": [{"type": "boolean"}, {"type": "string"}]},
        "any": {"description": "anything"}, "mode": {"enum": ["1", "2"]}, "level": {"enum": [1, 2, "auto"]},
        "ref": {"$ref": "#/$defs/size"}, "old": {"type": "integer", "nullable": true}},
        "$defs": {"size": {"type": "integer"}}})";
    static const std::vector<ToolSpec> tools{
        {.name = "write", .parameters = parse_json(parameters, "test").value()},
        {.name = "now", .parameters = JsonObject{}}};
    return tools;
}

// Parts with neighbours of one kind joined, one a line, for comparing whole answers.
inline std::string joined(const std::vector<AnswerPart>& parts) {
    const char* names[] = {"reasoning", "content", "call", "arguments", "end"};
    std::string out;
    const AnswerPart* last = nullptr;
    for (const AnswerPart& part : parts) {
        const bool goes_on = last && last->kind == part.kind && part.kind != AnswerPart::Kind::call_finished;
        if (!goes_on)
            out += fmt::format("{}{}:", out.empty() ? "" : "\n", names[static_cast<int>(part.kind)]);
        out += part.text;
        if (!part.whole) out += " broken";
        last = &part;
    }
    return out;
}

struct SplitCase {
    AnswerFormat format = kQwen;
    bool in_reasoning = false;
    SplitOptions options = {};
    std::vector<ToolSpec> tools = test_tools();
};

// Splits `text` that comes in pieces of `burst` bytes; 0: in one.
inline std::vector<AnswerPart> split_parts(const SplitCase& c, std::string_view text, size_t burst = 0) {
    AnswerSplitter splitter(c.format, c.tools, c.in_reasoning, c.options);
    std::vector<AnswerPart> parts;
    for (size_t at = 0; at < text.size(); at += burst ? burst : text.size()) {
        // Piece by piece into a vector of its own, as a server does that sends each at once.
        std::vector<AnswerPart> now;
        splitter.push(burst ? text.substr(at, burst) : text, now);
        parts.insert(parts.end(), now.begin(), now.end());
    }
    splitter.finish(parts);
    return parts;
}

inline std::string split(const SplitCase& c, std::string_view text) { return joined(split_parts(c, text)); }

// The calls of an answer are announced, take arguments and are finished in turn, each with one JSON object.
inline void expect_well_formed(const std::vector<AnswerPart>& parts, std::string_view text) {
    bool open = false;
    std::string arguments;
    for (const AnswerPart& part : parts) {
        if (part.kind == AnswerPart::Kind::call_started) {
            EXPECT_FALSE(open) << text;
            EXPECT_FALSE(part.text.empty()) << text;
            open = true;
            arguments.clear();
        } else if (part.kind == AnswerPart::Kind::call_arguments) {
            EXPECT_TRUE(open) << text;
            arguments += part.text;
        } else if (part.kind == AnswerPart::Kind::call_finished) {
            EXPECT_TRUE(open) << text;
            open = false;
            const Result<Json> json = parse_json(arguments, "arguments");
            EXPECT_TRUE(json.ok() && json.value().is_object()) << text << "\n-> " << arguments;
        } else {
            EXPECT_FALSE(open) << text;
        }
    }
    EXPECT_FALSE(open) << text;
}

}  // namespace sparkinfer
