// Conversations as clients send them back, against templates of several habits.
#include "text/history.h"

#include <gtest/gtest.h>

#include "core/json.h"
#include "text/text_test_vocabulary.h"

namespace sparkinfer {
namespace {

using Role = HistoryMessage::Role;

constexpr const char* kTurn = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}";
const std::string kChatMl = fmt::format("{{% for m in messages %}}{}{{% endfor %}}", kTurn);
// Qwen's: one system message, at the beginning.
const std::string kSystemFirst = fmt::format(
    "{{% for m in messages %}}{{% if m.role == 'system' and not loop.first %}}"
    "{{{{ raise_exception('System message must be at the beginning.') }}}}{{% endif %}}{}{{% endfor %}}",
    kTurn);
// Gemma's: no system message, turns.
const std::string kTurns = fmt::format(
    "{{% for m in messages %}}{{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}}"
    "{{{{ raise_exception('turns') }}}}{{% endif %}}{}{{% endfor %}}",
    kTurn);
// Prints all system messages first, and one that leaves later ones out.
const std::string kMovesSystem =
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
const std::string kDropsSystem =
    "{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}";

TemplateHabits habits_of(const std::string& source) {
    return template_habits(ChatTemplate::from_metadata(TestVocabulary().metadata(source)).value());
}

// The arranged messages, one a line, then the notices.
std::string arranged(std::vector<HistoryMessage> messages, const TemplateHabits& habits,
                     HistoryOptions options = {}) {
    const char letters[] = {'S', 'U', 'A', 'T'};
    std::vector<std::string> notices;
    const auto out = arrange_history(std::move(messages), habits, options, notices);
    if (!out.ok()) return "error: " + out.error().message;
    std::string text;
    for (const HistoryMessage& m : out.value())
        text += fmt::format("{}{} {}\n", letters[static_cast<int>(m.role)], m.call_id, m.content);
    for (const std::string& notice : notices) text += "! " + notice + "\n";
    return text;
}

HistoryMessage system(std::string text) { return {.role = Role::system, .content = std::move(text)}; }
HistoryMessage user(std::string text) { return {.role = Role::user, .content = std::move(text)}; }
HistoryMessage assistant(std::string text, std::vector<HistoryCall> calls = {}) {
    return {.role = Role::assistant, .content = std::move(text), .calls = std::move(calls)};
}
HistoryMessage result(std::string id, std::string text) {
    return {.role = Role::tool, .content = std::move(text), .call_id = std::move(id)};
}

TEST(TemplateHabits, AreFoundByRendering) {
    // Risk: a conversation is refused, or its prompt differs from the one that was cached.
    const auto told = [](const std::string& source) {
        const TemplateHabits h = habits_of(source);
        return fmt::format("{:d}{:d}{:d}{:d}", h.system, h.system_run, h.system_later, h.user_run);
    };
    EXPECT_EQ(told(kChatMl), "1111");
    EXPECT_EQ(told(kSystemFirst), "1001");
    EXPECT_EQ(told(kTurns), "0000");
    EXPECT_EQ(told(kMovesSystem), "1101");
    EXPECT_EQ(told(kDropsSystem), "1001");
}

TEST(History, LaterSystemMessagesStayWhereTheyAre) {
    // Risk: an agent's system message in the middle is an error, or moves to the front and changes every
    // token after it.
    const std::vector<HistoryMessage> messages{system("a"), system("b"),    user("c"),
                                               system("d"), assistant("e"), system("f")};
    EXPECT_EQ(arranged(messages, habits_of(kChatMl)), "S a\nS b\nU c\nS d\nA e\nS f\n");
    EXPECT_EQ(arranged(messages, habits_of(kSystemFirst)),
              "S a\n\nb\nU c\nU [System message]\nd\nA e\nU [System message]\nf\n");
    EXPECT_EQ(arranged(messages, habits_of(kTurns)),
              "U [System message]\na\n\n[System message]\nb\n\nc\n\n[System message]\nd\nA e\nU [System "
              "message]\nf\n");
    // What comes later changes nothing before it.
    const std::string begin = arranged({system("a"), user("c")}, habits_of(kSystemFirst));
    EXPECT_TRUE(arranged({system("a"), user("c"), system("d"), user("e")}, habits_of(kSystemFirst))
                    .starts_with(begin));
}

TEST(History, ArrangedMessagesAreTaken) {
    // Risk: the rule is applied and the template refuses the conversation all the same.
    for (const std::string& source : {kChatMl, kSystemFirst, kTurns}) {
        const ChatTemplate chat = ChatTemplate::from_metadata(TestVocabulary().metadata(source)).value();
        std::vector<std::string> notices;
        const auto messages =
            arrange_history({system("a"), system("b"), user("c"), system("d"), assistant("e"), user("f")},
                            template_habits(chat), {}, notices);
        ASSERT_TRUE(messages.ok());
        const Result<Rendered> prompt = chat.render(history_json(messages.value(), notices));
        ASSERT_TRUE(prompt.ok()) << prompt.error().message;
        EXPECT_NE(prompt.value().text.find("d"), std::string::npos);
    }
}

TEST(History, ACallWithoutAResultIsAccepted) {
    // Risk: a conversation whose stream was dropped once is refused for ever, or a result is told that there
    // is.
    const std::vector<HistoryCall> two{{.id = "x", .name = "f"}, {.id = "y", .name = "g"}};
    const std::vector<HistoryMessage> messages{user("a"), assistant("b", two), result("y", "r"), user("c")};
    EXPECT_EQ(arranged(messages, {}),
              "U a\nA b\nTy r\nTx No result: the call was interrupted.\nU c\n"
              "! messages[1]: the call 'x' of 'f' has no result, which the model is told\n");
    EXPECT_EQ(arranged(messages, {}, {.refuse_missing_results = true}),
              "error: messages[1]: the call 'x' of 'f' has no result, expected a tool message");
    // Two turns may use one id; results without ids are taken in order; a result may come after other
    // messages.
    EXPECT_EQ(arranged({assistant("", {{.id = "x"}}), result("x", "r"), assistant("", {{.id = "x"}}),
                        result("x", "s")},
                       {}),
              "A \nTx r\nA \nTx s\n");
    EXPECT_EQ(arranged({assistant("", two), result("", "r"), result("", "s")}, {}), "A \nT r\nT s\n");
    EXPECT_EQ(arranged({assistant("", {{.id = "x"}}), user("u"), result("x", "r")}, {}), "A \nU u\nTx r\n");
    EXPECT_EQ(arranged({user("a"), assistant("", two)}, {}, {.continue_final_message = true}), "U a\nA \n");
}

TEST(History, ArgumentsBecomeObjects) {
    // Risk: a conversation whose arguments were cut off is refused for ever, or a template prints "None".
    std::vector<std::string> notices;
    const auto object = [&](const char* text) {
        return object_arguments({.id = "x", .name = "f", .arguments = text}, notices);
    };
    EXPECT_EQ(object(R"({"b": 1.0, "a": "\u00e9"})"), R"({"b": 1.0, "a": "\u00e9"})");
    EXPECT_EQ(object(""), "{}");
    EXPECT_EQ(object("null"), "{}");
    EXPECT_TRUE(notices.empty());
    EXPECT_EQ(object(R"({"a": "b)"), R"({"arguments":"{\"a\": \"b"})");
    EXPECT_EQ(object("[1]"), R"({"arguments":"[1]"})");
    ASSERT_EQ(notices.size(), 2U);
    EXPECT_EQ(
        notices[0],
        "the arguments of the call 'x' of 'f' are no JSON, expected a JSON object: they are kept as text");
}

TEST(History, TemplatesGetMappingsInTheirOrder) {
    // Risk: a template that walks through the arguments finds a string, or another order than the model
    // wrote.
    const ChatTemplate chat =
        ChatTemplate::from_metadata(
            TestVocabulary().metadata(
                "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in "
                "c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}{% endfor %}"
                "{% if m.name %}{{ m.name }}:{{ m.content }}{% endif %}{{ m.reasoning_content }}{% endfor "
                "%}"))
            .value();
    std::vector<std::string> notices;
    HistoryMessage called = assistant("", {{.id = "1", .name = "f", .arguments = R"({"z": 1, "a": "x"})"},
                                           {.id = "2", .name = "g", .arguments = "{\"cut"}});
    called.reasoning = "why";
    const std::vector<HistoryMessage> messages{called, result("2", "r")};
    const Result<Rendered> prompt = chat.render(history_json(messages, notices));
    ASSERT_TRUE(prompt.ok()) << prompt.error().message;
    EXPECT_EQ(prompt.value().text, "z=1;a=x;arguments={\"cut;whyg:r");
}

}  // namespace
}  // namespace sparkinfer
