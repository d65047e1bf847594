#include "cli/npy.h"

#include <gtest/gtest.h>

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sparkinfer {
namespace {

std::string npy(const std::string& header, const std::string& data, int version = 1) {
    std::string text = "\x93NUMPY";
    text += char(version);
    text += '\0';
    const size_t n = header.size();
    text += {char(n & 255), char(n >> 8)};
    if (version > 1) text += std::string(2, '\0');
    return text + header + data;
}
template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
const char* kTwo = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }\n";

// Risk: arrays as NumPy writes them are refused, or read with the wrong width.
TEST(Npy, ReadsWhatNumpyWrites) {
    const std::vector<int32_t> expected = {7, 151935};
    EXPECT_EQ(parse_npy_ids("x", npy(kTwo, bytes_of<int64_t>({7, 151935}))).value(), expected);
    EXPECT_EQ(parse_npy_ids("x", npy(kTwo, bytes_of<int64_t>({7, 151935}), 2)).value(), expected);
    EXPECT_EQ(parse_npy_ids("x", npy("{\"shape\": (2,), \"descr\": \"<i4\", \"fortran_order\": True}",
                                     bytes_of<int32_t>({7, 151935}), 3))
                  .value(),
              expected);
    EXPECT_TRUE(parse_npy_ids("x", npy("{'descr': '<i4', 'fortran_order': False, 'shape': (0,), }", ""))
                    .value()
                    .empty());
}

// Risk: a number in the file is believed: a length beyond the data, an id beyond int32, another type or rank.
TEST(Npy, RefusesWhatDoesNotAddUp) {
    const auto refused = [](const std::string& bytes) {
        const auto read = parse_npy_ids("f.npy", bytes);
        if (read.ok()) return std::string("accepted");
        EXPECT_EQ(read.error().kind, ErrorKind::bad_input);
        EXPECT_EQ(read.error().message.rfind("f.npy: ", 0), 0u);
        return read.error().message.substr(7);
    };
    const auto header = [](const char* type, const char* shape) {
        return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n", type, shape);
    };
    const std::string two = bytes_of<int64_t>({1, 2});
    EXPECT_EQ(refused(""), "is no .npy file: it does not start with \\x93NUMPY and a header");
    EXPECT_EQ(refused(npy(kTwo, two, 4)), ".npy version 4.0, expected 1.0, 2.0 or 3.0");
    EXPECT_EQ(refused(npy(header("<f4", "(2,)"), two)),
              "holds values of type '<f4', expected '<i4' or '<i8' (int32, int64)");
    EXPECT_EQ(refused(npy(header(">i8", "(2,)"), two)),
              "holds values of type '>i8', expected '<i4' or '<i8' (int32, int64)");
    EXPECT_EQ(refused(npy(header("<i8", "(1, 2)"), two)), "has 2 dimensions, expected 1");
    EXPECT_EQ(refused(npy(header("<i8", "()"), two)), "has 0 dimensions, expected 1");
    EXPECT_EQ(refused(npy(header("<i8", "(3,)"), two)), "shape (3,) of 8 bytes each, and 16 bytes of data");
    EXPECT_EQ(refused(npy(header("<i8", "(1,)"), two)), "shape (1,) of 8 bytes each, and 16 bytes of data");
    EXPECT_EQ(refused(npy(header("<i8", "(144115188075855872,)"), "")),
              "shape (144115188075855872,) of 8 bytes each, and 0 bytes of data");
    EXPECT_EQ(refused(npy(kTwo, bytes_of<int64_t>({1, -2}))), "value 1 is -2, expected a token id");
    EXPECT_EQ(refused(npy(kTwo, bytes_of<int64_t>({int64_t(1) << 40, 2}))),
              "value 0 is 1099511627776, expected a token id");
    EXPECT_EQ(refused(npy(header("<i4", "(1,)"), bytes_of<int32_t>({-1}))),
              "value 0 is -1, expected a token id");
    const char* broken[] = {"{'descr': '<i8', 'shape': (2,), }\n",
                            "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), 'x': 1}\n",
                            "{'descr': '<i8', 'fortran_order': False, 'shape': (-2,), }\n",
                            "{'descr': '<i8', 'descr': '<i8', 'fortran_order': False, 'shape': (2,), }\n",
                            "{'descr': '<i8', 'fortran_order': False, 'shape': (2,",
                            "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999,), }\n",
                            ""};
    for (const char* text : broken)
        EXPECT_EQ(refused(npy(text, two)),
                  "the .npy header is not a dictionary of descr, fortran_order and shape")
            << text;
    std::string cut = npy(kTwo, "");
    cut.resize(30);
    EXPECT_EQ(refused(cut),
              fmt::format("the .npy header claims {} bytes, the file has 20 left", strlen(kTwo)));
}

// Risk: an interrupted run leaves half an array under the final name, or NumPy cannot read the header.
TEST(Npy, WritesUnderATemporaryNameUntilCommitted) {
    const auto folder = std::filesystem::temp_directory_path() / fmt::format("npy_test_{}", ::getpid());
    std::filesystem::create_directory(folder);
    const std::string path = folder / "out.npy";
    {
        auto writer = NpyWriter::create(path, 2, 3);
        ASSERT_TRUE(writer.ok());
        ASSERT_TRUE(writer->write_row(std::vector<float>{1, 2, 3}).ok());
        EXPECT_FALSE(std::filesystem::exists(path));
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    auto writer = NpyWriter::create(path, 2, 3);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->write_row(std::vector<float>{1, 2, 3}).ok());
    ASSERT_TRUE(writer->write_row(std::vector<float>{4, 5, 6}).ok());
    ASSERT_TRUE(writer->commit().ok());
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    const std::string bytes = text.str();
    ASSERT_EQ(bytes.size(), 128u + 24);
    EXPECT_EQ(bytes.substr(10, 59), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }");
    EXPECT_EQ(bytes[127], '\n');
    float last = 0;
    memcpy(&last, bytes.data() + 128 + 20, 4);
    EXPECT_EQ(last, 6.0f);
    std::filesystem::remove_all(folder);
    EXPECT_EQ(NpyWriter::create("/nonexistent/x.npy", 1, 1).error().kind, ErrorKind::bad_input);
}

}  // namespace
}  // namespace sparkinfer
