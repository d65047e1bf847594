// edit_buffer.cpp — a text with a cursor, and how it lies on a screen; no terminal in sight.
#include <algorithm>

#include "cli/line_editor.h"
#include "cli/terminal.h"

namespace sparkinfer {

namespace {

constexpr int kTabCells = 4;

size_t character_before(std::string_view text, size_t at) {
    do --at;
    while (at > 0 && (uint8_t(text[at]) & 0xc0) == 0x80);
    return at;
}

bool joins(std::string_view text, size_t at) {
    return at < text.size() && text[at] != '\n' && cell_width(utf8_character(text, at).code) == 0;
}

// Bytes from the beginning of the cursor's line, in characters.
size_t column_of(const EditBuffer& buffer, size_t begin) {
    size_t column = 0;
    for (size_t at = begin; at < buffer.cursor; at += utf8_character(buffer.text, at).bytes) ++column;
    return column;
}

void move_to_column(EditBuffer& buffer, size_t begin, size_t column) {
    buffer.cursor = begin;
    while (column-- > 0 && buffer.cursor < buffer.text.size() && buffer.text[buffer.cursor] != '\n')
        buffer.cursor += utf8_character(buffer.text, buffer.cursor).bytes;
}

}  // namespace

void EditBuffer::insert(std::string_view typed) {
    text.insert(cursor, typed);
    cursor += typed.size();
}

bool EditBuffer::left() {
    if (cursor == 0) return false;
    do cursor = character_before(text, cursor);
    while (cursor > 0 && joins(text, cursor));
    return true;
}

bool EditBuffer::right() {
    if (cursor == text.size()) return false;
    do cursor += utf8_character(text, cursor).bytes;
    while (joins(text, cursor));
    return true;
}

void EditBuffer::word_left() {
    const auto blank = [&] { return text[cursor - 1] == ' ' || text[cursor - 1] == '\n'; };
    while (cursor > 0 && blank()) left();
    while (cursor > 0 && !blank()) left();
}

void EditBuffer::word_right() {
    const auto blank = [&] { return text[cursor] == ' ' || text[cursor] == '\n'; };
    while (cursor < text.size() && blank()) right();
    while (cursor < text.size() && !blank()) right();
}

void EditBuffer::line_begin() {
    const size_t line_break = cursor == 0 ? std::string::npos : text.rfind('\n', cursor - 1);
    cursor = line_break == std::string::npos ? 0 : line_break + 1;
}

void EditBuffer::line_end() { cursor = std::min(text.find('\n', cursor), text.size()); }

bool EditBuffer::up() {
    EditBuffer here = *this;
    here.line_begin();
    if (here.cursor == 0) return false;
    const size_t column = column_of(*this, here.cursor);
    --here.cursor;
    here.line_begin();
    move_to_column(*this, here.cursor, column);
    return true;
}

bool EditBuffer::down() {
    EditBuffer here = *this;
    here.line_begin();
    const size_t next = text.find('\n', cursor);
    if (next == std::string::npos) return false;
    move_to_column(*this, next + 1, column_of(*this, here.cursor));
    return true;
}

std::string EditBuffer::cut(size_t to) {
    const size_t begin = std::min(cursor, to), end = std::max(cursor, to);
    std::string taken = text.substr(begin, end - begin);
    text.erase(begin, end - begin);
    cursor = begin;
    return taken;
}

bool goes_on(std::string_view text) {
    constexpr std::string_view kQuotes = "\"\"\"";
    if (text.ends_with('\\')) return true;
    return text.starts_with(kQuotes) && text.find(kQuotes, kQuotes.size()) == std::string_view::npos;
}

EditLayout lay_out(std::string_view prompt, const EditBuffer& buffer, int columns) {
    EditLayout layout;
    layout.rows.emplace_back();
    int column = 0;
    const auto next_row = [&] {
        layout.rows.emplace_back();
        column = 0;
    };
    const auto place = [&](std::string_view bytes, int width) {
        if (column > 0 && column + width > columns) next_row();
        layout.rows.back() += bytes;
        column += width;
    };
    const auto cursor_here = [&](int width) {
        if (column > 0 && column + width > columns) next_row();
        layout.cursor_row = layout.rows.size() - 1;
        layout.cursor_column = column;
    };
    const auto cells = [](char32_t code) { return code == '\t' ? kTabCells : cell_width(code); };
    for (size_t at = 0; at < prompt.size();) {
        const auto [code, bytes] = utf8_character(prompt, at);
        place(prompt.substr(at, bytes), cells(code));
        at += bytes;
    }
    const std::string_view text = buffer.text;
    for (size_t at = 0; at < text.size();) {
        const auto [code, bytes] = utf8_character(text, at);
        if (at == buffer.cursor) cursor_here(code == '\n' ? 1 : cells(code));
        if (code == '\n')
            next_row();
        else if (code == '\t')
            place("    ", kTabCells);
        else
            place(text.substr(at, bytes), cells(code));
        at += bytes;
    }
    if (buffer.cursor == text.size()) cursor_here(1);
    return layout;
}

}  // namespace sparkinfer
