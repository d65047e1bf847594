// Stop strings in answers that have more than content.
#include "text/visible_stops.h"

#include "text/answer_test.h"

namespace sparkinfer {
namespace {

constexpr const char* kCall =
    "<tool_call>\n<function=write>\n<parameter=path>\nSTOP END\n</parameter>\n</function>\n</tool_call>";
constexpr const char* kCallParts = "call:write\narguments:{\"path\": \"STOP END\"}\nend:";

// The parts and, in brackets, the stop string; the same for every burst of 1 to 8 bytes.
std::string stopped(const SplitCase& c, const std::vector<std::string>& stops, const std::string& text) {
    std::string first;
    for (size_t burst = 0; burst <= 8; ++burst) {
        VisibleStops splitter(AnswerSplitter(c.format, c.tools, c.in_reasoning), stops);
        std::vector<AnswerPart> parts;
        for (size_t at = 0; at < text.size(); at += burst ? burst : text.size())
            splitter.push(burst ? std::string_view(text).substr(at, burst) : text, parts);
        splitter.finish(parts);
        const std::string now = fmt::format("{} [{}]", joined(parts), splitter.match());
        if (burst == 0) first = now;
        EXPECT_EQ(now, first) << "bursts of " << burst << " of:\n" << text;
    }
    return first;
}

TEST(VisibleStops, MatchInContentAlone) {
    // Risk: a stop string in a file that a call writes, or in a thought, ends the answer in the middle of it.
    EXPECT_EQ(stopped({}, {"STOP"}, std::string("Now\n\n") + kCall + "\nx STOP y"),
              std::string("content:Now\n") + kCallParts + "\ncontent:x  [STOP]");
    EXPECT_EQ(stopped({.in_reasoning = true}, {"STOP", "<tool_call>", "</think>"},
                      std::string("STOP\n</think>\n\n") + kCall),
              std::string("reasoning:STOP\n") + kCallParts + " []");
    EXPECT_EQ(stopped({}, {"END"}, "a EN END b"), "content:a EN  [END]");
    EXPECT_EQ(stopped({}, {"\n\n"}, "a\nb\n\nc"), "content:a\nb [\n\n]");
    EXPECT_EQ(stopped({}, {}, "a STOP"), "content:a STOP []");
    EXPECT_EQ(stopped({}, {"", "b"}, "abc"), "content:a [b]");
}

TEST(VisibleStops, WhatWasHeldBackComesInItsPlace) {
    // Risk: the beginning of a stop string is lost, or comes after the call that followed it.
    EXPECT_EQ(stopped({}, {"STOP"}, std::string("ST") + kCall + "OP"),
              std::string("content:ST\n") + kCallParts + "\ncontent:OP []");
    EXPECT_EQ(stopped({}, {"STOP"}, "a STO"), "content:a STO []");
    EXPECT_EQ(stopped({}, {"\xC3\xA9"}, "\xC3\xA8\xC3\xA9"), "content:\xC3\xA8 [\xC3\xA9]");
}

TEST(VisibleStops, TheOneThatIsCompleteFirstCounts) {
    // Risk: which stop string is reported depends on token boundaries.
    EXPECT_EQ(stopped({}, {"abcd", "bc"}, "xabcd"), "content:xa [bc]");
    EXPECT_EQ(stopped({}, {"b", "ab"}, "xab"), "content:x [ab]");
}

}  // namespace
}  // namespace sparkinfer
