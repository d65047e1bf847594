#include "cli/word_wrap.h"

#include <fmt/core.h>

#include "cli/terminal.h"

namespace sparkinfer {

namespace {

constexpr int kTab = 8;

}  // namespace

void WordWrap::new_line() {
    column_ = word_column_ = 0;
    word_.clear();
    full_ = false;
}

std::string WordWrap::push(std::string_view text, int columns) {
    if (columns != columns_ && columns_ != 0) {
        // The terminal has arranged its lines anew; where the cursor is now is known to it alone.
        column_ %= columns;
        word_column_ = column_;
        word_.clear();
    }
    columns_ = columns;
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const auto [code, count] = utf8_character(text, at);
        const std::string_view bytes = text.substr(at, count);
        at += count;
        if (code == '\n') {
            out += '\n';
            new_line();
        } else if (code == ' ' || code == '\t') {
            space(bytes, code == ' ' ? 1 : kTab - column_ % kTab, &out);
        } else {
            character(bytes, cell_width(code), &out);
        }
    }
    return out;
}

void WordWrap::space(std::string_view bytes, int cells, std::string* out) {
    full_ = full_ || column_ + cells > columns_;
    word_.clear();
    if (full_) return;
    *out += bytes;
    column_ += cells;
    word_column_ = column_;
}

void WordWrap::character(std::string_view bytes, int cells, std::string* out) {
    if (full_) {
        *out += '\n';
        new_line();
    }
    if (cells == 2) {
        word_.clear();
        word_column_ = column_;
    }
    if (column_ + cells > columns_) break_line(out);
    *out += bytes;
    word_ += bytes;
    column_ += cells;
    if (cells != 2) return;
    word_.clear();
    word_column_ = column_;
}

// Before a character that does not fit.
void WordWrap::break_line(std::string* out) {
    if (word_column_ == 0) {  // the word has the line for itself
        column_ = 0;
        word_.clear();
        return;
    }
    if (!word_.empty()) *out += fmt::format("\r\x1b[{}C\x1b[J", word_column_);
    *out += "\n" + word_;
    column_ -= word_column_;
    word_column_ = 0;
}

}  // namespace sparkinfer
