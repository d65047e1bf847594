#include "cli/word_wrap.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cli/terminal.h"

namespace sparkinfer {
namespace {

// As much of a terminal as the text asks for; lines without the spaces at their ends.
class Screen {
  public:
    explicit Screen(int columns) : columns_(columns) {}
    void write(std::string_view text) {
        for (size_t at = 0; at < text.size();) {
            const auto [code, bytes] = utf8_character(text, at);
            if (code == '\x1b') {
                const size_t end = text.find_first_of("CJ", at);
                if (text[end] == 'C')
                    x_ = std::min(columns_ - 1, x_ + std::stoi(std::string(text.substr(at + 2))));
                else
                    lines_.back().resize(size_t(x_));
                at = end + 1;
                continue;
            }
            if (code == '\r')
                x_ = 0;
            else if (code == '\n')
                next();
            else if (code == '\t')
                x_ = std::min(columns_ - 1, (x_ / 8 + 1) * 8);
            else
                put(std::string(text.substr(at, bytes)), cell_width(code));
            at += bytes;
        }
    }
    std::vector<std::string> lines() const {
        std::vector<std::string> lines;
        for (const auto& cells : lines_) {
            std::string& line = lines.emplace_back();
            for (const std::string& cell : cells) line += cell;
            line.erase(line.find_last_not_of(' ') + 1);
        }
        return lines;
    }

  private:
    void next() {
        lines_.emplace_back();
        x_ = 0;
    }
    void put(const std::string& character, int cells) {
        if (x_ + cells > columns_ && x_ > 0) next();
        auto& line = lines_.back();
        if (cells == 0 && !line.empty()) {
            line.back() += character;
            return;
        }
        line.resize(size_t(x_), " ");
        line.push_back(character);
        if (cells == 2) line.emplace_back();
        x_ += cells;
    }

    int columns_, x_ = 0;
    std::vector<std::vector<std::string>> lines_ = {{}};
};

using Lines = std::vector<std::string>;

Lines wrapped(const std::vector<std::string>& pieces, int columns) {
    WordWrap wrap;
    Screen screen(columns);
    for (const std::string& piece : pieces) screen.write(wrap.push(piece, columns));
    return screen.lines();
}

// Risk: words are broken, or one is written twice.
TEST(WordWrap, BreaksBetweenWords) {
    EXPECT_EQ(wrapped({"one two three four"}, 9), (Lines{"one two", "three", "four"}));
    EXPECT_EQ(wrapped({"on", "e t", "wo th", "re", "e", " fou", "r"}, 9),
              (Lines{"one two", "three", "four"}));
    EXPECT_EQ(wrapped({"one two", "x"}, 7), (Lines{"one", "twox"}));
    EXPECT_EQ(wrapped({"one two"}, 500), (Lines{"one two"}));
}

// Risk: a line that is just full is followed by an empty one, or a space begins the next.
TEST(WordWrap, FullLines) {
    EXPECT_EQ(wrapped({"one two", " ", "three"}, 7), (Lines{"one two", "three"}));
    EXPECT_EQ(wrapped({"one two\nthree"}, 7), (Lines{"one two", "three"}));
    EXPECT_EQ(wrapped({"one two  \n\nthree"}, 7), (Lines{"one two", "", "three"}));
    EXPECT_EQ(wrapped({"a\n    code"}, 8), (Lines{"a", "    code"}));
    EXPECT_EQ(wrapped({"a\tb\tc"}, 10), (Lines{"a       b", "c"}));
}

// Risk: words longer than a line, wide characters, or the narrowest terminal lose text.
TEST(WordWrap, LongWordsWideCharactersNarrowTerminals) {
    EXPECT_EQ(wrapped({"abcdefghij"}, 4), (Lines{"abcd", "efgh", "ij"}));
    EXPECT_EQ(wrapped({"x abcdef y"}, 4), (Lines{"x", "abcd", "ef y"}));
    EXPECT_EQ(wrapped({"日本語です"}, 5), (Lines{"日本", "語で", "す"}));
    EXPECT_EQ(wrapped({"ab cd"}, 1), (Lines{"a", "b", "c", "d"}));
    EXPECT_EQ(wrapped({"\u0065\u0301t\u0065\u0301 a"}, 3), (Lines{"\u0065\u0301t\u0065\u0301", "a"}));
}

// Risk: some division into pieces, or a change of width, loses or doubles characters.
TEST(WordWrap, NothingIsLost) {
    std::mt19937 random(11);
    const Lines letters = {"a", "b", " ", "  ", "\n", "é", "日", "wordy", "\t"};
    for (int round = 0; round < 3000; ++round) {
        WordWrap wrap;
        const int columns = int(random() % 12) + 1;
        Screen screen(columns);
        std::string text;
        for (int i = 0; i < 40; ++i) {
            std::string piece;
            for (unsigned n = random() % 4; n > 0; --n) piece += letters[random() % letters.size()];
            text += piece;
            screen.write(wrap.push(piece, columns));
        }
        std::string shown, expected;
        for (const std::string& line : screen.lines()) shown += line;
        std::erase_if(shown, [](char c) { return c == ' ' || c == '\t'; });
        for (const char c : text)
            if (c != ' ' && c != '\t' && c != '\n') expected += c;
        ASSERT_EQ(shown, expected) << columns << " columns: " << text;
    }
}

// Risk: after a change of width a word is taken off a place where it does not stand.
TEST(WordWrap, AnotherWidth) {
    WordWrap wrap;
    wrap.push("one two three fo", 20);
    EXPECT_EQ(wrap.push("ur", 10), "ur");
    EXPECT_EQ(wrap.push(" five", 10), " f\r\x1b[9C\x1b[J\nfive");
    EXPECT_EQ(wrap.push(" six", 300), " six");
    EXPECT_EQ(wrap.push("the", 10), "th\r\x1b[8C\x1b[J\nthe");
}

}  // namespace
}  // namespace sparkinfer
