#include "text/answer_grammar.h"

#include <gtest/gtest.h>

#include <regex>

#include "core/json.h"
#include "text/answer_splitter.h"
#include "text/test_grammar_walk.h"
#include "text/text_test_vocabulary.h"

namespace sparkinfer {
namespace {

using Content = AnswerShape::Content;

Json json(std::string_view text) {
    auto parsed = parse_json(text, "test");
    if (!parsed.ok()) ADD_FAILURE() << parsed.error().message;
    return parsed.ok() ? *parsed : Json();
}

const char* const kWeather = R"({
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["c", "f"]},
        "where": {"$ref": "#/$defs/point"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$", "maxLength": 5}
    },
    "required": ["city", "unit"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                        "required": ["x", "y"]}}
})";

std::vector<ToolSpec> test_tools() {
    return {{.name = "weather", .description = "tells it", .parameters = json(kWeather)},
            {.name = "now", .description = "the time"},
            {.name = "write-file",
             .parameters = json(R"({"type": "object", "properties": {"path": {"type": "string"},
                                    "content": {"type": "string"}}, "required": ["path", "content"]})")}};
}

void check_weather(const JsonObject& object) {
    ASSERT_TRUE(object.contains("city") && object.at("city").is_string());
    ASSERT_TRUE(object.contains("unit"));
    for (const auto& [key, value] : object) {
        if (key == "days") {
            int64_t days = 0;
            ASSERT_TRUE(json_is_int(value, &days) && days >= 1 && days <= 14) << to_json(value);
        } else if (key == "unit") {
            ASSERT_TRUE(value == "c" || value == "f") << to_json(value);
        } else if (key == "where") {
            ASSERT_TRUE(value.is_object() && value.get_object().size() == 2) << to_json(value);
            ASSERT_TRUE(value.get_object().at("x").is_number());
        } else if (key == "code") {
            const std::string_view code = value.get_string();
            ASSERT_TRUE(code.size() >= 3 && code.size() <= 5 && code[0] >= 'A' && code[0] <= 'Z')
                << to_json(value);
        } else if (key == "note") {
            ASSERT_TRUE(value.is_string() || value.is_null());
        } else {
            ASSERT_EQ(std::string(key), "city");
        }
    }
}

struct Answer {
    std::string reasoning, content;
    std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
    bool whole = true;
};

struct Setting {
    ToolFormat format;
    bool tags;  // <tool_call> and </tool_call> are tokens
};

class AnswerGrammarTest : public testing::TestWithParam<Setting> {
  protected:
    void SetUp() override {
        TestVocabulary vocabulary;
        if (GetParam().tags) {
            vocabulary.add("<tool_call>", 4);
            vocabulary.add("</tool_call>", 4);
        }
        auto tokenizer = Tokenizer::from_metadata(vocabulary.metadata());
        ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
        tokenizer_.emplace(std::move(tokenizer).value());
        auto compiler = GrammarCompiler::make(*tokenizer_);
        ASSERT_TRUE(compiler.ok()) << compiler.error().message;
        compiler_.emplace(std::move(compiler).value());
        shape_.format = {GetParam().format, "<think>", "</think>", true};
        shape_.tools = tools_;
    }

