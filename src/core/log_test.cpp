#include "core/log.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

// Risk: a file's name or metadata drives the terminal (escape sequences), or a message breaks into several
// lines.
TEST(Log, ShowsControlCharactersInsteadOfSendingThem) {
    EXPECT_EQ(log_format(LogLevel::error, "bad \x1b[2J name\n", false),
              "sparkinfer: error: bad \\x1b[2J name\\x0a\n");
}

// Risk: colour codes end up in files and pipes, or UTF-8 is mangled.
TEST(Log, ColoursOnlyWhenAskedAndKeepsUtf8) {
    EXPECT_EQ(log_format(LogLevel::info, "größe", true), "sparkinfer: größe\n");
    EXPECT_EQ(log_format(LogLevel::warning, "x", false), "sparkinfer: warning: x\n");
    EXPECT_EQ(log_format(LogLevel::warning, "x", true), "sparkinfer: \x1b[1;33mwarning:\x1b[0m x\n");
}

}  // namespace
}  // namespace sparkinfer
