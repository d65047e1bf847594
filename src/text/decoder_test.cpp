// Streaming: whole UTF-8 characters only, stop strings across pushes.
#include "text/decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "text/text_test_vocabulary.h"

namespace sparkinfer {
namespace {

constexpr const char* kBad = "\xEF\xBF\xBD";

std::string through(std::string_view bytes) {
    Utf8Buffer buffer;
    std::string out;
    for (char c : bytes) buffer.push(std::string_view(&c, 1), out);
    buffer.finish(out);
    return out;
}

TEST(Utf8Buffer, ReplacesIllFormedPartsLikeTheStandard) {
    // Risk: one U+FFFD more or less than every other program shows. Examples of Unicode, table 3-8 and
    // section 3.9.
    const std::string bad = kBad;
    EXPECT_EQ(through("a\xF1\x80\x80\xE1\x80\xC2"
                      "b\x80"
                      "c\x80\xBF"
                      "d"),
              "a" + bad + bad + bad + "b" + bad + "c" + bad + bad + "d");
    EXPECT_EQ(through("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
                      "A"),
              bad + bad + bad + bad + bad + bad + bad + bad + "A");
    EXPECT_EQ(through("\xED\xA0\x80"
                      "A"),
              bad + bad + bad + "A");
    EXPECT_EQ(through("\xF4\x91\x92\x93\xFF"
                      "A"),
              bad + bad + bad + bad + bad + "A");
    EXPECT_EQ(through("\xE2\x82"), bad);
    EXPECT_EQ(through("\xE2\x82\xAC\xF0\x9F\x98\x80"), "\xE2\x82\xAC\xF0\x9F\x98\x80");
}

TEST(Utf8Buffer, NeverEmitsPartOfACharacter) {
    // Risk: a terminal or a JSON client sees half a character.
    Utf8Buffer buffer;
    std::string out;
    buffer.push("x\xF0\x9F", out);
    EXPECT_EQ(out, "x");
    buffer.push("\x98", out);
    EXPECT_EQ(out, "x");
    buffer.push("\x80y", out);
    EXPECT_EQ(out, "x\xF0\x9F\x98\x80y");
}

TEST(Utf8Buffer, AnyCutGivesTheSameText) {
    // Risk: what is shown depends on where tokens end. Random bytes, random cuts.
    std::mt19937 random(7);
    const unsigned char interesting[] = {0x00, 0x41, 0x80, 0xBF, 0xC2, 0xE0, 0xA0,
                                         0xED, 0xF0, 0x90, 0xF4, 0x8F, 0xFF};
    for (int round = 0; round < 500; ++round) {
        std::string bytes;
        for (size_t i = random() % 40; i > 0; --i) bytes += static_cast<char>(interesting[random() % 13]);
        Utf8Buffer buffer;
        std::string out;
        for (size_t at = 0; at < bytes.size();) {
            const size_t n = 1 + random() % 5;
            buffer.push(std::string_view(bytes).substr(at, n), out);
            at += n;
        }
        buffer.finish(out);
        EXPECT_EQ(out, through(bytes));
    }
}

TEST(Decoder, LeavesControlTokensOutAndKeepsUserDefinedOnes) {
    // Risk: <|im_end|> shows up in answers, or <think> does not reach the parser.
    const TestVocabulary v;
    const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
    const std::vector<TokenId> ids{TokenId(v.id("<think>")), TokenId(v.id("hello")),
                                   TokenId(v.id("<|im_end|>"))};
    EXPECT_EQ(t.decode(ids), "<think>hello");
    EXPECT_EQ(t.decode(ids, true), "<think>hello<|im_end|>");
    Decoder decoder(t);
    std::string streamed;
    for (TokenId id : ids) streamed += decoder.push(id);
    EXPECT_EQ(streamed + decoder.finish(), "<think>hello");
}

TEST(Decoder, HoldsBytesUntilTheCharacterIsWhole) {
    // Risk: byte tokens of an emoji are printed one by one.
    const Tokenizer t = Tokenizer::from_metadata(TestVocabulary().metadata()).value();
    Decoder decoder(t);
    EXPECT_EQ(decoder.push(TokenId(0xF0)), "");
    EXPECT_EQ(decoder.push(TokenId(0x9F)), "");
    EXPECT_EQ(decoder.push(TokenId(0x98)), "");
    EXPECT_EQ(decoder.push(TokenId(0x80)), "\xF0\x9F\x98\x80");
    EXPECT_EQ(decoder.push(TokenId(0xF0)), "");
    EXPECT_EQ(decoder.finish(), kBad);
    EXPECT_EQ(decoder.finish(), "");
}

TEST(StopMatcher, FindsAStopStringAcrossPushes) {
    // Risk: part of a stop string is shown before it is recognised.
    StopMatcher stop({"\n\nUser:"});
    EXPECT_EQ(stop.push("Hi\n"), "Hi");
    EXPECT_EQ(stop.push("x\n\nUs"), "\nx");
    EXPECT_EQ(stop.push("er: more"), "");
    EXPECT_TRUE(stop.matched());
    EXPECT_EQ(stop.match(), "\n\nUser:");
    EXPECT_EQ(stop.push("anything"), "");
    EXPECT_EQ(stop.finish(), "");
}

TEST(StopMatcher, GivesBackWhatItHeld) {
    // Risk: an answer loses its end because it looked like a stop string.
    StopMatcher stop({"STOP", ""});
    EXPECT_EQ(stop.push("a STO"), "a ");
    EXPECT_FALSE(stop.matched());
    EXPECT_EQ(stop.finish(), "STO");
}

TEST(StopMatcher, AnyCutGivesTheSameAnswer) {
    // Risk: the result depends on token boundaries. Random texts over few letters, against a plain search.
    std::mt19937 random(11);
    const std::vector<std::string> stops{"aab", "ba", "abab", "bbbb"};
    for (int round = 0; round < 2000; ++round) {
        std::string text;
        for (size_t i = random() % 12; i > 0; --i) text += "abc"[random() % 3];
        size_t expected = std::string::npos;
        for (const std::string& s : stops) expected = std::min(expected, text.find(s));
        StopMatcher matcher(stops);
        std::string out;
        for (char c : text) out += matcher.push(std::string_view(&c, 1));
        out += matcher.finish();
        EXPECT_EQ(matcher.matched(), expected != std::string::npos) << text;
        // One by one, the stop string that is complete first wins, so the text may end before the leftmost
        // one only.
        if (!matcher.matched()) {
            EXPECT_EQ(out, text);
        } else {
            EXPECT_EQ(text.compare(0, out.size(), out), 0);
            EXPECT_EQ(text.compare(out.size(), matcher.match().size(), matcher.match()), 0) << text;
        }
    }
}

}  // namespace
}  // namespace sparkinfer
