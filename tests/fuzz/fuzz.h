// fuzz.h — what the fuzz targets share: an input in parts, files of bytes nobody has vouched for, and what
// must hold of every error. A target is one LLVMFuzzerTestOneInput; findings are a sanitizer's report, a
// failed CHECK, a time limit.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "core/result.h"

namespace sparkinfer {

// Between the parts of an input that stands for several files: ASCII's record separator, which no seed has in
// a text.
constexpr char kPartEnd = '\x1e';

// Exactly n parts: what is not there is empty, the last has all that is left.
inline std::vector<std::string> parts_of(std::string_view input, size_t n) {
    std::vector<std::string> parts(n);
    for (size_t i = 0; i < n; ++i) {
        const size_t end = i + 1 < n ? input.find(kPartEnd) : std::string_view::npos;
        parts[i] = input.substr(0, end);
        if (end == std::string_view::npos) break;
        input.remove_prefix(end + 1);
    }
    return parts;
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

// A bad file is the file's fault, said in one sentence; "internal" would say that it is ours.
inline void check_error(const Error& error) {
    CHECK(error.kind == ErrorKind::bad_input || error.kind == ErrorKind::resources, "{}: kind {}",
          error.message, int(error.kind));
    CHECK(!error.message.empty(), "an error without a sentence");
}

// A file in memory, with a path as any other has. Bytes behind the given ones are zeros, which take no
// memory.
class MemoryFile {
  public:
    MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
        CHECK(fd_ >= 0, "no memory file");
        path_ = fmt::format("/proc/self/fd/{}", fd_);
    }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    ~MemoryFile() { ::close(fd_); }

    const std::string& path() const { return path_; }
    void set(std::string_view bytes, uint64_t size) {
        CHECK(::ftruncate(fd_, 0) == 0, "cannot empty the file");
        CHECK(::pwrite(fd_, bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()), "cannot fill the file");
        CHECK(::ftruncate(fd_, off_t(std::max<uint64_t>(size, bytes.size()))) == 0,
              "cannot lengthen the file");
    }
    void set(std::string_view bytes) { set(bytes, bytes.size()); }

  private:
    int fd_;
    std::string path_;
};

}  // namespace sparkinfer
