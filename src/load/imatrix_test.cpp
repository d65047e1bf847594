// imatrix_test.cpp — both formats of importance matrices. Risk: sums taken for means, experts mixed up, a
// damaged file that makes us read beyond its end.
#include "load/imatrix.h"

#include <gtest/gtest.h>

#include "load/gguf_test_builder.h"

namespace sparkinfer {
namespace {

std::string floats(const std::vector<float>& values) {
    ByteBuilder b;
    for (const float v : values) b.put(v);
    return b.bytes();
}

std::string scratch(const char* name) { return std::string(::testing::TempDir()) + "imatrix_" + name; }

Result<Imatrix> read(const char* name, const std::string& bytes) {
    write_file(scratch(name), bytes);
    return read_imatrix(scratch(name));
}

std::string gguf_file(const std::vector<float>& counts) {
    GgufBuilder b;
    b.text("general.type", "imatrix").number<uint32_t>("imatrix.chunk_count", 4, 5);
    b.texts("imatrix.datasets", {"wiki.txt"});
    b.tensor("blk.0.ffn_up_exps.weight.in_sum2", {3, 2}, 0, floats({2, 4, 6, 30, 60, 90}));
    b.tensor("blk.0.ffn_up_exps.weight.counts", {1, uint64_t(counts.size())}, 0, floats(counts));
    return b.bytes();
}

TEST(Imatrix, GgufDividesEachExpertByItsCount) {
    const auto imatrix = read("a", gguf_file({2, 30}));
    ASSERT_TRUE(imatrix.ok()) << imatrix.error().message;
    EXPECT_EQ(imatrix.value().columns.at("blk.0.ffn_up_exps.weight"), (std::vector<float>{1, 2, 3, 1, 2, 3}));
    EXPECT_EQ(imatrix.value().dataset, "wiki.txt");
    EXPECT_EQ(imatrix.value().chunks, 5);
    // An expert that no token reached: all columns alike.
    EXPECT_EQ(read("b", gguf_file({2, 0})).value().columns.begin()->second,
              (std::vector<float>{1, 2, 3, 1, 1, 1}));
}

TEST(Imatrix, GgufThatMakesNoSenseIsRefused) {
    EXPECT_FALSE(read("c", gguf_file({1, 1, 1, 1})).ok());  // 6 sums for 4 counts
    EXPECT_FALSE(read("e", GgufBuilder().text("general.type", "model").bytes()).ok());
    GgufBuilder lonely;
    lonely.text("general.type", "imatrix").tensor("x.in_sum2", {2}, 0, floats({1, 2}));
    EXPECT_FALSE(read("f", lonely.bytes()).ok());
    GgufBuilder negative;
    negative.text("general.type", "imatrix").tensor("x.in_sum2", {2}, 0, floats({1, -2}));
    negative.tensor("x.counts", {1}, 0, floats({1}));
    const auto refused = read("g", negative.bytes());
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("column 1 of 'x'"), std::string::npos) << refused.error().message;
}

std::string headerless(int32_t entries, int32_t values) {
    ByteBuilder b;
    b.put<int32_t>(entries).put<int32_t>(5).put_raw("blk.x").put<int32_t>(4).put<int32_t>(values);
    b.put_raw(floats({4, 8})).put<int32_t>(9).put<int32_t>(3).put_raw("abc");
    return b.bytes();
}

TEST(Imatrix, HeaderlessDividesByTheCalls) {
    const auto imatrix = read("h", headerless(1, 2));
    ASSERT_TRUE(imatrix.ok()) << imatrix.error().message;
    EXPECT_EQ(imatrix.value().columns.at("blk.x"), (std::vector<float>{1, 2}));
    EXPECT_EQ(imatrix.value().chunks, 9);
    EXPECT_EQ(imatrix.value().dataset, "abc");
}

TEST(Imatrix, EveryCutOfAFileIsRefusedOrWhole) {
    const std::string whole = headerless(1, 2);
    for (size_t length = 0; length < whole.size(); length++) {
        const auto cut = read("i", whole.substr(0, length));
        // Chunks and data set may be missing altogether.
        EXPECT_EQ(cut.ok(), length == 29 || length == 33) << length;
    }
    EXPECT_FALSE(read("j", headerless(1 << 30, 2)).ok());
    EXPECT_FALSE(read("k", headerless(1, 1 << 30)).ok());
    EXPECT_FALSE(read("l", headerless(-1, 2)).ok());
}

}  // namespace
}  // namespace sparkinfer
