#include "cli/progress.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace sparkinfer {
namespace {

// Risk: the figures are wrong, or the line wraps and every redraw leaves one behind.
TEST(Progress, LineSaysHowFarAndHowFast) {
    EXPECT_EQ(progress_line(11'000'000'000, 22'000'000'000, 2, 80),
              "sparkinfer: loading [============>            ]  50 %, 11.0 of 22.0 GB, 5.5 GB/s");
    EXPECT_EQ(progress_line(0, 22'000'000'000, 0, 80),
              "sparkinfer: loading [>                                   ]   0 %, 0.0 of 22.0 GB");
    EXPECT_EQ(progress_line(22'000'000'000, 22'000'000'000, 2.5, 80),
              "sparkinfer: loading [=========================] 100 %, 22.0 of 22.0 GB, 8.8 GB/s");
    EXPECT_EQ(progress_line(0, 0, 1, 60).find("nan"), std::string::npos);
    for (int columns = 0; columns < 200; ++columns) {
        const std::string line = progress_line(9'300'000'000, 22'100'000'000, 1.07, columns);
        EXPECT_LE(line.size(), size_t(columns));
        const bool whole = line.find(" 42 %, 9.3 of 22.1 GB, 8.7 GB/s") != std::string::npos;
        EXPECT_EQ(whole, columns >= 51) << line;
    }
}

std::string read_what_is_there(int descriptor) {
    ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
    std::string text(4096, '\0');
    const ssize_t n = ::read(descriptor, text.data(), text.size());
    text.resize(n > 0 ? size_t(n) : 0);
    return text;
}

// Risk: a log file full of bars.
TEST(Progress, NothingGoesToAPipe) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    {
        ProgressBar bar(ends[1], 0);
        bar.show(1, 2);
    }
    EXPECT_EQ(read_what_is_there(ends[0]), "");
    ::close(ends[0]);
    ::close(ends[1]);
}

// Risk: the bar stays on the terminal, or is drawn for a load that is over before anyone could read it.
TEST(Progress, ComesAndGoesOnATerminal) {
    const int outside = ::posix_openpt(O_RDWR | O_NOCTTY);
    ASSERT_GE(outside, 0);
    ASSERT_EQ(::grantpt(outside), 0);
    ASSERT_EQ(::unlockpt(outside), 0);
    const int terminal = ::open(::ptsname(outside), O_RDWR | O_NOCTTY);
    ASSERT_GE(terminal, 0);
    const winsize size{24, 70, 0, 0};
    ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
    {
        ProgressBar brief(terminal, 60);
        brief.show(1, 2);
    }
    EXPECT_EQ(read_what_is_there(outside), "");
    std::string shown;
    {
        ProgressBar bar(terminal, 0);
        bar.show(1'000'000'000, 4'000'000'000);
        bar.show(2'000'000'000, 4'000'000'000);  // at once: too soon to draw again
        shown = read_what_is_there(outside);
        EXPECT_EQ(shown.rfind('\r'), 0u) << "drawn once";
        EXPECT_NE(shown.find(" 25 %, 1.0 of 4.0 GB"), std::string::npos) << shown;
        EXPECT_LE(shown.size(), 70u);
    }
    EXPECT_EQ(read_what_is_there(outside), fmt::format("\r{:{}}\r", "", shown.size() - 1));
    ::close(terminal);
    ::close(outside);
}

}  // namespace
}  // namespace sparkinfer
