// progress.h — a bar on the terminal while the weights of a model are loaded or written.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace sparkinfer {

// What is counted.
enum class ProgressUnit { bytes, tokens };

// "sparkinfer: loading [=====>        ]  42 %, 9.3 of 22.1 GB, 8.7 GB/s": at most `columns` characters, the
// bar first to go. `done` of `total` after `seconds`; `doing` says what is done to them.
std::string progress_line(int64_t done, int64_t total, double seconds, int columns,
                          const char* doing = "loading", ProgressUnit unit = ProgressUnit::bytes);

// Draws and redraws one line of a terminal, and takes it away again. On anything else than a terminal, and
// for a load that is over at once, it writes nothing.
class ProgressBar {
  public:
    // `after_s`: a load that is shorter shows no bar.
    explicit ProgressBar(int descriptor, double after_s = 0.3, const char* doing = "loading",
                         ProgressUnit unit = ProgressUnit::bytes);
    ~ProgressBar() { erase(); }
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    void show(int64_t done, int64_t total);
    void erase();

  private:
    using Clock = std::chrono::steady_clock;
    int descriptor_;  // -1: not a terminal
    double after_s_;
    const char* doing_;
    ProgressUnit unit_;
    Clock::time_point started_, drawn_at_{};
    size_t drawn_ = 0;  // characters on the line
};

}  // namespace sparkinfer
