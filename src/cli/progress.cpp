#include "cli/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace sparkinfer {

namespace {

constexpr double kRedraw = 0.1;  // s
constexpr int kBarMost = 40, kBarLeast = 5;

int columns_of(int descriptor) {
    winsize size{};
    return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// A terminal that is gone is nobody's error.
void write_all(int descriptor, const std::string& text) {
    for (size_t done = 0; done < text.size();) {
        const ssize_t wrote = ::write(descriptor, text.data() + done, text.size() - done);
        if (wrote <= 0) return;
        done += size_t(wrote);
    }
}

// "9.3 of 22.1 GB, 8.7 GB/s"
std::string amounts(int64_t done, int64_t total, double seconds, ProgressUnit unit) {
    if (unit == ProgressUnit::tokens) return fmt::format("{} of {} tokens", done, total);
    const bool large = total >= 1'000'000'000;
    const double scale = large ? 1e-9 : 1e-6;
    const char* name = large ? "GB" : "MB";
    std::string text = fmt::format("{:.1f} of {:.1f} {}", double(done) * scale, double(total) * scale, name);
    if (seconds > 0) text += fmt::format(", {:.1f} {}/s", double(done) * scale / seconds, name);
    return text;
}

}  // namespace

std::string progress_line(int64_t done, int64_t total, double seconds, int columns, const char* doing,
                          ProgressUnit unit) {
    const double share = total > 0 ? std::clamp(double(done) / double(total), 0.0, 1.0) : 1;
    const std::string head = fmt::format("sparkinfer: {} ", doing);
    std::string tail = fmt::format("{:3.0f} %, {}", 100 * share, amounts(done, total, seconds, unit));
    const int room = columns - int(head.size() + tail.size()) - 3;  // brackets and a space
    std::string line = head;
    if (room >= kBarLeast) {
        const int width = std::min(room, kBarMost), full = int(share * width);
        line += fmt::format("[{}{}{}] ", std::string(size_t(full), '='), full < width ? ">" : "",
                            std::string(size_t(std::max(0, width - full - 1)), ' '));
    }
    line += tail;
    return line.substr(0, size_t(std::max(columns, 0)));
}

ProgressBar::ProgressBar(int descriptor, double after_s, const char* doing, ProgressUnit unit)
    : descriptor_(::isatty(descriptor) ? descriptor : -1),
      after_s_(after_s),
      doing_(doing),
      unit_(unit),
      started_(Clock::now()) {}

void ProgressBar::show(int64_t done, int64_t total) {
    if (descriptor_ < 0) return;
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - started_).count();
    if (seconds < after_s_ ||
        (drawn_ > 0 && std::chrono::duration<double>(now - drawn_at_).count() < kRedraw))
        return;
    // The last column stays free: a terminal may begin a new line behind it.
    std::string line = progress_line(done, total, seconds, columns_of(descriptor_) - 1, doing_, unit_);
    const size_t length = line.size();
    if (length < drawn_) line.append(drawn_ - length, ' ');
    write_all(descriptor_, fmt::format("\r{}", line));
    drawn_ = length;
    drawn_at_ = now;
}

void ProgressBar::erase() {
    if (drawn_ > 0) write_all(descriptor_, fmt::format("\r{:{}}\r", "", drawn_));
    drawn_ = 0;
}

}  // namespace sparkinfer
