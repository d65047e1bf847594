// line_editor.h — a message typed at a terminal: editing, history, completion, paste.
//
//     LineEditor editor({.complete = …});
//     for (auto typed = editor.read("> "); typed.end == LineEditor::End::entered; typed = editor.read("> "))
//     …
//
// Text is UTF-8 in every locale. A text may have several lines: Alt-Enter, a backslash before Enter, an open
// """ or a paste put line breaks into it. docs/ARCHITECTURE.md says why this is not a library.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal.h"

namespace sparkinfer {

// A text and where in it the cursor stands, a byte offset between characters.
struct EditBuffer {
    std::string text = {};
    size_t cursor = 0;

    void insert(std::string_view typed);
    // One character, with what joins it; false at the end.
    bool left();
    bool right();
    void word_left();
    void word_right();
    void line_begin();
    void line_end();
    // To the same column of the line before or after; false where there is none.
    bool up();
    bool down();
    // Takes out what lies between the cursor and `to`, and returns it.
    std::string cut(size_t to);
};

// What is on the screen: rows of text, none wider than `columns` cells (but for a wide character where there
// is one column), and the cursor in them.
struct EditLayout {
    std::vector<std::string> rows;
    size_t cursor_row = 0;
    int cursor_column = 0;
};
EditLayout lay_out(std::string_view prompt, const EditBuffer& buffer, int columns);

// Whether a text so far wants another line: it ends with a backslash, or has an open """.
bool goes_on(std::string_view text);

class LineEditor {
  public:
    struct Options {
        bool colour = false;  // the prompt is bold
        // Whole texts that one may go on to; all begin with `text`.
        std::function<std::vector<std::string>(const std::string& text)> complete = {};
    };
    explicit LineEditor(Options options) : options_(std::move(options)) {}

    enum class End {
        entered,      // Enter
        ended,        // Ctrl-D without text, or the terminal is gone
        interrupted,  // Ctrl-C
    };
    struct Typed {
        End end;
        std::string text;  // what was there then
    };
    // REQUIRES: stdin and stdout are a terminal.
    Typed read(std::string_view prompt);

    // What the arrow keys bring back, oldest first. The same twice in a row counts once.
    void remember(const std::string& text);
    const std::vector<std::string>& history() const { return history_; }

  private:
    bool take(int key, Typed& typed);
    void edit(int key);
    void type(int key);
    void take_escape();
    void take_paste();
    bool enter();
    void recall(int step);
    void complete();
    void search();
    void suspend();
    void draw();
    void leave(std::string_view last);
    int key(int wait_ms = -1);

    Options options_;
    std::vector<std::string> history_;
    size_t place_ = 0;   // in the history; its size: the text being typed
    std::string draft_;  // that text, while another is shown
    std::string cut_;    // what Ctrl-Y brings back
    std::string prompt_;
    EditBuffer buffer_;
    std::string pending_;    // bytes read
    size_t pending_at_ = 0;  // of them taken
    bool drawn_ = false;
    size_t drawn_row_ = 0;  // of the cursor, below the first row drawn
    std::optional<TerminalMode> mode_;
};

}  // namespace sparkinfer