    GrammarMatcher compile() {
        auto grammar = answer_grammar(shape_, *compiler_);
        if (!grammar.ok()) ADD_FAILURE() << grammar.error().message;
        auto matcher = compiler_->compile(*grammar->grammar);
        if (!matcher.ok()) ADD_FAILURE() << matcher.error().message << "\n" << grammar->grammar->parts;
        return std::move(matcher).value();
    }
    std::string error() {
        auto grammar = answer_grammar(shape_, *compiler_);
        if (!grammar.ok()) return grammar.error().message;
        if (!grammar->grammar) return "";
        auto matcher = compiler_->compile(*grammar->grammar);
        return matcher.ok() ? "" : matcher.error().message;
    }
    // Whether the text, as the tokenizer cuts it, may be an answer; `end`: a whole one.
    bool takes(std::string_view text, bool end = true) {
        GrammarMatcher matcher = compile();
        auto ids = tokenizer_->encode(text, Tokenizer::Specials::none, false);
        if (!ids.ok()) return false;
        for (TokenId id : *ids)
            if (!matcher.advance(id)) return false;
        return !end || matcher.accepting();
    }
    Answer split(std::string_view text) const {
        AnswerSplitter splitter(shape_.format, shape_.tools, shape_.starts_in_reasoning,
                                {.calls_in_reasoning = shape_.calls_in_reasoning});
        std::vector<AnswerPart> parts;
        splitter.push(text, parts);
        splitter.finish(parts);
        Answer answer;
        for (const AnswerPart& part : parts) {
            if (part.kind == AnswerPart::Kind::reasoning) answer.reasoning += part.text;
            if (part.kind == AnswerPart::Kind::content) answer.content += part.text;
            if (part.kind == AnswerPart::Kind::call_started) answer.calls.emplace_back(part.text, "");
            if (part.kind == AnswerPart::Kind::call_arguments) answer.calls.back().second += part.text;
            if (part.kind == AnswerPart::Kind::call_finished) answer.whole &= part.whole;
        }
        return answer;
    }
    void check_calls(const Answer& answer, const std::string& text) {
        EXPECT_TRUE(answer.whole) << text;
        for (const auto& [name, arguments] : answer.calls) {
            auto parsed = parse_json(arguments, "arguments", {.refuse_duplicate_keys = true});
            ASSERT_TRUE(parsed.ok()) << parsed.error().message << "\n" << text;
            ASSERT_TRUE(parsed->is_object());
            const JsonObject& object = parsed->get_object();
            if (name == "weather") {
                check_weather(object);
            } else if (name == "now") {
                EXPECT_TRUE(object.empty()) << arguments;
            } else {
                ASSERT_EQ(name, "write-file");
                EXPECT_TRUE(object.size() == 2 && object.contains("path") && object.contains("content"))
                    << arguments;
            }
        }
    }
    // Random answers that ended; `seeds` begin.
    std::vector<std::string> walks(int seeds, int steps) {
        std::vector<std::string> texts;
        const std::vector<std::string> hints = {"</think>",
                                                "<think>",
                                                "<tool_call>\n{\"name\": \"now\"",
                                                "<tool_call>",
                                                "<tool_call>\n<function=",
                                                "\n</parameter>\n<parameter=",
                                                "\n</parameter>\n</function>\n</tool_call>",
                                                "}\n</tool_call>",
                                                "\"}",
                                                "</parameter>",
                                                "hello "};
        for (int seed = 0; seed < seeds; ++seed) {
            GrammarMatcher matcher = compile();
            Walk walk = Walker(*tokenizer_, static_cast<uint32_t>(seed), hints).run(matcher, steps);
            EXPECT_EQ(walk.broken, "") << walk.text;
            // JSON's numbers have no bounds; readers do.
            static const std::regex beyond("[eE][+-]?[0-9]{3}");
            if (!walk.ended || std::regex_search(walk.text, beyond)) continue;
            texts.push_back(std::move(walk.text));
        }
        return texts;
    }
    std::string call(const std::string& name,
                     const std::vector<std::pair<std::string, std::string>>& arguments) {
        std::string out = "<tool_call>\n";
        if (GetParam().format == ToolFormat::hermes_json) {
            out += "{\"name\": \"" + name + "\", \"arguments\": {";
            for (size_t i = 0; i < arguments.size(); ++i)
                out += (i ? ", " : "") + json_quote(arguments[i].first) + ": " + arguments[i].second;
            return out + "}}\n</tool_call>";
        }
        out += "<function=" + name + ">\n";
        for (const auto& [key, value] : arguments) {
            const Json parsed = json(value);
            const std::string text = parsed.is_string() ? std::string(parsed.get_string()) : value;
            out += "<parameter=" + key + ">\n" + text + "\n</parameter>\n";
        }
        return out + "</function>\n</tool_call>";
    }

    std::optional<Tokenizer> tokenizer_;
    std::optional<GrammarCompiler> compiler_;
    const std::vector<ToolSpec> tools_ = test_tools();
    AnswerShape shape_;
};

const std::vector<std::pair<std::string, std::string>> kParis = {{"city", "\"Paris\""}, {"unit", "\"c\""}};

// Risk: an answer that nothing constrains pays for masks, or one that something constrains runs without.
TEST_P(AnswerGrammarTest, NoGrammarExactlyWhereNothingIsConstrained) {
    const auto has = [&] {
        auto grammar = answer_grammar(shape_, *compiler_);
        EXPECT_TRUE(grammar.ok());
        return grammar.ok() && grammar->grammar.has_value();
    };
    EXPECT_TRUE(has());
    shape_.tool_choice.kind = ToolChoice::Kind::none;
    EXPECT_FALSE(has());
    shape_.content = Content::json_object;
    EXPECT_TRUE(has());
    shape_ = {};
    EXPECT_FALSE(has());
}

