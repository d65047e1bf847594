#include "core/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace sparkinfer {

namespace {

constexpr size_t kBufferBytes = size_t(1) << 20;
constexpr int kLeftOvers = 1000;

Error disk_error(const std::string& path, const char* what, int code) {
    const std::string reason = std::generic_category().message(code);
    if (code == ENOSPC || code == EDQUOT || code == EFBIG)
        return out_of_resources("{}: cannot {}: {}", path, what, reason);
    return bad_input("{}: cannot {}: {}", path, what, reason);
}

}  // namespace

Result<NewFile> NewFile::create(const std::string& path, unsigned mode) {
    if (path.empty()) return usage_error("the name of the file to write is empty, expected a path");
    struct stat there = {};
    if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode))
        return bad_input("{}: is a directory, pipe or device, expected a regular file or none", path);
    std::error_code none;
    const std::filesystem::path real = std::filesystem::canonical(path, none);
    NewFile file;
    file.path_ = none ? path : real.string();
    // A process of the same number may have left one when it was killed.
    for (int left = 0; file.fd_ < 0 && left < kLeftOvers; ++left) {
        file.temporary_ = left == 0 ? fmt::format("{}.{}.tmp", file.path_, ::getpid())
                                    : fmt::format("{}.{}-{}.tmp", file.path_, ::getpid(), left);
        file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (file.fd_ < 0 && errno != EEXIST) break;
    }
    if (file.fd_ < 0) return disk_error(path, "create the file", errno);
    file.unfinished_ = std::make_unique<UnfinishedFile>(file.temporary_);
    return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      buffer_(std::move(other.buffer_)),
      unfinished_(std::move(other.unfinished_)),
      fd_(std::exchange(other.fd_, -1)),
      written_(other.written_),
      reserved_(other.reserved_) {}

NewFile::~NewFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
}

Result<void> NewFile::reserve(uint64_t bytes) {
    if (bytes == 0) return {};
    int done = 0;
    do {
        done = ::fallocate(fd_, 0, 0, off_t(bytes));
    } while (done != 0 && errno == EINTR);
    if (done != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return out_of_resources("{}: cannot claim the {} bytes of the file: {}", path_, bytes,
                                std::generic_category().message(errno));
    if (done == 0) reserved_ = bytes;
    return {};
}

Result<void> NewFile::put(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t wrote = ::write(fd_, bytes.data(), bytes.size());
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return disk_error(path_, "write the file", errno);
        bytes.remove_prefix(size_t(wrote));
    }
    return {};
}

Result<void> NewFile::flush() {
    TRY_VOID(put(buffer_));
    buffer_.clear();
    return {};
}

Result<void> NewFile::write(std::string_view bytes) {
    written_ += bytes.size();
    if (bytes.size() >= kBufferBytes) {
        TRY_VOID(flush());
        return put(bytes);
    }
    buffer_ += bytes;
    return buffer_.size() >= kBufferBytes ? flush() : Result<void>{};
}

Result<void> NewFile::commit() {
    TRY_VOID(flush());
    if (reserved_ > written_ && ::ftruncate(fd_, off_t(written_)) != 0)
        return disk_error(path_, "finish the file", errno);
    if (::close(std::exchange(fd_, -1)) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
        const int code = errno;
        ::unlink(temporary_.c_str());
        return disk_error(path_, "finish the file", code);
    }
    return {};
}

Result<void> NewFile::commit_to_disk() {
    TRY_VOID(flush());
    if (::fsync(fd_) != 0) return disk_error(path_, "write the file", errno);
    TRY_VOID(commit());
    // The name is on the disk when its folder is.
    const auto folder = std::filesystem::path(path_).parent_path();
    const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return {};
    ::fsync(fd);
    ::close(fd);
    return {};
}

bool same_file(const std::string& a, const std::string& b) {
    struct stat first = {}, second = {};
    return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
           first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

}  // namespace sparkinfer
