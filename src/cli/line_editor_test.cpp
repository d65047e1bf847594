#include "cli/line_editor.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

std::vector<std::string> rows(std::string_view prompt, const std::string& text, int columns) {
    return lay_out(prompt, {text, text.size()}, columns).rows;
}

// Risk: a cursor that stops inside a character, or passes one.
TEST(EditBuffer, MovesByCharactersWithWhatJoinsThem) {
    EditBuffer buffer{"ae\u0301\u65e5b", 0};  // e with a combining accent, a wide character
    std::vector<size_t> stops;
    do stops.push_back(buffer.cursor);
    while (buffer.right());
    EXPECT_EQ(stops, (std::vector<size_t>{0, 1, 4, 7, 8}));
    std::vector<size_t> back;
    do back.insert(back.begin(), buffer.cursor);
    while (buffer.left());
    EXPECT_EQ(back, stops);
}

TEST(EditBuffer, MovesByWordsAndLines) {
    EditBuffer buffer{"one two\nthree four\nx", 17};
    buffer.word_left();
    EXPECT_EQ(buffer.cursor, 14u);
    EXPECT_TRUE(buffer.up());
    EXPECT_EQ(buffer.cursor, 6u);
    EXPECT_FALSE(buffer.up());
    buffer.line_end();
    EXPECT_EQ(buffer.cursor, 7u);
    EXPECT_TRUE(buffer.down());
    EXPECT_TRUE(buffer.down());
    EXPECT_EQ(buffer.cursor, 20u) << "a shorter line ends the way";
    EXPECT_FALSE(buffer.down());
    buffer.line_begin();
    EXPECT_EQ(buffer.cursor, 19u);
    EXPECT_EQ(buffer.cut(8), "three four\n");
    EXPECT_EQ(buffer.text, "one two\nx");
}

// Risk: rows wider than the terminal, which then wraps them itself and all that is drawn later is off.
TEST(EditLayout, RowsFitAndTheCursorIsWhereTheTextGoesOn) {
    EXPECT_EQ(rows("> ", "abcd", 4), (std::vector<std::string>{"> ab", "cd"}));
    EXPECT_EQ(rows("> ", "ab", 4), (std::vector<std::string>{"> ab", ""})) << "the cursor needs a cell";
    EXPECT_EQ(rows("", "a\u65e5\u65e5", 4), (std::vector<std::string>{"a\u65e5", "\u65e5"}))
        << "wide ones stay whole";
    EXPECT_EQ(rows("> ", "a\n\nb", 80), (std::vector<std::string>{"> a", "", "b"}));
    EXPECT_EQ(rows("> ", "ab", 1), (std::vector<std::string>{">", " ", "a", "b", ""}));
    const EditLayout layout = lay_out("> ", {"abcdef", 2}, 4);
    EXPECT_EQ(layout.cursor_row, 1u);
    EXPECT_EQ(layout.cursor_column, 0);
}

TEST(EditLayout, AnOpenTextGoesOn) {
    EXPECT_TRUE(goes_on("a\\"));
    EXPECT_TRUE(goes_on("\"\"\"a\nb"));
    EXPECT_FALSE(goes_on("\"\"\"a\nb\"\"\""));
    EXPECT_FALSE(goes_on("say \"\"\" as it is"));
    EXPECT_FALSE(goes_on(""));
}

// Risk: a name out of a model's file, or its answer, drives the terminal.
TEST(Terminal, ControlCharactersOfOthersAreNotObeyed) {
    EXPECT_EQ(terminal_safe("a\x1b[2J\u009b\r\n\tb\x7f"), "a\uFFFD[2J\uFFFD\uFFFD\n\tb\uFFFD");
    EXPECT_EQ(cell_width(U'a'), 1);
    EXPECT_EQ(cell_width(U'\u65e5'), 2);
    EXPECT_EQ(cell_width(U'\u0301'), 0);
}

}  // namespace
}  // namespace sparkinfer
