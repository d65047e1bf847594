// connect_file.cpp — a configuration file replaced whole, with what it was kept beside it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cli/connect.h"

namespace sparkinfer {

namespace {

namespace fs = std::filesystem;

Error file_error(const std::string& path, const char* what) {
    return bad_input("{}: cannot be {}: {}", path, what, std::strerror(errno));
}

// Writes a new file of that name for this user alone.
Result<void> create_file(const std::string& path, const std::string& text) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return file_error(path, "created");
    size_t written = 0;
    bool failed = false;
    while (written < text.size() && !failed) {
        const ssize_t n = ::write(file, text.data() + written, text.size() - written);
        if (n > 0) written += size_t(n);
        failed = n < 0 && errno != EINTR;
    }
    failed = failed || ::fsync(file) != 0;
    Error error = failed ? file_error(path, "written") : Error{};
    if (::close(file) != 0 && !failed) return file_error(path, "written");
    if (!failed) return {};
    ::unlink(path.c_str());
    return error;
}

// A second name for the file as it is now.
Result<std::string> keep_backup(const std::string& path) {
    for (int i = 0; i < 1000; ++i) {
        const std::string backup = path + ".bak" + (i ? fmt::format(".{}", i) : "");
        if (::link(path.c_str(), backup.c_str()) == 0) {
            ::chmod(backup.c_str(), 0600);  // it may hold a key
            return backup;
        }
        if (errno != EEXIST) return file_error(backup, "created");
    }
    return bad_input("{}: has a thousand backups beside it", path);
}

}  // namespace

Result<std::string> replace_private_file(const std::string& typed, const std::string& text) {
    std::error_code trouble;
    const fs::path real = fs::weakly_canonical(typed, trouble);
    const std::string path = trouble ? typed : real.string();
    fs::create_directories(fs::path(path).parent_path(), trouble);
    if (trouble)
        return bad_input("{}: cannot be created: {}", fs::path(path).parent_path().string(),
                         trouble.message());
    const std::string fresh = fmt::format("{}.new-{}", path, ::getpid());
    TRY_VOID(create_file(fresh, text));
    std::string backup;
    if (fs::exists(path, trouble)) {
        auto kept = keep_backup(path);
        if (!kept.ok()) {
            ::unlink(fresh.c_str());
            return kept.error();
        }
        backup = std::move(kept).value();
    }
    if (::rename(fresh.c_str(), path.c_str()) == 0) return backup;
    const Error error = file_error(path, "replaced");
    ::unlink(fresh.c_str());
    return error;
}

}  // namespace sparkinfer
