// Qwen's XML calls to JSON, as they stream.
#include <random>

#include "text/answer_test.h"

namespace sparkinfer {
namespace {

std::string call_text(std::string_view parameters) {
    return fmt::format("<tool_call>\n<function=write>\n{}</function>\n</tool_call>", parameters);
}

std::string parameter(std::string_view key, std::string_view value) {
    return fmt::format("<parameter={}>\n{}\n</parameter>\n", key, value);
}

// The JSON of a call with these parameters; the same for every burst of 1 to 8 bytes.
std::string arguments(const std::string& parameters) {
    const std::string text = call_text(parameters);
    const std::string whole = split({}, text);
    for (size_t burst = 1; burst <= 8; ++burst) EXPECT_EQ(joined(split_parts({}, text, burst)), whole);
    const std::string begin = "call:write\narguments:", end = "\nend:";
    if (!whole.starts_with(begin) || !whole.ends_with(end)) return "not one call: " + whole;
    return whole.substr(begin.size(), whole.size() - begin.size() - end.size());
}

// One argument's JSON.
std::string value(std::string_view key, std::string_view text) {
    const std::string json = arguments(parameter(key, text));
    const std::string begin = fmt::format("{{\"{}\": ", key);
    if (!json.starts_with(begin) || !json.ends_with("}")) return "not one argument: " + json;
    return json.substr(begin.size(), json.size() - begin.size() - 1);
}

TEST(QwenXml, StreamsStringsWhileTheyAreWritten) {
    // Risk: a client sees nothing for the minutes in which a large file is written.
    std::vector<AnswerPart> parts;
    AnswerSplitter splitter(kQwen, test_tools(), false);
    const auto sent = [&](std::string_view text) {
        parts.clear();
        splitter.push(text, parts);
        return joined(parts);
    };
    EXPECT_EQ(sent("<tool_call>\n<function=write>\n<parameter"), "");
    EXPECT_EQ(sent("="), "call:write\narguments:{");
    EXPECT_EQ(sent("content>\n"), "");
    EXPECT_EQ(sent("say \"h"), "arguments:\"content\": \"say \\\"h");
    EXPECT_EQ(sent("i\"\n"), "arguments:i\\\"");
    EXPECT_EQ(sent("\\t</param"), "arguments:\\n\\\\t</param");
    EXPECT_EQ(sent("\n</parameter>\n<para"), "");
    EXPECT_EQ(sent("meter=count>\n1"), "arguments:\"");
    EXPECT_EQ(sent("2\n</parameter>\n</function>\n"), "");
    EXPECT_EQ(sent("</tool_call>"), "arguments:, \"count\": 12}\nend:");
}

TEST(QwenXml, EscapesAcrossPieces) {
    // Risk: a character that JSON escapes is split from its escape, or bytes of a character from each other.
    std::mt19937 random(9);
    for (int round = 0; round < 300; ++round) {
        std::string text;
        for (size_t n = random() % 12; n > 0; --n) {
            const char* pieces[] = {"\"", "\\", "\n",  "\t", "\r", "\x01", "é", "\xF0\x9F\x98\x80",
                                    "</", "a",  "\\n", "/"};
            text += pieces[random() % std::size(pieces)];
        }
        const Result<Json> json = parse_json(arguments(parameter("content", text)), "arguments");
        ASSERT_TRUE(json.ok()) << text;
        EXPECT_EQ(std::string_view(json.value().as_object().at("content").as_string()), text);
    }
}

TEST(QwenXml, FilesThatHoldTheTagsSurvive) {
    // Risk: a file about tool calls ends in the middle, and its rest becomes text or arguments.
    const std::string files[] = {
        "a </parameter> b",
        "</parameter>",
        "\n</parameter>\n",
        "x\n</parameter>\ny",
        "x\n</parameter>\n</function>\ny",
        "x\n</parameter>\n</function>",
        "x\n</parameter>",
        "<parameter=path>\nz",
        "<tool_call>\n<function=write>\n<parameter=path>\nz</parameter>\n</function>\n</tool_call>",
        "<root>\n  <parameter=a>1</parameter>\n  <parameter=b>\n  </parameter>\n</root>",
        "</function>\n</tool_call>",
        "a\n\n\n",
        "\n\na",
        " ",
        "\n",
        ""};
    for (const std::string& file : files) {
        const Result<Json> json =
            parse_json(arguments(parameter("content", file) + parameter("path", "p")), "arguments");
        ASSERT_TRUE(json.ok()) << file;
        EXPECT_EQ(std::string_view(json.value().as_object().at("content").as_string()), file);
        EXPECT_EQ(std::string_view(json.value().as_object().at("path").as_string()), "p") << file;
    }
}

TEST(QwenXml, CoercesByTheDeclaredTypeAlone) {
    // Risk: a ZIP code becomes a number, a number a string, or a value that does not fit drops the call.
    EXPECT_EQ(value("zip", "02134"), R"("02134")");
    EXPECT_EQ(value("zip", "12"), R"("12")");
    EXPECT_EQ(value("path", "true"), R"("true")");
    EXPECT_EQ(value("path", "null"), R"("null")");
    EXPECT_EQ(value("path", "{\"a\": 1}"), R"("{\"a\": 1}")");
    EXPECT_EQ(value("count", "12"), "12");
    EXPECT_EQ(value("count", " -7 "), "-7");
    EXPECT_EQ(value("count", "12.0"), "12");
    EXPECT_EQ(value("count", "123456789012345678901234567890"), "123456789012345678901234567890");
    EXPECT_EQ(value("count", "007"), R"("007")");
    EXPECT_EQ(value("count", "1.5"), R"("1.5")");
    EXPECT_EQ(value("count", "twelve"), R"("twelve")");
    EXPECT_EQ(value("count", ""), R"("")");
    EXPECT_EQ(value("ratio", "1.50"), "1.50");
    EXPECT_EQ(value("ratio", "1e3"), "1e3");
    EXPECT_EQ(value("ratio", "3"), "3");
    EXPECT_EQ(value("ratio", "NaN"), R"("NaN")");
    EXPECT_EQ(value("force", "true"), "true");
    EXPECT_EQ(value("force", "False"), "false");
    EXPECT_EQ(value("force", "1"), R"("1")");
    EXPECT_EQ(value("nothing", "None"), "null");
    EXPECT_EQ(value("list", "[1, \"a\", {\"b\": 1.0}]"), R"([1, "a", {"b": 1.0}])");
    EXPECT_EQ(value("list", "{\"a\": 1}"), R"("{\"a\": 1}")");
    EXPECT_EQ(value("list", "[1,"), R"("[1,")");
    EXPECT_EQ(value("map", "\n{\"a\": [1]}\n"), R"({"a": [1]})");
    EXPECT_EQ(value("ref", "5"), "5");
    EXPECT_EQ(value("mode", "1"), R"("1")");
    EXPECT_EQ(value("level", "1"), "1");
    EXPECT_EQ(value("level", "auto"), R"("auto")");
    EXPECT_EQ(value("old", "null"), "null");
    EXPECT_EQ(value("old", "5"), "5");
    EXPECT_EQ(value("not declared", "5"), R"("5")");
}

TEST(QwenXml, AUnionKeepsWhatWouldLoseCharacters) {
    // Risk: "007" becomes 7 because numbers are admitted too.
    EXPECT_EQ(value("id", "007"), R"("007")");
    EXPECT_EQ(value("id", "7"), "7");
    EXPECT_EQ(value("id", "-0"), R"("-0")");
    EXPECT_EQ(value("id", "+7"), R"("+7")");
    EXPECT_EQ(value("id", "7 "), R"("7 ")");
    EXPECT_EQ(value("id", "7.0"), R"("7.0")");
    EXPECT_EQ(value("id", "9007199254740993"), R"("9007199254740993")");
    EXPECT_EQ(value("id", "7 apples"), R"("7 apples")");
    EXPECT_EQ(value("maybe", "null"), "null");
    EXPECT_EQ(value("maybe", "None"), R"("None")");
    EXPECT_EQ(value("maybe", "nullify"), R"("nullify")");
    EXPECT_EQ(value("maybe", "nul"), R"("nul")");
    EXPECT_EQ(value("maybe", ""), R"("")");
    EXPECT_EQ(value("flag", "true"), "true");
    EXPECT_EQ(value("flag", "True"), R"("True")");
    EXPECT_EQ(value("any", "1.5"), "1.5");
    EXPECT_EQ(value("any", "1.50"), R"("1.50")");
    EXPECT_EQ(value("any", "[1, 2]"), "[1, 2]");
    EXPECT_EQ(value("any", "[1, 2"), R"("[1, 2")");
    EXPECT_EQ(value("any", "text"), R"("text")");
}

TEST(QwenXml, CallsWithoutParametersHaveAnObject) {
    // Risk: "" as arguments, which is no JSON.
    EXPECT_EQ(arguments(""), "{}");
    EXPECT_EQ(split({}, "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
              "call:now\narguments:{}\nend:");
    EXPECT_EQ(split({}, "<tool_call><function=now></function></tool_call>"), "call:now\narguments:{}\nend:");
}

TEST(QwenXml, TakesOtherSpacing) {
    // Risk: a model that leaves a line break out is not heard.
    EXPECT_EQ(arguments("<parameter=path>a</parameter><parameter=count>1</parameter>"),
              R"({"path": "a", "count": 1})");
    EXPECT_EQ(arguments("<parameter=path></parameter>"), R"({"path": ""})");
    EXPECT_EQ(arguments("<parameter=path>\n</parameter>\n"), R"({"path": ""})");
    EXPECT_EQ(arguments("\n<parameter=path>\na\n</parameter>\n\n<parameter=count>\n1\n</parameter>\n\n"),
              R"({"path": "a", "count": 1})");
    EXPECT_EQ(
        split({}, "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>"),
        "call:now\narguments:{}\nend:\ncall:now\narguments:{}\nend:");
}

TEST(QwenXml, RepeatedParametersCountOnce) {
    // Risk: an object with the same key twice, of which every reader takes another.
    EXPECT_EQ(arguments(parameter("path", "a") + parameter("count", "1") + parameter("path", "b")),
              R"({"path": "a", "count": 1})");
    EXPECT_EQ(arguments(parameter("path", "") + parameter("path", "b")), R"({"path": ""})");
}

TEST(QwenXml, ACallThatBreaksOffIsClosed) {
    // Risk: a client gets half a JSON object, or half a number as if it were the whole. Every place to break
    // off.
    const std::string text = call_text(parameter("content", "a\"b\nc") + parameter("count", "123") +
                                       parameter("maybe", "null") + parameter("list", "[1, 2]"));
    const std::string announced = "<tool_call>\n<function=write>\n<parameter=";
    const size_t end = text.find("\n</tool_call>");
    for (size_t length = 0; length <= text.size(); ++length) {
        const std::string cut = text.substr(0, length);
        const std::vector<AnswerPart> parts = split_parts({}, cut, 1);
        expect_well_formed(parts, cut);
        EXPECT_EQ(joined(parts), split({}, cut));
        if (length < announced.size()) {
            EXPECT_EQ(joined(parts), length ? "content:" + cut : "");
        } else {
            ASSERT_FALSE(parts.empty());
            EXPECT_EQ(parts.front().kind, AnswerPart::Kind::call_started);
            EXPECT_EQ(parts.back().kind, AnswerPart::Kind::call_finished) << cut;
            EXPECT_EQ(parts.back().whole, length >= end) << cut;
        }
    }
    EXPECT_EQ(split({}, text.substr(0, text.find("b\nc") + 1)),
              "call:write\narguments:{\"content\": \"a\\\"b\"}\nend: broken");
    EXPECT_EQ(split({}, text.substr(0, text.find("23\n") + 1)),
              "call:write\narguments:{\"content\": \"a\\\"b\\nc\"}\nend: broken");
    EXPECT_EQ(split({}, text.substr(0, text.find("\n<parameter=maybe"))),
              "call:write\narguments:{\"content\": \"a\\\"b\\nc\", \"count\": 123}\nend: broken");
}

TEST(QwenXml, ACallThatGoesOnOtherwiseIsClosed) {
    // Risk: prose after half a call is swallowed.
    EXPECT_EQ(
        split({}, "<tool_call>\n<function=write>\n<parameter=count>\n1\n</parameter>\n<parameter=\n\nSorry."),
        "call:write\narguments:{\"count\": 1}\nend: broken\ncontent:<parameter=\n\nSorry.");
    EXPECT_EQ(split({}, "<tool_call>\n<function=now>\n</function>\nThat was it."),
              "call:now\narguments:{}\nend:\ncontent:That was it.");
}

TEST(QwenXml, FunctionsThatWereNotOfferedAreCallsToo) {
    // Risk: markup in the content. The client knows how to refuse a call; its arguments are strings.
    EXPECT_EQ(
        split({}, "<tool_call>\n<function=rm>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"),
        "call:rm\narguments:{\"n\": \"1\"}\nend:");
}

}  // namespace
}  // namespace sparkinfer
