// file_test.cpp — Risk: a path that is no plain file hangs or crashes, or its error does not name path and
// reason.
#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/unfinished.h"

namespace sparkinfer {
namespace {

class Files : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() / ("sparkinfer_file_" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string path(const std::string& name) { return (folder_ / name).string(); }
    std::filesystem::path folder_;
};

TEST_F(Files, MapsAndMoves) {
    std::ofstream(path("a")) << "hello";
    Result<MappedFile> r = MappedFile::open(path("a"));
    ASSERT_TRUE(r.ok()) << r.error().message;
    MappedFile file = std::move(r).value();
    EXPECT_EQ(file.size(), 5u);
    EXPECT_EQ(std::memcmp(file.data(), "hello", 5), 0);
    MappedFile moved = std::move(file);
    EXPECT_EQ(moved.path(), path("a"));
    EXPECT_EQ(std::memcmp(moved.data(), "hello", 5), 0);
    EXPECT_EQ(read_text_file(path("a"), 5).value(), "hello");
    EXPECT_NE(read_text_file(path("a"), 4).error().message.find("5 bytes, expected at most 4"),
              std::string::npos);
    std::ofstream(path("empty")) << "";
    EXPECT_EQ(MappedFile::open(path("empty")).value().size(), 0u);
}

TEST_F(Files, PathsThatAreNoFiles) {
    ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
    const std::pair<std::string, std::string> cases[] = {{path("absent"), "No such file"},
                                                         {path(""), "is a directory"},
                                                         {path("pipe"), "is a pipe or device"},
                                                         {"/dev/null", "is a pipe or device"}};
    for (const auto& [where, why] : cases) {
        for (const std::string& message :
             {MappedFile::open(where).error().message, read_text_file(where, 100).error().message}) {
            EXPECT_EQ(message.rfind(where + ": ", 0), 0u) << message;
            EXPECT_NE(message.find(why), std::string::npos) << message;
        }
    }
    if (::geteuid() == 0) return;  // permissions do not bind root
    std::ofstream(path("secret")) << "x";
    std::filesystem::permissions(path("secret"), std::filesystem::perms::none);
    EXPECT_NE(MappedFile::open(path("secret")).error().message.find("Permission denied"), std::string::npos);
}

// Risk: a model file that is cut while it is in use ends the process by a signal, without a word, and what
// was being written stays.
TEST_F(Files, AMapWhoseFileIsCut) {
    const std::string name = path("cut\n.gguf"), unfinished = path("out.tmp");
    const auto cut_while_mapped = [&](uint64_t touched) {
        std::ofstream(name) << std::string(20000, 'x');
        std::ofstream(unfinished) << "half";
        watch_lost_pages();
        const auto other = MappedFile::open(name);
        Result<MappedFile> opened = MappedFile::open(name);
        MappedFile file = std::move(opened).value();
        const UnfinishedFile writing(unfinished);
        std::filesystem::resize_file(name, 4096);
        const volatile std::byte* byte = file.data() + touched;
        (void)*byte;
        std::exit(0);
    };
    EXPECT_EXIT(cut_while_mapped(12345), testing::ExitedWithCode(3),
                "^sparkinfer: error: [^\n]*/cut\\?.gguf: byte 12345 cannot be read any more: the file has "
                "become shorter "
                "than its 20000 bytes, or its disk fails\n$");
    EXPECT_FALSE(std::filesystem::exists(unfinished));
    EXPECT_EXIT(cut_while_mapped(100), testing::ExitedWithCode(0), "^$");
}

// Risk: the handler takes a fault of ours for one of a file's.
TEST_F(Files, OtherFaultsStayFatal) {
    const auto touch_a_closed_map = [&] {
        std::ofstream(path("a")) << std::string(20000, 'x');
        watch_lost_pages();
        {
            const auto closed = MappedFile::open(path("a"));
        }
        std::raise(SIGBUS);
        std::exit(0);
    };
    EXPECT_EXIT(touch_a_closed_map(), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace sparkinfer
