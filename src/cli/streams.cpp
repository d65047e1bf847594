#include "cli/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>
#include <system_error>

#include "cli/terminal.h"
#include "core/log.h"
#include "core/unfinished.h"

namespace sparkinfer {

namespace {

volatile std::sig_atomic_t g_deferred = 0, g_interrupted = 0;

void on_interrupt(int signal) {
    if (!g_deferred || g_interrupted) {
        restore_terminal();
        end_process(kExitInterrupted);
    }
    g_interrupted = signal;
}

// All that a descriptor gives until its end: files, pipes and terminals alike.
Result<std::string> read_to_end(int fd, const std::string& from, const char* what) {
    std::string text, block(size_t(1) << 16, '\0');
    for (;;) {
        const ssize_t got = ::read(fd, block.data(), block.size());
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return bad_input("{}: cannot read: {}", from, std::generic_category().message(errno));
        if (got == 0) return text;
        if (text.size() + size_t(got) > kMaxTextBytes)
            return bad_input("{}: {} has more than {} bytes", from, what, kMaxTextBytes);
        text.append(block, 0, size_t(got));
    }
}

Result<std::string> read_stdin(const char* what) {
    if (::isatty(STDIN_FILENO)) log_info("reading {} from the terminal; Ctrl-D ends it", what);
    return read_to_end(STDIN_FILENO, "stdin", what);
}

struct CloseDescriptor {
    void operator()(const int* fd) const { ::close(*fd); }
};

// Pipes too, so that -f <(command) works.
Result<std::string> read_file(const std::string& path, const char* what) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return bad_input("{}: cannot open the file: {}", path, std::generic_category().message(errno));
    const std::unique_ptr<const int, CloseDescriptor> closed(&fd);
    return read_to_end(fd, path, what);
}

}  // namespace

size_t utf8_error_offset(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        const auto byte = [&](size_t k) { return i + k < text.size() ? uint8_t(text[i + k]) : uint8_t(0); };
        const uint8_t lead = byte(0);
        const size_t length = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
        bool good = lead < 0x80 || (lead >= 0xc2 && lead <= 0xf4);
        for (size_t k = 1; k < length; ++k) good = good && (byte(k) & 0xc0) == 0x80;
        if (lead == 0xe0) good = good && byte(1) >= 0xa0;
        if (lead == 0xed) good = good && byte(1) <= 0x9f;
        if (lead == 0xf0) good = good && byte(1) >= 0x90;
        if (lead == 0xf4) good = good && byte(1) <= 0x8f;
        if (!good) return i;
        i += length;
    }
    return std::string_view::npos;
}

Result<std::string> read_text(const TextSource& source, const char* what) {
    std::string text, from;
    if (source.text) {
        from = "-p";
        text = *source.text;
        if (text.size() > kMaxTextBytes)
            return bad_input("-p: {} has more than {} bytes", what, kMaxTextBytes);
    } else if (source.file) {
        from = *source.file;
        TRY(text, read_file(*source.file, what));
    } else {
        from = "stdin";
        TRY(text, read_stdin(what));
    }
    if (text.empty()) return bad_input("{}: {} is empty", from, what);
    const size_t offset = utf8_error_offset(text);
    if (offset != std::string_view::npos)
        return bad_input("{}: {} is not UTF-8: byte 0x{:02x} at offset {}", from, what, uint8_t(text[offset]),
                         offset);
    return text;
}

Result<void> StandardOutput::write(std::string_view text) {
    while (!closed_ && !text.empty()) {
        const ssize_t wrote = ::write(STDOUT_FILENO, text.data(), text.size());
        if (wrote >= 0) {
            text.remove_prefix(size_t(wrote));
        } else if (errno == EPIPE) {
            closed_ = true;
        } else if (errno == EBADF) {
            return out_of_resources("stdout: cannot write: it is closed");
        } else if (errno != EINTR) {
            return out_of_resources("stdout: cannot write: {}", std::generic_category().message(errno));
        }
    }
    return {};
}

void occupy_standard_descriptors() {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
        if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)  // the lowest free number is this one
            if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
}

void watch_interrupts() {
    struct sigaction action{};
    action.sa_handler = on_interrupt;
    ::sigaction(SIGINT, &action, nullptr);
    ::sigaction(SIGTERM, &action, nullptr);
    action.sa_handler = SIG_IGN;  // a reader that went away is seen as EPIPE
    ::sigaction(SIGPIPE, &action, nullptr);
    ::sigaction(SIGXFSZ, &action, nullptr);  // a limit on the size of files is seen as EFBIG
}

bool interrupted() { return g_interrupted != 0; }
bool terminated() { return g_interrupted == SIGTERM; }
void clear_interrupt() { g_interrupted = 0; }

Deferred::Deferred() { g_deferred = g_deferred + 1; }
Deferred::~Deferred() { g_deferred = g_deferred - 1; }

}  // namespace sparkinfer