// Risk: auto lets a broken call through, or a tag in prose leaves no way on.
TEST_P(AnswerGrammarTest, AutomaticIsFreeTextUntilACallBegins) {
    EXPECT_TRUE(takes(""));
    EXPECT_TRUE(takes("hello world"));
    EXPECT_TRUE(takes("A <tool_call> tag, </tool_call>, <tool_call>\n[1] and <function=f> are prose."));
    EXPECT_TRUE(takes("Fine.\n\n" + call("weather", kParis)));
    EXPECT_TRUE(takes(call("weather", kParis) + "\n" + call("now", {}) + "\nDone <tool_call>"));
    EXPECT_TRUE(takes("<think>\nhm <tool_call> hm\n</think>\n\n" + call("now", {})));
    EXPECT_FALSE(takes(call("weather", {{"city", "\"Paris\""}})));  // unit is required
    EXPECT_FALSE(takes(call("whether", kParis), false));
    EXPECT_FALSE(takes(call("now", {{"zone", "1"}}), false));
    EXPECT_FALSE(takes(call("weather", {{"city", "\"Paris\""}, {"unit", "\"k\""}}), false));
    EXPECT_FALSE(takes(call("weather", kParis).substr(0, 60)));
    shape_.parallel_calls = false;
    EXPECT_TRUE(takes("x " + call("now", {})));
    EXPECT_FALSE(takes(call("now", {}) + "\n" + call("now", {})));
}

// Risk: required ends without a call, or named calls something else.
TEST_P(AnswerGrammarTest, RequiredAndNamedAreNothingButCalls) {
    shape_.tool_choice.kind = ToolChoice::Kind::required;
    EXPECT_FALSE(takes(""));
    EXPECT_FALSE(takes("hello", false));
    EXPECT_TRUE(takes("<think>\nhm\n</think>\n\n" + call("weather", kParis)));
    EXPECT_TRUE(takes(call("now", {}) + "\n" + call("now", {})));
    shape_.starts_in_reasoning = true;
    EXPECT_FALSE(takes("hm hm"));
    EXPECT_TRUE(takes("hm hm\n</think>\n\n" + call("now", {})));
    EXPECT_FALSE(takes("hm hm\n</think>\n\nhello", false));
    EXPECT_TRUE(takes("hm " + call("now", {})));
    shape_.calls_in_reasoning = false;
    EXPECT_FALSE(takes("hm " + call("now", {})));
    shape_.tool_choice = {ToolChoice::Kind::named, "now"};
    EXPECT_TRUE(takes("</think>\n\n" + call("now", {})));
    EXPECT_FALSE(takes("</think>\n\n" + call("weather", kParis), false));
    shape_.parallel_calls = false;
    EXPECT_FALSE(takes("</think>\n\n" + call("now", {}) + "\n" + call("now", {})));
}

// Risk: the grammar blocks the reasoning, or the JSON is swallowed by it.
TEST_P(AnswerGrammarTest, ContentOfAFormComesAfterTheReasoning) {
    shape_.tools = {};
    shape_.content = Content::json_schema;
    shape_.schema =
        json(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})");
    EXPECT_TRUE(takes(R"({"a": 1})"));
    EXPECT_TRUE(takes("<think>\n{\"b\"\n</think>\n\n{\"a\": 1}"));
    EXPECT_FALSE(takes("<think>\nhm"));
    EXPECT_FALSE(takes("<think>hm</think>hello", false));
    shape_.starts_in_reasoning = true;
    EXPECT_FALSE(takes("{\"a\": 1}"));
    EXPECT_TRUE(takes("hm {\"a\": 1}\n</think>\n\n{\n  \"a\": 12\n}"));
    shape_.format.reasoning = false;
    EXPECT_TRUE(takes("{\"a\": 1}"));
    EXPECT_FALSE(takes("<", false));
    shape_.content = Content::choice;
    shape_.choices = {"yes", "no \"or\" (so)/\n"};
    EXPECT_TRUE(takes("yes"));
    EXPECT_TRUE(takes("no \"or\" (so)/\n"));
    EXPECT_FALSE(takes("y"));
    EXPECT_FALSE(takes("maybe", false));
    shape_.content = Content::regex;
    shape_.pattern = "^[0-9]+(/[a-z]+)?$";
    EXPECT_TRUE(takes("12/ab"));
    EXPECT_FALSE(takes("12/"));
    shape_.content = Content::lark;
    shape_.pattern = "start: A+ \"!\"\nA: \"a\" | \"b\"";
    EXPECT_TRUE(takes("abba!"));
    EXPECT_FALSE(takes("abba"));
    shape_.content = Content::json_object;
    EXPECT_TRUE(takes(R"({"x": [1, {"y": null}], "z": "a\nb"})"));
    EXPECT_FALSE(takes("[1]", false));
    shape_.tools = tools_;
    EXPECT_TRUE(takes(call("now", {})));
    EXPECT_FALSE(takes("hello", false));
}

