#include "cli/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

extern char** environ;

namespace sparkinfer {

namespace {

constexpr off_t kMaxOutputBytes = off_t(64) << 20;

// A nameless file in memory: the program writes into it as fast as it likes, and nobody has to read
// meanwhile.
struct MemoryFile {
    explicit MemoryFile(const char* name) : fd(::memfd_create(name, MFD_CLOEXEC)) {}
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    ~MemoryFile() {
        if (fd >= 0) ::close(fd);
    }
    Result<std::string> text(const std::string& program) const {
        const off_t size = ::lseek(fd, 0, SEEK_END);
        if (size < 0 || size > kMaxOutputBytes)
            return out_of_resources("{}: wrote {} bytes, expected at most {}", program, size,
                                    kMaxOutputBytes);
        std::string text(size_t(size), '\0');
        const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
        text.resize(got > 0 ? size_t(got) : 0);
        return text;
    }
    int fd;
};

// The signals that this program handles or ignores are the default again in the other one.
int spawn(const std::vector<std::string>& arguments, int out, int err, pid_t* pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
    sigset_t defaults;
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGPIPE);
    ::sigaddset(&defaults, SIGXFSZ);
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    std::vector<char*> words;
    words.reserve(arguments.size() + 1);
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const int trouble = ::posix_spawnp(pid, words[0], &files, &attributes, words.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
    return trouble;
}

}  // namespace

Result<ProcessOutput> run_process(const std::vector<std::string>& arguments) {
    const std::string& program = arguments.at(0);
    const MemoryFile out("stdout"), err("stderr");
    if (out.fd < 0 || err.fd < 0)
        return out_of_resources("{}: no memory for its output: {}", program,
                                std::generic_category().message(errno));
    pid_t pid = 0;
    if (const int trouble = spawn(arguments, out.fd, err.fd, &pid); trouble != 0)
        return bad_input("{}: cannot be started: {}", program, std::generic_category().message(trouble));
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return internal_error("{}: cannot be waited for: {}", program,
                                  std::generic_category().message(errno));
    ProcessOutput done;
    done.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    TRY(done.out, out.text(program));
    TRY(done.err, err.text(program));
    return done;
}

}  // namespace sparkinfer
