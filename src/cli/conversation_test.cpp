#include "cli/conversation.h"

#include <gtest/gtest.h>

#include "cli/chat_input.h"
#include "cli/chat_settings.h"

namespace sparkinfer {
namespace {

Conversation talk() {
    Conversation talk{"Be brief.", {}};
    for (const char* word : {"one", "two", "three"}) {
        talk.messages.push_back({Role::user, std::string("say ") + word});
        ChatMessage answer{Role::assistant, word};
        answer.reasoning = "easy";
        talk.messages.push_back(answer);
    }
    return talk;
}

std::string error_of(const char* json) {
    auto parsed = parse_json(json, "test");
    if (!parsed.ok()) return "no JSON";
    const auto read = conversation_from_json(*parsed, "talk.json");
    return read.ok() ? "no error" : read.error().message;
}

// Risk: what is saved is not what comes back.
TEST(Conversation, ComesBackFromItsJson) {
    auto back = conversation_from_json(conversation_json(talk(), "m"), "talk.json");
    ASSERT_TRUE(back.ok()) << back.error().message;
    Conversation& read = *back;
    EXPECT_EQ(read.system, "Be brief.");
    ASSERT_EQ(read.exchanges(), 3u);
    EXPECT_EQ(read.messages[5].content, "three");
    EXPECT_EQ(read.messages[5].reasoning, "easy");
    EXPECT_EQ(read.drop_oldest(1), 1u);
    EXPECT_EQ(read.drop_newest(9), 2u);
}

TEST(Conversation, WhatIsWrongIsNamed) {
    EXPECT_EQ(error_of("3"), "talk.json: messages is a number, expected an array");
    EXPECT_EQ(error_of("{}"), "talk.json: there is no field messages, expected a list");
    EXPECT_EQ(error_of(R"({"version": 2, "messages": []})"), "talk.json: version is 2, expected 1");
    EXPECT_EQ(error_of(R"([{"role": "robot", "content": ""}])"),
              "talk.json: messages[0].role is 'robot', expected system, user or assistant");
    EXPECT_EQ(error_of(R"([{"role": "assistant", "content": ""}])"),
              "talk.json: messages[0] is out of turn, expected one of the user");
    EXPECT_NE(error_of(R"([{"role": "user", "content": 3}])").find("content"), std::string::npos);
}

TEST(ChatSettings, NumbersHaveTheirRangesAndDefaultTakesBack) {
    AnswerParams params;
    EXPECT_TRUE(change_setting(params, "temp", "0.5").ok());
    EXPECT_TRUE(change_setting(params, "max_tokens", "7").ok());
    EXPECT_TRUE(change_setting(params, "stop", "END").ok());
    EXPECT_EQ(params.temperature, 0.5);
    EXPECT_EQ(params.max_tokens, 7);
    EXPECT_EQ(params.stop, std::vector<std::string>{"END"});
    EXPECT_FALSE(change_setting(params, "top_p", "0").ok());
    EXPECT_FALSE(change_setting(params, "top_p", "nan").ok());
    EXPECT_TRUE(change_setting(params, "temp", "default").ok());
    EXPECT_FALSE(params.temperature);
    for (const std::string& name : setting_names())
        EXPECT_NE(settings_text(params).find(name), std::string::npos) << name;
}

TEST(ChatSettings, Thinking) {
    EXPECT_EQ(parse_thinking("off").value().enabled, false);
    EXPECT_EQ(parse_thinking("high").value().effort, "high");
    EXPECT_EQ(parse_thinking("200").value().budget, 200);
    EXPECT_FALSE(parse_thinking("0").ok());
    EXPECT_FALSE(parse_thinking("maybe").ok());
}

// Risk: a text of several lines comes back from the history as several, or changed.
TEST(ChatHistory, TextsComeBack) {
    const std::string path = testing::TempDir() + "chat_history_test/folder/history";
    for (const char* text : {"plain", "two\nlines", "back\\slash \\n", "größe"})
        ASSERT_TRUE(add_to_history(path, text).ok());
    EXPECT_EQ(read_history(path),
              (std::vector<std::string>{"plain", "two\nlines", "back\\slash \\n", "größe"}));
    ASSERT_EQ(std::remove(path.c_str()), 0);
}

}  // namespace
}  // namespace sparkinfer