// Risk: what the masks allow is read as another call than was meant, or breaks the tool's schema.
TEST_P(AnswerGrammarTest, RandomAnswersAreReadAsTheirGrammarMeant) {
    size_t ended = 0, calls = 0;
    for (const bool parallel : {true, false})
        for (const bool inside : {true, false})
            for (const auto kind : {ToolChoice::Kind::automatic, ToolChoice::Kind::required}) {
                shape_.parallel_calls = parallel;
                shape_.starts_in_reasoning = inside;
                shape_.tool_choice.kind = kind;
                for (const std::string& text : walks(24, 1500)) {
                    // A call inside the reasoning that holds its end tag is no call (answer_grammar.h).
                    const size_t tag = text.find("<tool_call>");
                    if (text.find("</think>", std::min(tag, text.size())) != std::string::npos) continue;
                    const Answer answer = split(text);
                    check_calls(answer, text);
                    ++ended;
                    calls += answer.calls.size();
                    if (!parallel) {
                        EXPECT_LE(answer.calls.size(), 1U) << text;
                    }
                    if (kind == ToolChoice::Kind::required) {
                        EXPECT_GE(answer.calls.size(), 1U) << text;
                    }
                }
            }
    EXPECT_GE(ended, 40U);
    EXPECT_GE(calls, 30U);
}

// Risk: a client's mistake is a crash, an unconstrained run, or a message that names nothing.
TEST_P(AnswerGrammarTest, ErrorsNameTheToolAndThePlace) {
    std::vector<ToolSpec> tools = {
        {.name = "f", .parameters = json(R"({"properties": {"a": {"not": {}}}})")}};
    shape_.tools = tools;
    EXPECT_EQ(error(), "");
    auto grammar = answer_grammar(shape_, *compiler_);
    ASSERT_EQ(grammar->notices.size(), 1U);
    EXPECT_EQ(grammar->notices[0], "the tool 'f' at /properties/a/not: the keyword 'not' cannot be enforced");
    tools[0].strict = true;
    EXPECT_EQ(error(), "the tool 'f': the schema at /properties/a/not: the keyword 'not' cannot be enforced");
    tools[0].parameters = json(R"~({"properties": {"a": {"type": "string", "pattern": "(?=x)"}}})~");
    EXPECT_NE(error().find("/properties/a/pattern"), std::string::npos) << error();
    tools[0].parameters = json(R"({"type": "string"})");
    EXPECT_NE(error().find("/type"), std::string::npos) << error();
    tools[0].parameters = json("[1]");
    EXPECT_NE(error().find("the tool 'f'"), std::string::npos) << error();
    tools[0].parameters = nullptr;
    EXPECT_EQ(error(), "");
    tools[0].name = "a<b";
    EXPECT_NE(error().find("\"a<b\""), std::string::npos) << error();
    shape_.tools = tools_;
    shape_.tool_choice = {ToolChoice::Kind::named, "missing"};
    EXPECT_NE(error().find("'missing'"), std::string::npos) << error();
    shape_.tool_choice = {};
    shape_.format.tools = ToolFormat::none;
    EXPECT_NE(error().find("no syntax for tool calls"), std::string::npos) << error();
    shape_ = {};
    shape_.content = Content::json_schema;
    shape_.schema = json(R"({"properties": {"a": {"items": {"$ref": "#/$defs/x"}}}})");
    shape_.strict = true;
    EXPECT_NE(error().find("/properties/a/items/$ref"), std::string::npos) << error();
    shape_.schema = json(
        R"({"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["a"]})");
    EXPECT_NE(error().find("/properties/a"), std::string::npos) << error();
    shape_.content = Content::regex;
    shape_.pattern = "(a";
    EXPECT_NE(error().find("regex"), std::string::npos) << error();
    shape_.content = Content::choice;
    EXPECT_NE(error().find("choices"), std::string::npos) << error();
}

INSTANTIATE_TEST_SUITE_P(Formats, AnswerGrammarTest,
                         testing::Values(Setting{ToolFormat::hermes_json, false},
                                         Setting{ToolFormat::hermes_json, true},
                                         Setting{ToolFormat::qwen_xml, false},
                                         Setting{ToolFormat::qwen_xml, true}),
                         [](const auto& info) {
                             return std::string(tool_format_name(info.param.format)) +
                                    (info.param.tags ? "_tags_are_tokens" : "_tags_are_text");
                         });

}  // namespace
}  // namespace sparkinfer
