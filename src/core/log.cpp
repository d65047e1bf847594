#include "core/log.h"

#include <unistd.h>

#include <cerrno>

#include "core/env.h"

namespace sparkinfer {

std::string log_format(LogLevel level, std::string_view text, bool colour) {
    std::string line = "sparkinfer: ";
    if (level != LogLevel::info) {
        const char* word = level == LogLevel::error ? "error" : "warning";
        const int code = level == LogLevel::error ? 31 : 33;
        line += colour ? fmt::format("\x1b[1;{}m{}:\x1b[0m ", code, word) : fmt::format("{}: ", word);
    }
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f)
            line += fmt::format("\\x{:02x}", byte);
        else
            line += c;
    }
    line += '\n';
    return line;
}

void log_line(LogLevel level, std::string_view text) {
    static const bool colour = ::isatty(STDERR_FILENO) && !env_no_color();
    const std::string line = log_format(level, text, colour);
    size_t done = 0;
    while (done < line.size()) {  // a closed stderr is nobody's error: stop then
        const ssize_t wrote = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return;
        done += size_t(wrote);
    }
}

}  // namespace sparkinfer
