#include "core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace sparkinfer {

namespace {

// A file descriptor that closes itself.
struct Descriptor {
    explicit Descriptor(int number) : fd(number) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
    int fd;
};

Error system_trouble(const std::string& path, const char* what, int code) {
    const std::string reason = std::generic_category().message(code);
    if (code == ENOMEM || code == EMFILE || code == ENFILE)
        return out_of_resources("{}: cannot {}: {}", path, what, reason);
    return bad_input("{}: cannot {}: {}", path, what, reason);
}

// Opens for reading without waiting for the other end of a pipe.
int open_quietly(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

// The size of the regular file behind fd.
Result<uint64_t> regular_size(const std::string& path, int fd) {
    struct stat info = {};
    if (::fstat(fd, &info) != 0) return system_trouble(path, "read file information", errno);
    if (S_ISDIR(info.st_mode)) return bad_input("{}: is a directory, expected a file", path);
    if (!S_ISREG(info.st_mode)) return bad_input("{}: is a pipe or device, expected a regular file", path);
    return uint64_t(info.st_size);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
    const Descriptor file(open_quietly(path));
    if (file.fd < 0) return system_trouble(path, "open the file", errno);
    MappedFile mapped;
    mapped.path_ = path;
    TRY(mapped.size_, regular_size(path, file.fd));
    if (mapped.size_ == 0) return mapped;
    void* start = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (start == MAP_FAILED) {
        mapped.size_ = 0;
        return system_trouble(path, "map the file", errno);
    }
    mapped.data_ = static_cast<const std::byte*>(start);
    return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes) {
    const Descriptor file(open_quietly(path));
    if (file.fd < 0) return system_trouble(path, "open the file", errno);
    TRY(const uint64_t size, regular_size(path, file.fd));
    if (size > max_bytes) return bad_input("{}: has {} bytes, expected at most {}", path, size, max_bytes);
    std::string text(size, '\0');
    uint64_t done = 0;
    while (done < size) {
        const ssize_t got = ::read(file.fd, text.data() + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return system_trouble(path, "read the file", errno);
        if (got == 0) break;  // it shrank meanwhile
        done += uint64_t(got);
    }
    text.resize(done);
    return text;
}

}  // namespace sparkinfer
