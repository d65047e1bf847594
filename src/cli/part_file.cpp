#include "cli/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

namespace sparkinfer {

namespace {

Error disk_error(const std::string& path, const char* what) {
    const int code = errno;
    const std::string reason = std::generic_category().message(code);
    if (code == ENOSPC || code == EDQUOT || code == EFBIG)
        return out_of_resources("{}: cannot be {}: {}", path, what, reason);
    return bad_input("{}: cannot be {}: {}", path, what, reason);
}

}  // namespace

Result<PartFile> PartFile::open(const std::string& path, uint64_t bytes) {
    PartFile file;
    file.path_ = path;
    file.part_ = path + ".part";
    file.bytes_ = bytes;
    file.fd_ = ::open(file.part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file.fd_ < 0) return disk_error(file.part_, "created");
    if (::flock(file.fd_, LOCK_EX | LOCK_NB) != 0)
        return bad_input("{}: another program is writing it", file.part_);
    file.locked_ = true;
    std::vector<char> block(size_t(1) << 20);
    for (;;) {
        const ssize_t got = ::read(file.fd_, block.data(), block.size());
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return disk_error(file.part_, "read");
        if (got == 0) return file;
        file.size_ += uint64_t(got);
        file.hash_.update(std::as_bytes(std::span(block.data(), size_t(got))));
        if (file.size_ > bytes) {
            TRY_VOID(file.restart());
            return file;
        }
    }
}

PartFile::PartFile(PartFile&& other) noexcept
    : path_(std::move(other.path_)),
      part_(std::move(other.part_)),
      bytes_(other.bytes_),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)),
      locked_(other.locked_),
      hash_(other.hash_) {}

PartFile::~PartFile() {
    if (fd_ < 0) return;
    if (locked_ && size_ == 0) ::unlink(part_.c_str());  // nothing to go on with
    ::close(fd_);
}

Result<void> PartFile::append(std::string_view bytes) {
    if (bytes.size() > bytes_ - size_)
        return bad_input("{}: more than {} bytes arrive, expected no more", path_, bytes_);
    hash_.update(std::as_bytes(std::span(bytes.data(), bytes.size())));
    size_ += bytes.size();
    while (!bytes.empty()) {
        const ssize_t wrote = ::write(fd_, bytes.data(), bytes.size());
        if (wrote < 0 && errno != EINTR) return disk_error(part_, "written");
        if (wrote > 0) bytes.remove_prefix(size_t(wrote));
    }
    return {};
}

Result<void> PartFile::restart() {
    if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) return disk_error(part_, "emptied");
    hash_ = {};
    size_ = 0;
    return {};
}

Result<void> PartFile::finish(const std::string& sha256) {
    const std::string found = size_ == bytes_ ? hash_.finish() : "";
    if (found != sha256) {
        ::unlink(part_.c_str());
        if (size_ != bytes_) return bad_input("{}: has {} bytes, expected {}", path_, size_, bytes_);
        return bad_input("{}: what arrived has sha256 {}, expected {}; it is removed", path_, found, sha256);
    }
    if (::fsync(fd_) != 0) return disk_error(part_, "written");
    if (::rename(part_.c_str(), path_.c_str()) != 0) return disk_error(path_, "created");
    return {};
}

}  // namespace sparkinfer
