// part_file.h — a file that is being obtained: PATH.part until it is whole and right, kept when it is not.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "cli/sha256.h"
#include "core/result.h"

namespace sparkinfer {

// Owns the open file and its lock, so that two programs do not write one. What was there of an earlier try is
// read once, for the hash. Not thread-safe.
class PartFile {
  public:
    // Errors: the folder's; another program is at it.
    static Result<PartFile> open(const std::string& path, uint64_t bytes);
    PartFile(PartFile&& other) noexcept;
    PartFile& operator=(PartFile&&) = delete;
    ~PartFile();

    uint64_t size() const { return size_; }  // bytes so far
    // Errors: the disk's; more bytes than the file has.
    Result<void> append(std::string_view bytes);
    // Begins anew.
    Result<void> restart();
    // Checks what is there and gives it its name. A wrong one is removed: going on would not help.
    Result<void> finish(const std::string& sha256);

  private:
    PartFile() = default;
    std::string path_, part_;
    uint64_t bytes_ = 0, size_ = 0;
    int fd_ = -1;
    bool locked_ = false;
    Sha256 hash_;
};

}  // namespace sparkinfer
