// unfinished.h — files under a temporary name, taken away also when a signal ends the process.
#pragma once
#include <cstddef>
#include <string>

namespace sparkinfer {

// Marks the file at `path` as unfinished while it lives. Does not open or remove it: its writer does. Any
// thread.
class UnfinishedFile {
  public:
    explicit UnfinishedFile(std::string path);
    UnfinishedFile(const UnfinishedFile&) = delete;
    UnfinishedFile& operator=(const UnfinishedFile&) = delete;
    ~UnfinishedFile();
    const std::string& path() const { return path_; }

  private:
    const std::string path_;
    size_t place_;
};

// Removes every unfinished file and ends the process at once: no destructor runs. For signal handlers.
[[noreturn]] void end_process(int exit_code);

}  // namespace sparkinfer
