#include "engine/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

namespace sparkinfer {
namespace {

// Two files of random bytes with a tensor in each. Their "memory map" is other memory, filled with zeros:
// what comes out of it was not read from the files.
class TwoFiles final : public Checkpoint {
  public:
    static constexpr int64_t kBytes = 300000, kHead = 100;  // of a file, before its tensor
    explicit TwoFiles(const std::filesystem::path& folder) : Checkpoint(Metadata{}) {
        std::mt19937 random(3);
        for (int file = 0; file < 2; ++file) {
            content[file].resize(kBytes);
            for (char& c : content[file]) c = char(random());
            const std::string path = folder / fmt::format("{}.bin", file);
            std::ofstream(path, std::ios::binary) << content[file];
            files_.push_back({path, uint64_t(kBytes)});
            map[file].resize(kBytes);
            StoredTensor t;
            t.name = fmt::format("tensor{}", file);
            t.data = map[file].data() + kHead;
            t.bytes = kBytes - kHead;
            t.file = file;
            t.file_offset = kHead;
            tensors_.push_back(t);
        }
    }
    Container container() const override { return Container::gguf; }
    Result<Weight> weight(const std::string&) override { return internal_error("none"); }
    bool has_weight(const std::string&) const override { return false; }
    std::string content[2];
    std::vector<std::byte> map[2];
};

class Folder {
  public:
    Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("weights_test_{}", ::getpid())) {
        std::filesystem::create_directory(path_);
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

// Risk: threads that ask for the same file for the first time at once open it twice or read a wrong
// descriptor; an offset within a tensor is lost.
TEST(CheckpointBytes, SeveralThreadsReadSeveralFiles) {
    const Folder folder;
    const TwoFiles files(folder.path());
    for (int round = 0; round < 20; ++round) {
        CheckpointBytes source(files);
        std::atomic<int64_t> next = 0;
        std::thread threads[4];
        for (std::thread& thread : threads)
            thread = std::thread([&] {
                std::vector<std::byte> to(20011);
                for (int64_t n; (n = next++) < 60;) {
                    const int64_t at = n / 2 * 9173, file = n % 2;
                    EXPECT_TRUE(source.read(files.tensors()[size_t(file)].data + at, to).ok());
                    const char* want = files.content[file].data() + TwoFiles::kHead + at;
                    EXPECT_EQ(std::memcmp(to.data(), want, to.size()), 0) << "file " << file << " at " << at;
                }
            });
        for (std::thread& thread : threads) thread.join();
    }
}

// Risk: bytes behind the end of a file that was cut after it was opened are taken for weights; a file that
// has gone is not named.
TEST(CheckpointBytes, AFileThatHasChangedIsNamed) {
    const Folder folder;
    const TwoFiles files(folder.path());
    const std::string path = files.files()[1].path;
    CheckpointBytes source(files);
    std::vector<std::byte> to(200000);
    ASSERT_TRUE(source.read(files.tensors()[1].data, to).ok());
    std::filesystem::resize_file(path, 150000);
    const auto cut = source.read(files.tensors()[1].data, to);
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.error().kind, ErrorKind::bad_input);
    EXPECT_EQ(
        cut.error().message,
        path +
            ": 50100 bytes of tensor tensor1 at offset 150000 cannot be read: the file has become shorter");
    EXPECT_TRUE(source.read(files.tensors()[0].data, to).ok()) << "the other file is whole";
    std::filesystem::remove(path);
    CheckpointBytes later(files);
    const auto gone = later.read(files.tensors()[1].data, to);
    ASSERT_FALSE(gone.ok());
    EXPECT_EQ(gone.error().message, path + ": cannot be opened: No such file or directory");
}

}  // namespace
}  // namespace sparkinfer
