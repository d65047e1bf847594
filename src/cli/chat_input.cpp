#include "cli/chat_input.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cli/chat.h"
#include "cli/streams.h"
#include "core/env.h"
#include "core/file.h"
#include "core/log.h"

namespace sparkinfer {

namespace {

constexpr std::string_view kPrompt = "> ";
constexpr uint64_t kHistoryBytes = uint64_t(8) << 20;
constexpr size_t kHistoryTexts = 1000;
constexpr int kLook = 250;  // ms, for signals that came just before a wait

// One text a line.
std::string escaped(const std::string& text) {
    std::string line;
    for (const char c : text) line += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
    return line;
}

std::string unescaped(std::string_view line) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
        const bool escape = line[i] == '\\' && i + 1 < line.size();
        text += !escape ? line[i] : line[++i] == 'n' ? '\n' : line[i];
    }
    return text;
}

Error history_error(const std::string& path, const std::error_code& why) {
    return bad_input("{}: cannot be written: {}", path, why.message());
}
Error history_error(const std::string& path) {
    return history_error(path, std::error_code(errno, std::generic_category()));
}

// Without the backslashes and the quotes that held several lines together.
std::string message_of(std::string text) {
    constexpr std::string_view kQuotes = "\"\"\"";
    if (text.size() < 2 * kQuotes.size() || !text.starts_with(kQuotes) || !text.ends_with(kQuotes))
        return text;
    text = text.substr(kQuotes.size(), text.size() - 2 * kQuotes.size());
    if (text.starts_with('\n')) text.erase(0, 1);
    if (text.ends_with('\n')) text.pop_back();
    return text;
}

}  // namespace

std::string chat_history_path() {
    if (const auto state = env_state_home()) return *state + "/sparkinfer/chat_history";
    if (const auto home = env_home()) return *home + "/.local/state/sparkinfer/chat_history";
    return "";
}

std::vector<std::string> read_history(const std::string& path) {
    std::vector<std::string> texts;
    auto file = read_text_file(path, kHistoryBytes);
    if (!file.ok()) return texts;
    const std::string& bytes = *file;
    for (size_t at = 0; at < bytes.size();) {
        const size_t end = std::min(bytes.find('\n', at), bytes.size());
        std::string text = unescaped(std::string_view(bytes).substr(at, end - at));
        if (!text.empty() && utf8_error_offset(text) == std::string::npos) texts.push_back(std::move(text));
        at = end + 1;
    }
    if (texts.size() > kHistoryTexts) texts.erase(texts.begin(), texts.end() - kHistoryTexts);
    return texts;
}

Result<void> add_to_history(const std::string& path, const std::string& text) {
    std::error_code trouble;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), trouble);
    if (trouble) return history_error(path, trouble);
    struct stat found{};
    // A file that has grown far beyond what is read begins anew with that.
    if (::stat(path.c_str(), &found) == 0 && uint64_t(found.st_size) > kHistoryBytes / 2) {
        std::vector<std::string> kept = read_history(path);
        if (::truncate(path.c_str(), 0) != 0) return history_error(path);
        while (!kept.empty() && kept.size() > kHistoryTexts / 2) kept.erase(kept.begin());
        for (const std::string& one : kept) TRY_VOID(add_to_history(path, one));
    }
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return history_error(path);
    const std::string line = escaped(text) + "\n";
    const bool good = ::write(file, line.data(), line.size()) == ssize_t(line.size());
    const Error error = good ? Error{} : history_error(path);
    ::close(file);
    return good ? Result<void>{} : error;
}

ChatInput::ChatInput(bool history)
    : edits_(::isatty(STDIN_FILENO) && ::isatty(STDOUT_FILENO) && !env_dumb_terminal()),
      editor_({.colour = !env_no_color(), .complete = complete_chat_command}) {
    if (!edits_ || !history) return;
    history_path_ = chat_history_path();
    if (history_path_.empty()) return;
    for (const std::string& text : read_history(history_path_)) editor_.remember(text);
}

void ChatInput::keep(const std::string& text) {
    const bool again = !editor_.history().empty() && editor_.history().back() == text;
    editor_.remember(text);
    if (history_path_.empty() || again || text.size() > kHistoryBytes / 8) return;
    const auto added = add_to_history(history_path_, text);
    if (added.ok()) return;
    log_warning("{}; the history of this chat is not kept", added.error().message);
    history_path_.clear();
}

Result<std::optional<std::string>> ChatInput::next(bool after_interrupt) {
    bool before = after_interrupt;
    while (edits_) {
        LineEditor::Typed typed = editor_.read(kPrompt);
        if (typed.end == LineEditor::End::ended) {
            interrupted_ = sparkinfer::interrupted();
            return std::optional<std::string>();
        }
        if (typed.end == LineEditor::End::entered) {
            if (!typed.text.empty()) keep(typed.text);
            return std::optional(message_of(std::move(typed.text)));
        }
        if (before && typed.text.empty()) {
            interrupted_ = true;
            return std::optional<std::string>();
        }
        if (typed.text.empty()) log_info("Ctrl-C again or Ctrl-D quits");
        before = typed.text.empty();
    }
    std::string text;
    do {
        TRY(std::optional<std::string> line, next_line());
        if (!line) return text.empty() ? std::optional<std::string>() : std::optional(message_of(text));
        if (text.ends_with('\\')) text.pop_back();
        text += (text.empty() ? "" : "\n") + *line;
    } while (goes_on(text));
    return std::optional(message_of(std::move(text)));
}

Result<std::optional<std::string>> ChatInput::next_line() {
    if (::isatty(STDIN_FILENO)) {
        [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, kPrompt.data(), kPrompt.size());
    }
    size_t end = waiting_.find('\n');
    for (std::string block(size_t(1) << 16, '\0'); end == std::string::npos && !ended_;) {
        pollfd ready{STDIN_FILENO, POLLIN, 0};
        const int polled = ::poll(&ready, 1, kLook);
        if (sparkinfer::interrupted()) {
            interrupted_ = true;
            return std::optional<std::string>();
        }
        if (polled == 0) continue;
        const ssize_t got = ::read(STDIN_FILENO, block.data(), block.size());
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return bad_input("stdin: cannot read: {}", std::generic_category().message(errno));
        if (got == 0) ended_ = true;
        taken_ += uint64_t(got);
        if (taken_ > kMaxTextBytes) return bad_input("stdin: the chat has more than {} bytes", kMaxTextBytes);
        const size_t searched = waiting_.size();
        waiting_.append(block, 0, size_t(got));
        end = waiting_.find('\n', searched);
    }
    if (end == std::string::npos && waiting_.empty()) return std::optional<std::string>();
    std::string line = waiting_.substr(0, std::min(end, waiting_.size()));
    waiting_.erase(0, end == std::string::npos ? end : end + 1);
    const size_t wrong = utf8_error_offset(line);
    if (wrong != std::string::npos)
        return bad_input("stdin: a message is not UTF-8: byte 0x{:02x} at offset {} of its line",
                         uint8_t(line[wrong]), wrong);
    return std::optional(std::move(line));
}

}  // namespace sparkinfer
