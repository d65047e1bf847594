#include "cli/line_editor.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>

#include "cli/streams.h"
#include "cli/terminal.h"

namespace sparkinfer {

namespace {

constexpr int kGone = -1, kNothing = -2;       // of key(): the terminal has ended; no key in time
constexpr int kEscape = 27, kEscapeWait = 50;  // ms in which the rest of a key's sequence comes
constexpr int kLook = 250;                     // ms, for signals that came just before a wait
constexpr size_t kHistoryMost = 1000;

constexpr int control(char letter) { return letter & 0x1f; }

// A resized window interrupts the wait for keys, and the text is drawn anew.
void hear_resizes() {
    struct sigaction action{};
    action.sa_handler = [](int) {};
    ::sigaction(SIGWINCH, &action, nullptr);
}

void write_all(std::string_view text) {
    while (!text.empty()) {
        const ssize_t wrote = ::write(STDOUT_FILENO, text.data(), text.size());
        if (wrote < 0 && errno != EINTR) return;
        if (wrote > 0) text.remove_prefix(size_t(wrote));
    }
}

// Text from outside as a message may hold it: line breaks as \n, no other control characters but tabs.
std::string cleaned(std::string_view pasted) {
    std::string text;
    for (size_t i = 0; i < pasted.size(); ++i) {
        const char c = pasted[i];
        if (c == '\r') {
            if (i + 1 == pasted.size() || pasted[i + 1] != '\n') text += '\n';
        } else if (uint8_t(c) >= 0x20 ? c != 0x7f : c == '\n' || c == '\t') {
            text += c;
        }
    }
    return utf8_error_offset(text) == std::string::npos ? text : "";
}

}  // namespace

int LineEditor::key(int wait_ms) {
    while (pending_at_ == pending_.size()) {
        pollfd ready{STDIN_FILENO, POLLIN, 0};
        const int polled = ::poll(&ready, 1, wait_ms < 0 ? kLook : wait_ms);
        if (interrupted()) return kGone;  // by a signal, not by a key
        if (polled == 0 && wait_ms < 0) continue;
        if (polled == 0) return kNothing;
        if (polled < 0 && errno == EINTR) {
            draw();
            continue;
        }
        char bytes[4096];
        const ssize_t got = polled < 0 ? -1 : ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return kGone;
        pending_.assign(bytes, size_t(got));
        pending_at_ = 0;
    }
    return uint8_t(pending_[pending_at_++]);
}

void LineEditor::draw() {
    const TerminalSize size = terminal_size(STDOUT_FILENO);
    const EditLayout layout = lay_out(prompt_, buffer_, size.columns);
    // Of a text that is higher than the screen, the part with the cursor.
    const size_t shown = std::min(layout.rows.size(), size_t(size.rows));
    const size_t top = layout.cursor_row < shown ? 0 : layout.cursor_row + 1 - shown;
    std::string out;
    if (drawn_ && drawn_row_ > 0) out += fmt::format("\x1b[{}A", drawn_row_);
    out += "\r\x1b[J";
    for (size_t i = top; i < top + shown; ++i) {
        const bool bold = options_.colour && i == 0 && layout.rows[0].starts_with(prompt_);
        if (i > top) out += "\n";
        out +=
            bold ? "\x1b[1m" + prompt_ + "\x1b[0m" + layout.rows[i].substr(prompt_.size()) : layout.rows[i];
    }
    drawn_row_ = layout.cursor_row - top;
    const size_t below = shown - 1 - drawn_row_;
    if (below > 0) out += fmt::format("\x1b[{}A", below);
    out += "\r";
    if (layout.cursor_column > 0) out += fmt::format("\x1b[{}C", layout.cursor_column);
    drawn_ = true;
    write_all(out);
}

// Leaves the text on the screen and goes on below it.
void LineEditor::leave(std::string_view last) {
    buffer_.cursor = buffer_.text.size();
    draw();
    write_all(fmt::format("{}\n", last));
    drawn_ = false;
}

LineEditor::Typed LineEditor::read(std::string_view prompt) {
    static const bool hearing = [] {
        hear_resizes();
        return true;
    }();
    (void)hearing;
    mode_.emplace(TerminalMode::Kind::edit);
    prompt_ = prompt;
    buffer_ = {};
    draft_.clear();
    place_ = history_.size();
    drawn_ = false;
    Typed typed{End::ended, ""};
    do
        if (pending_at_ == pending_.size()) draw();
    while (!take(key(), typed));
    mode_.reset();
    return typed;
}

// False: the text goes on.
bool LineEditor::take(int key, Typed& typed) {
    if (key == '\r' || key == '\n') {
        if (!enter()) return false;
        leave("");
        typed = {End::entered, buffer_.text};
        return true;
    }
    if (key == control('C')) {
        leave("^C");
        typed = {End::interrupted, buffer_.text};
        return true;
    }
    if (key == kGone || (key == control('D') && buffer_.text.empty())) {
        leave("");
        typed = {End::ended, buffer_.text};
        return true;
    }
    switch (key) {
        case kEscape: take_escape(); break;
        case '\t': complete(); break;
        case control('N'): recall(1); break;
        case control('P'): recall(-1); break;
        case control('R'): search(); break;
        case control('Z'): suspend(); break;
        case control('L'):
            write_all("\x1b[H\x1b[2J");
            drawn_ = false;
            break;
        default: edit(key);
    }
    return false;
}

void LineEditor::edit(int key) {
    EditBuffer from = buffer_;
    switch (key) {
        case control('A'): return buffer_.line_begin();
        case control('E'): return buffer_.line_end();
        case control('B'): buffer_.left(); return;
        case control('F'): buffer_.right(); return;
        case control('Y'): return buffer_.insert(cut_);
        case control('D'): from.right(); break;
        case control('H'):
        case 0x7f: from.left(); break;
        case control('U'): from.line_begin(); break;
        case control('K'): from.line_end(); break;
        case control('W'): from.word_left(); break;
        default: return type(key);
    }
    std::string taken = buffer_.cut(from.cursor);
    if (key != control('D') && key != control('H') && key != 0x7f) cut_ = std::move(taken);
}

// A character that may take several bytes.
void LineEditor::type(int key) {
    if (key < 0x20) return;
    std::string character(1, char(key));
    const size_t bytes = key < 0xc2 ? 1 : key < 0xe0 ? 2 : key < 0xf0 ? 3 : 4;
    for (size_t i = 1; i < bytes; ++i) {
        const int next = this->key(kEscapeWait);
        if (next < 0) return;
        character += char(next);
    }
    if (utf8_error_offset(character) == std::string::npos) buffer_.insert(character);
}

void LineEditor::take_escape() {
    int last = key(kEscapeWait);
    std::string parameters;
    if (last == '[' || last == 'O') {
        for (last = key(kEscapeWait); last >= 0x20 && last < 0x40; last = key(kEscapeWait))
            parameters += char(last);
    } else if (last == '\r' || last == '\n') {
        return buffer_.insert("\n");
    } else if (last == 'b' || last == 'f') {  // Alt
        return last == 'b' ? buffer_.word_left() : buffer_.word_right();
    } else {
        return;
    }
    const bool by_words = parameters.ends_with(";5") || parameters.ends_with(";3");  // Ctrl, Alt
    switch (last) {
        case 'A': return buffer_.up() ? void() : recall(-1);
        case 'B': return buffer_.down() ? void() : recall(1);
        case 'C': return by_words ? buffer_.word_right() : void(buffer_.right());
        case 'D': return by_words ? buffer_.word_left() : void(buffer_.left());
        case 'H': return buffer_.line_begin();
        case 'F': return buffer_.line_end();
        case '~':
            if (parameters == "200") return take_paste();
            if (parameters == "3") return edit(control('D'));
            if (parameters == "1" || parameters == "7") return buffer_.line_begin();
            if (parameters == "4" || parameters == "8") return buffer_.line_end();
            return;
        default: return;
    }
}

void LineEditor::take_paste() {
    constexpr std::string_view kEnd = "\x1b[201~";
    std::string pasted;
    while (!pasted.ends_with(kEnd)) {
        const int next = key();
        if (next == kGone) return;
        pasted += char(next);
    }
    pasted.resize(pasted.size() - kEnd.size());
    if (buffer_.text.size() + pasted.size() <= kMaxTextBytes) buffer_.insert(cleaned(pasted));
}

// True: the text is complete.
bool LineEditor::enter() {
    std::string& text = buffer_.text;
    if (!goes_on(text) || buffer_.cursor != text.size()) return true;
    if (text.back() == '\\')
        text.back() = '\n';
    else
        buffer_.insert("\n");
    return false;
}

void LineEditor::remember(const std::string& text) {
    if (text.empty() || (!history_.empty() && history_.back() == text)) return;
    if (history_.size() == kHistoryMost) history_.erase(history_.begin());
    history_.push_back(text);
}

void LineEditor::recall(int step) {
    if (step < 0 ? place_ == 0 : place_ == history_.size()) return;
    if (place_ == history_.size()) draft_ = buffer_.text;
    place_ = size_t(int64_t(place_) + step);
    buffer_.text = place_ == history_.size() ? draft_ : history_[place_];
    buffer_.cursor = buffer_.text.size();
}

void LineEditor::complete() {
    if (!options_.complete || buffer_.cursor != buffer_.text.size()) return;
    const std::vector<std::string> found = options_.complete(buffer_.text);
    if (found.empty()) return;
    std::string common = found[0];
    for (const std::string& other : found)
        common.resize(size_t(std::mismatch(common.begin(), common.end(), other.begin(), other.end()).first -
                             common.begin()));
    common.resize(utf8_error_offset(common) == std::string::npos ? common.size() : utf8_error_offset(common));
    if (common.size() > buffer_.text.size()) {
        buffer_ = {common, common.size()};
    } else if (found.size() > 1) {
        std::string list;
        for (const std::string& one : found) list += (list.empty() ? "" : "  ") + terminal_safe(one);
        draw();
        leave("");
        write_all(list + "\n");
    }
}

// Ctrl-R: the newest text of the history with what is typed; again: an older one. Ctrl-G and Ctrl-C give the
// text back as it was, any other key takes what was found.
void LineEditor::search() {
    const EditBuffer before = buffer_;
    const std::string prompt = prompt_;
    std::string wanted;
    size_t from = history_.size();
    for (;;) {
        size_t at = from;
        while (at > 0 && history_[at - 1].find(wanted) == std::string::npos) --at;
        if (at > 0 && !wanted.empty()) buffer_ = {history_[at - 1], history_[at - 1].size()};
        prompt_ = fmt::format("search '{}': ", wanted);
        draw();
        const int next = key();
        const bool given_up = next == control('G') || next == control('C') || next == kGone;
        if (next == control('R')) {
            if (at > 1) from = at - 1;
        } else if (next == 0x7f || next == control('H')) {
            EditBuffer typed{wanted, wanted.size()};
            if (typed.left()) wanted.resize(typed.cursor);
            from = history_.size();
        } else if (next >= 0x20) {
            wanted += char(next);
            from = history_.size();
        } else {
            prompt_ = prompt;
            if (given_up) buffer_ = before;
            if (!given_up) --pending_at_;
            return;
        }
    }
}

// Ctrl-Z: the shell gets its terminal, and the text is there again afterwards.
void LineEditor::suspend() {
    const EditBuffer before = buffer_;
    leave("");
    mode_.reset();
    ::raise(SIGTSTP);
    mode_.emplace(TerminalMode::Kind::edit);
    buffer_ = before;
}

}  // namespace sparkinfer
