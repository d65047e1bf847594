// word_wrap.h — a stream of text for a terminal, whose lines end between words.
#pragma once
#include <string>
#include <string_view>

namespace sparkinfer {

// What has been written of a line is remembered, so that a word that does not fit after all is taken off the
// screen and begun again on the next line: nothing waits for the end of a word. Words that are longer than
// a line are left to the terminal. Characters of two cells (as in Chinese) may stand on any line. The text
// has to be terminal_safe().
class WordWrap {
  public:
    // What to write for `text` on a terminal of so many columns, at least 1; they may change at any time.
    std::string push(std::string_view text, int columns);
    // The line has ended, or another has begun, by what was written without push().
    void new_line();

  private:
    void space(std::string_view bytes, int cells, std::string* out);
    void character(std::string_view bytes, int cells, std::string* out);
    void break_line(std::string* out);

    int columns_ = 0;
    int column_ = 0;       // cells of this line that are written
    int word_column_ = 0;  // where its last word begins
    std::string word_;     // what is written of that word; empty: it cannot be taken off the screen
    bool full_ = false;    // spaces are left out: what follows begins a line
};

}  // namespace sparkinfer
