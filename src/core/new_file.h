// new_file.h — a file that appears whole or not at all: written beside its place under a temporary name,
// which commit() renames.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/result.h"
#include "core/unfinished.h"

namespace sparkinfer {

// Owns the temporary file; without commit() it is removed. One thread.
class NewFile {
  public:
    // Errors: `path` is a directory, pipe or device; its directory is missing or cannot be written. What a
    // link names is replaced, not the link.
    // `mode`: of the new file, but for what the process's mask takes away.
    static Result<NewFile> create(const std::string& path, unsigned mode = 0666);
    NewFile(NewFile&& other) noexcept;
    NewFile& operator=(NewFile&&) = delete;
    ~NewFile();

    // Claims `bytes` on the disk, so that one that is too small is found before the work. A file system that
    // cannot claim lets it pass.
    Result<void> reserve(uint64_t bytes);
    // Appends. Errors: the disk's.
    Result<void> write(std::string_view bytes);
    Result<void> write(std::span<const std::byte> bytes) {
        return write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
    // Everything that was written, under the final name; one that was there is replaced.
    Result<void> commit();
    // The same; file and name are on the disk when it returns, so that no loss of power takes them away.
    Result<void> commit_to_disk();
    uint64_t written() const { return written_; }  // bytes

  private:
    NewFile() = default;
    Result<void> flush();
    Result<void> put(std::string_view bytes);

    std::string path_, temporary_, buffer_;
    std::unique_ptr<UnfinishedFile> unfinished_;
    int fd_ = -1;
    uint64_t written_ = 0, reserved_ = 0;
};

// Whether two paths lead to the same file, by any links; false when either does not exist.
bool same_file(const std::string& a, const std::string& b);

}  // namespace sparkinfer
