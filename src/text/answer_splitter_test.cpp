// Reasoning, content and the borders between them and calls; every cut of the text. Calls are in
// qwen_xml_reader_test and hermes_reader_test.
#include "text/answer_splitter.h"

#include <random>

#include "text/answer_test.h"

namespace sparkinfer {
namespace {

constexpr const char* kWrite =
    "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n<parameter=count>\n3\n</"
    "parameter>\n"
    "</function>\n</tool_call>";
constexpr const char* kWriteParts = "call:write\narguments:{\"path\": \"a.txt\", \"count\": 3}\nend:";

TEST(AnswerFormat, IsReadOffTheTemplate) {
    // Risk: a model's calls are taken for text, or another format's for its own. The shapes of real
    // templates.
    const AnswerFormat qwen = answer_format(
        R"({{- '\n\n<tool_call>\n<function=' + tool_call.name + '>\n' }}{{- '<parameter=' + name + '>\n' }}<think></think>)");
    EXPECT_EQ(qwen.tools, ToolFormat::qwen_xml);
    EXPECT_TRUE(qwen.reasoning);
    EXPECT_EQ(qwen.think_open + qwen.think_close, "<think></think>");
    const AnswerFormat hermes = answer_format(
        R"({{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args>}\n</tool_call>" }})");
    EXPECT_EQ(hermes.tools, ToolFormat::hermes_json);
    EXPECT_FALSE(hermes.reasoning);
    // Parts printed one by one.
    EXPECT_EQ(
        answer_format("{{- \"<tool_call>\n\" }}\n{{- '{\"name\": <name>, \"arguments\": <dict>}\n' }}").tools,
        ToolFormat::hermes_json);
    // In the JSON of a configuration file.
    EXPECT_EQ(
        answer_format(
            R"("chat_template": "{{- \"<tool_call>\\n{\\\"name\\\": <name>, \\\"arguments\\\": <args>}\" }}")")
            .tools,
        ToolFormat::hermes_json);
    // GLM's, MiniMax's and ChatML's.
    EXPECT_EQ(answer_format("<tool_call>{function-name}\n<arg_key>{arg-key}</arg_key>").tools,
              ToolFormat::none);
    EXPECT_EQ(answer_format("<minimax:tool_call>\n<invoke name=\"f\">").tools, ToolFormat::none);
    EXPECT_EQ(answer_format("{{ '<|im_start|>' + message.role }}").tools, ToolFormat::none);
    EXPECT_EQ(answer_format("<mm:think>{{ x }}</mm:think>").think_close, "</mm:think>");
}

TEST(AnswerFormat, KnowsWhoOpenedTheReasoning) {
    // Risk: reasoning shows up as content because its opening tag is in the prompt, or a user's word opens
    // it.
    EXPECT_TRUE(starts_in_reasoning(kQwen, "<|im_start|>assistant\n<think>\n"));
    EXPECT_TRUE(starts_in_reasoning(kQwen, "<|im_start|>assistant\n<think>"));
    EXPECT_FALSE(starts_in_reasoning(kQwen, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    EXPECT_FALSE(starts_in_reasoning(kQwen, "what is <think>?<|im_end|>\n<|im_start|>assistant\n"));
    EXPECT_FALSE(starts_in_reasoning({}, "<think>\n"));
    EXPECT_FALSE(starts_in_reasoning(kQwen, "\n"));
}

TEST(AnswerSplitter, SplitsReasoning) {
    // Risk: tags or their line breaks show, or characters of the text between them are lost.
    const SplitCase opened{.in_reasoning = true}, closed{};
    EXPECT_EQ(split(closed, "<think>\n why\n\n so \n</think>\n\n yes\n"),
              "reasoning: why\n\n so \ncontent: yes\n");
    EXPECT_EQ(split(closed, "\n <think> why</think>yes"), "reasoning: why\ncontent:yes");
    EXPECT_EQ(split(opened, "why\n</think>\n\nyes"), "reasoning:why\ncontent:yes");
    EXPECT_EQ(split(opened, "\n<think>\nwhy\n</think>\n\nyes"), "reasoning:why\ncontent:yes");
    EXPECT_EQ(split(opened, "\n\n</think>\n\nyes"), "content:yes");
    EXPECT_EQ(split(opened, "a < b </thin </think>c</think>d"),
              "reasoning:a < b </thin \ncontent:c</think>d");
    // No reasoning: nothing is markup, white space stays.
    EXPECT_EQ(split(closed, "\n yes <think>no</think>"), "content:\n yes <think>no</think>");
    EXPECT_EQ(split(closed, "<thin"), "content:<thin");
}

TEST(AnswerSplitter, AnAnswerThatEndsInReasoningHasNoContent) {
    // Risk: half a thought is shown as the answer, or everything is hidden although the reasoning ended.
    EXPECT_EQ(split({.in_reasoning = true}, "why\n"), "reasoning:why\n");
    EXPECT_EQ(split({.in_reasoning = true}, "why</thi"), "reasoning:why</thi");
    EXPECT_EQ(split({}, "<think>why"), "reasoning:why");
    EXPECT_EQ(split({.in_reasoning = true}, "why</think>yes"), "reasoning:why\ncontent:yes");
    EXPECT_EQ(split({.in_reasoning = true}, ""), "");
}

TEST(AnswerSplitter, SaysWhetherItIsInReasoning) {
    // Risk: tokens of the answer count as reasoning or the other way round.
    std::vector<AnswerPart> parts;
    AnswerSplitter splitter(kQwen, test_tools(), true);
    EXPECT_TRUE(splitter.in_reasoning());
    splitter.push("why\n</thin", parts);
    EXPECT_TRUE(splitter.in_reasoning());
    splitter.push("k>", parts);
    EXPECT_FALSE(splitter.in_reasoning());
    EXPECT_FALSE(AnswerSplitter(kQwen, test_tools(), false).in_reasoning());
}

TEST(AnswerSplitter, RawIsByteForByte) {
    // Risk: plain completions lose tags or line breaks.
    const std::string text = std::string("\n\n<think>a</think>\n\n") + kWrite + "\n\n</think> \n";
    EXPECT_EQ(split({.format = {}}, text), "content:" + text);
    // Without tools a call is text.
    EXPECT_EQ(split({.tools = {}}, kWrite), std::string("content:") + kWrite);
}

TEST(AnswerSplitter, LineBreaksAroundCallsGo) {
    // Risk: content of blank lines beside calls, which no template prints.
    EXPECT_EQ(split({}, std::string("Now.\n\n") + kWrite + "\n"),
              std::string("content:Now.\n") + kWriteParts);
    EXPECT_EQ(split({}, std::string(kWrite) + "\n" + kWrite), std::string(kWriteParts) + "\n" + kWriteParts);
    EXPECT_EQ(split({}, std::string(kWrite) + "\n\nDone.\n"), std::string(kWriteParts) + "\ncontent:Done.\n");
    EXPECT_EQ(split({}, "Now.\n\n"), "content:Now.\n\n");
    EXPECT_EQ(split({.in_reasoning = true}, std::string("why\n</think>\n\n") + kWrite),
              std::string("reasoning:why\n") + kWriteParts);
}

TEST(AnswerSplitter, ProseAboutCallsFlowsOn) {
    // Risk: a stream stalls for ever because the text mentions a tag.
    std::vector<AnswerPart> parts;
    AnswerSplitter splitter(kQwen, test_tools(), false);
    const auto shown = [&](std::string_view text) {
        parts.clear();
        splitter.push(text, parts);
        return joined(parts);
    };
    EXPECT_EQ(shown("Write `<tool"), "content:Write `");
    EXPECT_EQ(shown("s>` or "), "content:<tools>` or ");
    EXPECT_EQ(shown("`<tool_call>"), "content:`");
    EXPECT_EQ(shown("` and"), "content:<tool_call>` and");
    EXPECT_EQ(shown(" <tool_call>\n<function=f>"), "content: ");
    EXPECT_EQ(shown(" …"), "content:<tool_call>\n<function=f> …");
    EXPECT_EQ(shown("\n<tool_call>\n<fun"), "");
    parts.clear();
    splitter.finish(parts);
    EXPECT_EQ(joined(parts), "content:\n<tool_call>\n<fun");
    EXPECT_EQ(split({.format = kHermes}, "a <tool_call>{name} <tool_call>\n[1]"),
              "content:a <tool_call>{name} <tool_call>\n[1]");
    // What only looked like a call may hold a real one.
    EXPECT_EQ(split({}, std::string("<tool_call>\n") + kWrite),
              std::string("content:<tool_call>\n") + kWriteParts);
}

TEST(AnswerSplitter, ACallInReasoningCountsWhenItIsWhole) {
    // Risk: a model that calls from its reasoning is never heard, or a thought about a call is carried out.
    const SplitCase opened{.in_reasoning = true};
    EXPECT_EQ(split(opened, std::string("I need it.\n") + kWrite),
              std::string("reasoning:I need it.\n") + kWriteParts);
    EXPECT_EQ(split(opened, std::string("a\n") + kWrite + "\nb</think>c"),
              std::string("reasoning:a\n") + kWriteParts + "\nreasoning:b\ncontent:c");
    const std::string half = std::string(kWrite).substr(0, 60);
    EXPECT_EQ(split(opened, "a\n" + half), "reasoning:a\n" + half);
    EXPECT_EQ(split(opened, "a\n" + half + "</think>b"), "reasoning:a\n" + half + "\ncontent:b");
    EXPECT_EQ(
        split({.in_reasoning = true, .options = {.calls_in_reasoning = false}}, std::string("a\n") + kWrite),
        std::string("reasoning:a\n") + kWrite);
}

// Texts of fragments that are markup, or nearly.
std::string random_text(std::mt19937& random) {
    static const char* kFragments[] = {"<think>",
                                       "</think>",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "<function=",
                                       "write>",
                                       "now>",
                                       "</function>",
                                       "<parameter=",
                                       "path>",
                                       "count>",
                                       "</parameter>",
                                       "\n",
                                       "\n\n",
                                       "<",
                                       ">",
                                       "{\"name\": ",
                                       "\"write\"",
                                       ", ",
                                       "\"arguments\": ",
                                       "{\"a\": ",
                                       "\"x\\u00e9\\n\"",
                                       "[1.5, true]",
                                       "}",
                                       "}\n",
                                       "null",
                                       "12",
                                       "é",
                                       "\"",
                                       "\\",
                                       " ",
                                       "text",
                                       "</parameter>\n</function>\n</tool_call>",
                                       "<tool_call>\n<function=write>\n",
                                       "<tool_call>\n{\"name\": \"now\", \"arguments\": ",
                                       "<parameter=maybe>\n"};
    std::string text;
    for (size_t n = random() % 24; n > 0; --n) text += kFragments[random() % std::size(kFragments)];
    return text;
}

TEST(AnswerSplitter, AnyCutGivesTheSameParts) {
    // Risk: what a client gets depends on how many characters a token has, or several tokens that come at
    // once lose a brace. Random texts that are nearly markup, bursts of 1 to 8 bytes.
    std::mt19937 random(3);
    for (int round = 0; round < 2000; ++round) {
        const std::string text = random_text(random);
        const SplitCase c{.format = round % 2 ? kQwen : kHermes,
                          .in_reasoning = round % 4 >= 2,
                          .options = {.calls_in_reasoning = round % 8 < 4}};
        const std::vector<AnswerPart> whole = split_parts(c, text);
        expect_well_formed(whole, text);
        for (size_t burst = 1; burst <= 8; ++burst) {
            const std::vector<AnswerPart> parts = split_parts(c, text, burst);
            ASSERT_EQ(joined(parts), joined(whole)) << "bursts of " << burst << " of:\n" << text;
            expect_well_formed(parts, text);
        }
    }
}

TEST(AnswerSplitter, NothingOfOrdinaryTextIsLost) {
    // Risk: characters vanish from answers that hold no call. Texts over markup's own letters.
    std::mt19937 random(5);
    for (int round = 0; round < 1000; ++round) {
        std::string text = "x";
        for (size_t n = random() % 40; n > 0; --n) text += "<tool_call>\n/"[random() % 13];
        if (text.find("<tool_call>") != text.npos) continue;
        for (const size_t burst : {0, 1, 3})
            EXPECT_EQ(joined(split_parts({}, text, burst)), "content:" + text);
    }
}

}  // namespace
}  // namespace sparkinfer
