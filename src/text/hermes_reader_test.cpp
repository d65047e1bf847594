// Hermes calls, as they stream, and the JSON reader under them.
#include "text/answer_test.h"
#include "text/json_stream.h"

namespace sparkinfer {
namespace {

// The parts of an answer of one call's object; the same for every burst of 1 to 8 bytes.
std::string parts_of(const std::string& object) {
    const std::string text = "<tool_call>\n" + object + "\n</tool_call>";
    const SplitCase c{.format = kHermes};
    const std::string whole = split(c, text);
    for (size_t burst = 1; burst <= 8; ++burst) EXPECT_EQ(joined(split_parts(c, text, burst)), whole);
    return whole;
}

TEST(Hermes, PassesArgumentsOnAsTheyAreWritten) {
    // Risk: arguments come in one burst at the end, without their first or last brace, or printed otherwise.
    EXPECT_EQ(
        parts_of(R"({"name": "write", "arguments": {"path":  "a\u00e9\"}", "n": 1.50, "l": [{}, []]}})"),
        "call:write\narguments:{\"path\":  \"a\\u00e9\\\"}\", \"n\": 1.50, \"l\": [{}, []]}\nend:");
    std::vector<AnswerPart> parts;
    AnswerSplitter splitter(kHermes, test_tools(), false);
    const auto sent = [&](std::string_view text) {
        parts.clear();
        splitter.push(text, parts);
        return joined(parts);
    };
    EXPECT_EQ(sent("<tool_call>\n{\"name\": \"write\", \"argu"), "");
    EXPECT_EQ(sent("ments\": {"), "call:write\narguments:{");
    EXPECT_EQ(sent("\"path\": \""), "");
    EXPECT_EQ(sent("ab"), "arguments:\"path\": \"ab");
    EXPECT_EQ(sent("c\\"), "arguments:c");
    EXPECT_EQ(sent("n\""), "arguments:\\n\"");
    EXPECT_EQ(sent("}"), "arguments:}\nend:");
    EXPECT_EQ(sent("}\n</tool_call>"), "");
}

TEST(Hermes, TakesKeysInAnyOrder) {
    // Risk: a call whose arguments come first, or that has an id, is not heard.
    EXPECT_EQ(parts_of(R"({"arguments": {"a": 1}, "name": "write"})"),
              "call:write\narguments:{\"a\": 1}\nend:");
    EXPECT_EQ(parts_of(R"({"id": [7, "x"], "name": "write", "type": null, "arguments": {}})"),
              "call:write\narguments:{}\nend:");
    EXPECT_EQ(parts_of(R"({"name": "write", "parameters": {"a": 1}, "x": 1})"),
              "call:write\narguments:{\"a\": 1}\nend:");
    EXPECT_EQ(parts_of(R"({"name": "wr\u0069te"})"), "call:write\narguments:{}\nend:");
    EXPECT_EQ(parts_of(R"({"name": "now", "arguments": null})"), "call:now\narguments:{}\nend:");
}

TEST(Hermes, OpensArgumentsGivenAsText) {
    // Risk: a string where clients expect the text of an object.
    EXPECT_EQ(parts_of(R"({"name": "write", "arguments": "{\"a\": \"b\\\"\"}"})"),
              "call:write\narguments:{\"a\": \"b\\\"\"}\nend:");
    EXPECT_EQ(parts_of(R"({"arguments": "", "name": "now"})"), "call:now\narguments:{}\nend:");
}

TEST(Hermes, WhatIsNoCallIsContent) {
    // Risk: text is swallowed because it begins like a call.
    for (const char* object :
         {R"({"name": "write", "arguments": [1]})", R"({"name": 7})", R"({"arguments": {}})",
          R"({"name": "write", "arguments": "no json"})", R"({"name": "", "arguments": {}})",
          R"({"name": "a", "name": "b"})", "{}", "[]", R"({"name" "write"})"})
        EXPECT_EQ(parts_of(object), std::string("content:<tool_call>\n") + object + "\n</tool_call>");
}

TEST(Hermes, ACallThatBreaksOffIsClosed) {
    // Risk: a client gets half a JSON object. Every place to break off, and text that is no JSON.
    const std::string text =
        "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"a\\n\": \"x\\u00e9\\ud83d\\ude00é\", \"b\": "
        "[1, -2.5e+3, {\"c\": "
        "true}, null], \"d\": {}}}\n</tool_call>";
    const size_t announced = text.find("{\"a"), end = text.find("}}}") + 2;
    for (size_t length = 0; length <= text.size(); ++length) {
        const std::string cut = text.substr(0, length);
        const std::vector<AnswerPart> parts = split_parts({.format = kHermes}, cut, 1);
        if (is_utf8(cut)) expect_well_formed(parts, cut);
        EXPECT_EQ(joined(parts), split({.format = kHermes}, cut));
        if (length <= announced) {
            EXPECT_EQ(joined(parts), length ? "content:" + cut : "");
        } else {
            EXPECT_EQ(parts.back().kind, AnswerPart::Kind::call_finished) << cut;
            EXPECT_EQ(parts.back().whole, length >= end) << cut;
        }
    }
    EXPECT_EQ(
        split({.format = kHermes}, "<tool_call>{\"name\": \"write\", \"arguments\": {\"a\": 12, \"b\": 3"),
        "call:write\narguments:{\"a\": 12}\nend: broken");
    EXPECT_EQ(split({.format = kHermes},
                    "<tool_call>{\"name\": \"write\", \"arguments\": {\"a\": 12, oh</tool_call>"),
              "call:write\narguments:{\"a\": 12}\nend: broken\ncontent:oh</tool_call>");
}

// Whether the whole text is one JSON value, as the reader sees it.
bool reads(std::string_view text) {
    JsonReader reader;
    std::string out;
    size_t at = 0;
    const JsonReader::State state = reader.read(text, at, out);
    if (state == JsonReader::State::broken) return false;
    if (state == JsonReader::State::done) return text.find_first_not_of(" \n", at) == text.npos;
    return reader.finish(out);
}

TEST(JsonReader, AgreesWithTheParser) {
    // Risk: passes on what no client can parse. Texts of JSON's own bytes, and the beginnings of values
    // closed.
    const char* fragments[] = {"{", "}",  "[", "]",   ",",    ":",   "\"", "\"a\"", "\\", "\\n",   "1", "0",
                               "-", ".5", "e", "E+2", "true", "nul", "l",  " ",     "x",  "\\u12", "ab"};
    uint32_t random = 1;
    const auto next = [&](uint32_t n) {
        return (random = random * 1664525 + 1013904223) % 65536 * n / 65536;
    };
    int values = 0;
    for (int round = 0; round < 40000; ++round) {
        std::string text;
        for (uint32_t n = 1 + next(7); n > 0; --n) text += fragments[next(std::size(fragments))];
        const bool value = parse_json(text, "text").ok();
        values += value;
        EXPECT_EQ(reads(text), value) << text;
        JsonReader reader;
        std::string out;
        size_t at = 0;
        reader.read(text, at, out);
        EXPECT_TRUE(parse_json(out + reader.closing(), "closed").ok())
            << text << " -> " << out << reader.closing();
    }
    EXPECT_GT(values, 500);
}

TEST(JsonReader, EscapesControlCharactersInStrings) {
    // Risk: a line break that a model writes into a string makes the arguments unreadable.
    EXPECT_EQ(parts_of("{\"name\": \"write\", \"arguments\": {\"a\": \"x\ny\t\"}}"),
              "call:write\narguments:{\"a\": \"x\\ny\\t\"}\nend:");
}

}  // namespace
}  // namespace sparkinfer
