// file.h — reading files of the world: a read-only memory map, and a whole small text.
#pragma once
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/result.h"

namespace sparkinfer {

// A regular file mapped read-only. Owns the mapping; moves, does not copy. Pages are read when touched, so
// mapping a large file costs nothing. If somebody truncates the file meanwhile, or its disk fails, a page
// that is touched later cannot be had: SIGBUS, see watch_lost_pages().
class MappedFile {
  public:
    // Fails on a missing or unreadable path, and on anything but a regular file (directory, pipe, device).
    static Result<MappedFile> open(const std::string& path);

    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    const std::string& path() const { return path_; }
    const std::byte* data() const { return data_; }  // null when size() is 0
    uint64_t size() const { return size_; }          // bytes
    std::span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    struct Watched;
    static Watched* watch(const MappedFile& file);
    static void on_lost_page(int, siginfo_t* info, void*);
    friend void watch_lost_pages(void (*before)());
    MappedFile() = default;
    std::string path_;
    const std::byte* data_ = nullptr;
    uint64_t size_ = 0;
    Watched* watched_ = nullptr;  // while it is mapped
};

// From now on, a page of a MappedFile that cannot be read any more ends the process with exit code 3, one
// sentence on stderr, and no unfinished file left behind. For programs; a library leaves signals alone.
// `before` is called first, inside a signal handler.
void watch_lost_pages(void (*before)() = nullptr);

// The bytes of a regular file of at most max_bytes.
Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes);

}  // namespace sparkinfer
