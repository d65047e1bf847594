#include "cli/streams.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

// Risk: broken bytes reach the tokenizer, or good text is refused; the offset names the wrong byte.
TEST(Utf8, FindsTheFirstBadByte) {
    const auto at = [](std::string_view text) { return utf8_error_offset(text); };
    EXPECT_EQ(at(""), std::string_view::npos);
    EXPECT_EQ(at("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\xed\x9f\xbf"),
              std::string_view::npos);
    EXPECT_EQ(at("ab\xff"), 2u);
    EXPECT_EQ(at("ab\x80"), 2u);
    EXPECT_EQ(at("a\xc3"), 1u);  // cut
    EXPECT_EQ(at("a\xc3z"), 1u);
    EXPECT_EQ(at("\xc0\xaf"), 0u);  // overlong
    EXPECT_EQ(at("\xe0\x9f\xbf"), 0u);
    EXPECT_EQ(at("x\xed\xa0\x80"), 1u);  // surrogate
    EXPECT_EQ(at("\xf0\x8f\xbf\xbf"), 0u);
    EXPECT_EQ(at("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
    EXPECT_EQ(at("\xf5\x80\x80\x80"), 0u);
    EXPECT_EQ(at(std::string_view("a\0b", 3)), std::string_view::npos);
}

// Risk: an empty or broken prompt passes, or is trimmed on the way.
TEST(ReadText, RefusesEmptyAndBrokenAndKeepsTheRest) {
    EXPECT_EQ(read_text({"  x\n", {}}, "the prompt").value(), "  x\n");
    EXPECT_EQ(read_text({"", {}}, "the prompt").error().message, "-p: the prompt is empty");
    const auto broken = read_text({"ab\xff", {}}, "the prompt");
    ASSERT_FALSE(broken.ok());
    EXPECT_EQ(broken.error().kind, ErrorKind::bad_input);
    EXPECT_EQ(broken.error().message, "-p: the prompt is not UTF-8: byte 0xff at offset 2");
    EXPECT_EQ(read_text({{}, "/nonexistent/file"}, "the prompt").error().kind, ErrorKind::bad_input);
}

}  // namespace
}  // namespace sparkinfer
