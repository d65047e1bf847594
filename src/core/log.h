// log.h — lines for the person at the terminal. All of them go to stderr, one write a line; stdout belongs to
// results. Threads: any.
#pragma once
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

namespace sparkinfer {

enum class LogLevel { info, warning, error };

// Writes "sparkinfer: TEXT", "sparkinfer: warning: TEXT" or "sparkinfer: error: TEXT" to stderr. Control
// characters in the text (names out of a file may hold any) are shown as \xNN. Coloured on a terminal unless
// NO_COLOR says no.
void log_line(LogLevel level, std::string_view text);

// The same line without writing it; `colour` as decided by the caller.
std::string log_format(LogLevel level, std::string_view text, bool colour);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
    log_line(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sparkinfer
