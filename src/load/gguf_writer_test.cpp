// gguf_writer_test.cpp — what is written is what our reader, which is tested on its own, finds. Risk: a wrong
// offset or padding, a value in another type than it had, half a file under the final name.
#include "load/gguf_writer.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "core/file.h"
#include "load/gguf.h"

namespace sparkinfer {
namespace {

std::string scratch(const char* name) { return std::string(::testing::TempDir()) + "gguf_writer_" + name; }

size_t files_beside(const std::string& path) {
    const std::filesystem::path file(path);
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(file.parent_path()))
        count += entry.path().filename().string().starts_with(file.filename().string());
    return count;
}

TEST(GgufWriter, ReaderFindsWhatWasWritten) {
    const std::string path = scratch("all.gguf");
    GgufWriter writer;
    writer.set("a", gguf_u32(7));
    writer.set("gone", gguf_bool(false));
    writer.set("b", gguf_f32(0.5f));
    writer.set("c", gguf_texts({"x", "", "yz"}));
    writer.set("d", gguf_i32s({-1, 2}));
    writer.set("e", gguf_bools({true, false}));
    writer.set("f", gguf_text("text"));
    writer.set("a", gguf_i32(-7));  // in its old place
    writer.erase("gone");
    writer.add({"one", {3, 5}, 0, 60});
    writer.add({"two", {1}, 0, 4});
    auto file = NewFile::create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(writer.begin(*file).ok());
    ASSERT_TRUE(file->write(std::string(30, 'p')).ok());
    ASSERT_TRUE(file->write(std::string(30, 'q')).ok());
    ASSERT_TRUE(writer.end_tensor(*file).ok());
    ASSERT_TRUE(file->write(std::string(4, 'r')).ok());
    ASSERT_TRUE(writer.end_tensor(*file).ok());
    EXPECT_FALSE(std::filesystem::exists(path)) << "before it is whole";
    ASSERT_TRUE(file->commit().ok());
    EXPECT_EQ(std::filesystem::file_size(path), writer.file_bytes());
    EXPECT_EQ(files_beside(path), 1u);

    const auto mapped = MappedFile::open(path);
    ASSERT_TRUE(mapped.ok());
    const auto read = parse_gguf(mapped.value().bytes(), path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    const GgufContents& contents = read.value();
    ASSERT_EQ(contents.entries.size(), 6u);
    EXPECT_EQ(contents.entries[0].key, "a");
    EXPECT_EQ(contents.entries[0].value, gguf_i32(-7));
    EXPECT_EQ(contents.entries[2].value, gguf_texts({"x", "", "yz"}));
    EXPECT_EQ(*contents.metadata.number_or("b", 0), 0.5);
    EXPECT_EQ((**contents.metadata.ints("d"))[0], -1);
    EXPECT_EQ((**contents.metadata.bools("e"))[1], false);
    ASSERT_EQ(contents.tensors.size(), 2u);
    EXPECT_EQ(contents.tensors[0].shape, (std::vector<int64_t>{3, 5}));
    EXPECT_EQ(std::memcmp(contents.tensors[0].data + 29, "pq", 2), 0);
    EXPECT_EQ(std::memcmp(contents.tensors[1].data, "rrrr", 4), 0);
    std::filesystem::remove(path);
}

TEST(NewFile, UnfinishedIsTakenAway) {
    const std::string path = scratch("unfinished");
    {
        auto file = NewFile::create(path);
        ASSERT_TRUE(file.ok());
        ASSERT_TRUE(file->write(std::string(3 << 20, 'x')).ok());
        EXPECT_EQ(files_beside(path), 1u);
    }
    EXPECT_EQ(files_beside(path), 0u);
}

TEST(NewFile, WhatCannotBeWrittenIsRefusedAtOnce) {
    EXPECT_FALSE(NewFile::create(scratch("no/such/folder")).ok());
    EXPECT_FALSE(NewFile::create("/dev/null").ok());
    EXPECT_FALSE(NewFile::create(::testing::TempDir()).ok());
    auto file = NewFile::create(scratch("huge"));
    ASSERT_TRUE(file.ok());
    const auto reserved = file->reserve(uint64_t(1) << 60);
    ASSERT_FALSE(reserved.ok());
    EXPECT_EQ(reserved.error().kind, ErrorKind::resources) << reserved.error().message;
}

TEST(NewFile, ClaimedSpaceThatIsNotUsedIsGivenBack) {
    const std::string path = scratch("claimed");
    auto file = NewFile::create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->reserve(1 << 20).ok());
    ASSERT_TRUE(file->write(std::string("abc")).ok());
    ASSERT_TRUE(file->commit().ok());
    EXPECT_EQ(std::filesystem::file_size(path), 3u);
    std::filesystem::remove(path);
}

TEST(NewFile, SameFileSeesThroughLinks) {
    const std::string path = scratch("same"), link = scratch("link"), hard = scratch("hard");
    auto file = NewFile::create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->commit().ok());
    std::filesystem::create_symlink(path, link);
    std::filesystem::create_hard_link(path, hard);
    EXPECT_TRUE(same_file(path, link));
    EXPECT_TRUE(same_file(hard, link));
    EXPECT_FALSE(same_file(path, scratch("other")));
    for (const std::string& name : {link, hard, path}) std::filesystem::remove(name);
}

}  // namespace
}  // namespace sparkinfer
