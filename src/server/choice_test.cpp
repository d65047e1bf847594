// choice_test.cpp — tokens in, answer events out.
#include "server/choice.h"

#include <gtest/gtest.h>

#include "text/text_test_vocabulary.h"

namespace sparkinfer {
namespace {

// What is told of an answer of these tokens, and the stop string that ended it.
std::pair<std::string, std::string> told(const std::vector<std::string>& tokens,
                                         std::vector<std::string> stop) {
    const TestVocabulary vocabulary;
    const Tokenizer tokenizer = Tokenizer::from_metadata(vocabulary.metadata()).value();
    const std::vector<ToolSpec> tools;
    ReadingRules rules;
    rules.tokenizer = &tokenizer;
    rules.tools = &tools;
    rules.stop = std::move(stop);
    Choice choice(rules, 0);
    std::vector<AnswerEvent> events;
    for (const std::string& token : tokens) {
        Event event{};
        event.token = TokenId(vocabulary.id(token));
        choice.push(event, events);
    }
    choice.finish(events);
    std::string text;
    for (const AnswerEvent& event : events) text += event.text;
    return {text, choice.stop()};
}

TEST(Choice, TextBeforeAStopStringIsTold) {
    // Risk: of the token that completes a stop string, what comes before it is lost.
    using Told = std::pair<std::string, std::string>;
    EXPECT_EQ(told({"hello", "Ġw", "o"}, {"w"}), Told("hello ", "w"));
    EXPECT_EQ(told({"hello", "Ġw", "o"}, {"ello"}), Told("h", "ello"));
    EXPECT_EQ(told({"hello", "Ġw", "o"}, {"o wo"}), Told("hell", "o wo"));
    EXPECT_EQ(told({"hello", "Ġw", "o"}, {"wx"}), Told("hello wo", ""));
}

}  // namespace
}  // namespace sparkinfer
