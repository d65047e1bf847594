// terminal.h — the terminal that a person sits at: its size, the widths of characters, and modes that are
// taken back whatever ends the process.
#pragma once
#include <string>
#include <string_view>

namespace sparkinfer {

struct TerminalSize {
    int columns = 80, rows = 24;  // each at least 1
};
// Of the terminal behind a descriptor; 80 × 24 where it does not say.
TerminalSize terminal_size(int descriptor);

// Cells that a character takes: 0 for one that joins the character before it, 2 for wide ones, else 1. The
// same in every locale.
int cell_width(char32_t character);

// The character at `at` of well-formed UTF-8, and its bytes.
struct Utf8Character {
    char32_t code;
    size_t bytes;
};
Utf8Character utf8_character(std::string_view text, size_t at);

// Text of others without what a terminal would obey: control characters but for line breaks and tabs become
// U+FFFD.
std::string terminal_safe(std::string_view text);

// How stdin's terminal treats keys while the object lives; one inside another takes its place for that time.
// Nothing typed is lost by a change. When the
// process is ended by SIGINT, SIGTERM, SIGHUP or SIGQUIT, the terminal is as it was found.
class TerminalMode {
  public:
    enum class Kind {
        edit,   // every key is a byte to read
        answer  // nothing is echoed; Ctrl-C and its like are signals, other keys wait to be read
    };
    explicit TerminalMode(Kind kind);
    ~TerminalMode();
    TerminalMode(const TerminalMode&) = delete;
    TerminalMode& operator=(const TerminalMode&) = delete;

  private:
    int outer_;  // the mode before, as terminal.cpp counts them
};

// What ~TerminalMode does, for handlers of signals: async-signal-safe, nothing where no mode is set.
void restore_terminal();

}  // namespace sparkinfer
