#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdint>
#include <cwchar>
#include <string_view>

namespace sparkinfer {

namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h", kPasteOff = "\x1b[?2004l";

enum { as_found, editing, answering };
volatile std::sig_atomic_t g_mode = as_found;
termios g_found;

void tell(std::string_view sequence) {
    [[maybe_unused]] const ssize_t wrote = ::write(STDOUT_FILENO, sequence.data(), sequence.size());
}

void on_end(int signal) {
    restore_terminal();
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

// Signals that would leave the terminal as it is; SIGINT and SIGTERM have their handler (streams.cpp).
void watch_ends() {
    static const bool watching = [] {
        struct sigaction action{};
        action.sa_handler = on_end;
        ::sigaction(SIGHUP, &action, nullptr);
        ::sigaction(SIGQUIT, &action, nullptr);
        return true;
    }();
    (void)watching;
}

}  // namespace

TerminalSize terminal_size(int descriptor) {
    winsize size{};
    TerminalSize found;
    if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0) return found;
    if (size.ws_col > 0) found.columns = size.ws_col;
    if (size.ws_row > 0) found.rows = size.ws_row;
    return found;
}

int cell_width(char32_t character) {
    // The C library's table, which it gives away only in a locale of UTF-8.
    static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    if (utf8 == nullptr) return 1;
    const locale_t before = ::uselocale(utf8);
    const int width = ::wcwidth(wchar_t(character));
    ::uselocale(before);
    return width < 0 ? 1 : width;
}

Utf8Character utf8_character(std::string_view text, size_t at) {
    const auto lead = uint8_t(text[at]);
    const size_t bytes = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    char32_t code = bytes == 1 ? lead : lead & (0x7f >> bytes);
    for (size_t i = 1; i < bytes && at + i < text.size(); ++i)
        code = code << 6 | (uint8_t(text[at + i]) & 0x3f);
    return {code, std::min(bytes, text.size() - at)};
}

std::string terminal_safe(std::string_view text) {
    std::string safe;
    for (size_t at = 0; at < text.size();) {
        const auto [code, bytes] = utf8_character(text, at);
        const bool control = (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0);
        safe += control ? std::string_view("\uFFFD") : text.substr(at, bytes);
        at += bytes;
    }
    return safe;
}

static void apply(int kind) {
    termios mode = g_found;
    mode.c_lflag &= ~tcflag_t(ICANON | ECHO);
    mode.c_iflag &= ~tcflag_t(ICRNL | INLCR | IXON);
    if (kind == editing) mode.c_lflag &= ~tcflag_t(ISIG | IEXTEN);
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
    const bool pasted = g_mode == editing;
    g_mode = kind;
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
    if (pasted != (kind == editing)) tell(kind == editing ? kPasteOn : kPasteOff);
}

TerminalMode::TerminalMode(Kind kind) : outer_(g_mode) {
    if (outer_ == as_found && ::tcgetattr(STDIN_FILENO, &g_found) != 0) return;
    watch_ends();
    apply(kind == Kind::edit ? editing : answering);
}

TerminalMode::~TerminalMode() {
    if (g_mode == as_found) return;
    if (outer_ == as_found)
        restore_terminal();
    else
        apply(outer_);
}

void restore_terminal() {
    if (g_mode == as_found) return;
    if (g_mode == editing) tell(kPasteOff);
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &g_found);
    g_mode = as_found;
}

}  // namespace sparkinfer
