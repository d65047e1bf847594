// gguf_test.cpp — the GGUF reader on right and on wrong files. Risk: a crafted or damaged file crashes the
// process, makes it allocate without bounds, or is read as something it is not.
#include "load/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "core/half.h"
#include "load/gguf_test_builder.h"
#include "quant/decode.h"

namespace sparkinfer {
namespace {

constexpr uint32_t kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kU64 = 10,
                   kI64 = 11, kF64 = 12;
constexpr uint32_t kTypeF32 = 0, kTypeF16 = 1, kTypeQ41 = 3, kTypeQ80 = 8;

// Exactly as many bytes as the file has, on the heap, so that a sanitizer sees a read past the end.
Result<GgufContents> parse(const std::string& file) {
    static std::vector<std::byte> bytes;
    bytes.assign(reinterpret_cast<const std::byte*>(file.data()),
                 reinterpret_cast<const std::byte*>(file.data() + file.size()));
    bytes.shrink_to_fit();
    return parse_gguf(bytes, "model.gguf");
}

// The file is refused as bad input, and the sentence contains every one of `words`.
void expect_refused(const std::string& file, const std::vector<std::string>& words) {
    const Result<GgufContents> r = parse(file);
    ASSERT_FALSE(r.ok()) << "expected a refusal with '" << words[0] << "'";
    EXPECT_EQ(r.error().kind, ErrorKind::bad_input);
    EXPECT_NE(r.error().message.find("model.gguf"), std::string::npos) << r.error().message;
    for (const std::string& word : words)
        EXPECT_NE(r.error().message.find(word), std::string::npos)
            << r.error().message << "\nlacks: " << word;
}

std::string floats_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// A proper small file with every value type and three tensors.
GgufBuilder small_file() {
    GgufBuilder b;
    b.text("general.architecture", "llama");
    b.number<uint8_t>("u8", kU8, 200).number<int8_t>("i8", kI8, -3).number<uint16_t>("u16", kU16, 60000);
    b.number<int16_t>("i16", kI16, -300)
        .number<uint32_t>("u32", kU32, 4000000000u)
        .number<int32_t>("i32", kI32, -5);
    b.number<uint64_t>("u64", kU64, UINT64_MAX).number<int64_t>("i64", kI64, INT64_MIN);
    b.number<float>("f32", kF32, 0.5f).number<double>("f64", kF64, 0.1).number<uint8_t>("yes", kBool, 1);
    b.texts("words", {"a", "", "\xc3\xa9"}).array<int32_t>("ints", kI32, {1, -2, 3});
    b.array<float>("numbers", kF32, {0.25f, -1.5f}).array<uint8_t>("flags", kBool, {1, 0, 1});
    b.array<int32_t>("none", kI32, {});
    b.tensor("b.weight", {4, 2}, kTypeF32, floats_of({1, 2, 3, 4, 5, 6, 7, 8}));
    b.tensor("a.weight", {32, 2, 3}, kTypeQ80, std::string(6 * 34, '\1'));
    b.tensor("norm", {3}, kTypeF32, floats_of({-1, 0, 1}));
    return b;
}

TEST(Gguf, EveryValueTypeArrives) {
    const Result<GgufContents> r = parse(small_file().bytes());
    ASSERT_TRUE(r.ok()) << r.error().message;
    const Metadata& m = r.value().metadata;
    EXPECT_EQ(m.require_string("general.architecture").value(), "llama");
    EXPECT_EQ(m.require_int("u8", 0, 1000).value(), 200);
    EXPECT_EQ(m.require_int("i8", -10, 10).value(), -3);
    EXPECT_EQ(m.require_int("u16", 0, 70000).value(), 60000);
    EXPECT_EQ(m.require_int("i16", -1000, 0).value(), -300);
    EXPECT_EQ(m.require_int("u32", 0, INT64_MAX).value(), 4000000000);
    EXPECT_EQ(m.require_int("i32", -10, 0).value(), -5);
    EXPECT_EQ(std::get<uint64_t>(*m.find("u64")), UINT64_MAX);
    EXPECT_EQ(std::get<int64_t>(*m.find("i64")), INT64_MIN);
    EXPECT_EQ(m.require_number("f32").value(), 0.5);
    EXPECT_EQ(m.require_number("f64").value(), 0.1);
    EXPECT_TRUE(m.bool_or("yes", false).value());
    EXPECT_EQ(*m.strings("words").value(), (std::vector<std::string>{"a", "", "\xc3\xa9"}));
    EXPECT_EQ(*m.ints("ints").value(), (std::vector<int64_t>{1, -2, 3}));
    EXPECT_EQ(*m.numbers("numbers").value(), (std::vector<double>{0.25, -1.5}));
    EXPECT_EQ(*m.bools("flags").value(), (std::vector<bool>{true, false, true}));
    EXPECT_TRUE(m.ints("none").value()->empty());
}

TEST(Gguf, TensorTableGivesShapesOutermostFirst) {
    const Result<GgufContents> r = parse(small_file().bytes());
    ASSERT_TRUE(r.ok()) << r.error().message;
    const std::vector<StoredTensor>& t = r.value().tensors;
    ASSERT_EQ(t.size(), 3u);
    EXPECT_EQ(t[0].shape, (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(t[1].shape, (std::vector<int64_t>{3, 2, 32}));
    EXPECT_EQ(t[1].type, "Q8_0");
    EXPECT_EQ(t[1].bytes, 204u);
    EXPECT_EQ(t[0].file_offset % 32, 0u);
    float second = 0;
    std::memcpy(&second, t[0].data + 4, 4);
    EXPECT_EQ(second, 2.0f);
}

TEST(Gguf, VersionTwoAndLargerAlignment) {
    GgufBuilder b;
    b.version = 2;
    b.alignment = 128;
    b.number<uint32_t>("general.alignment", kU32, 128);
    b.tensor("x", {1}, kTypeF32, floats_of({7})).tensor("y", {1}, kTypeF32, floats_of({8}));
    const Result<GgufContents> r = parse(b.bytes());
    ASSERT_TRUE(r.ok()) << r.error().message;
    EXPECT_EQ(r.value().tensors[1].file_offset % 128, 0u);
}

TEST(Gguf, TypeConfusionIsAnErrorNotACrash) {
    const Result<GgufContents> r = parse(small_file().bytes());
    const Metadata& m = r.value().metadata;
    EXPECT_NE(m.strings("ints").error().message.find("array of integers"), std::string::npos);
    EXPECT_NE(m.ints("u8").error().message.find("integer, expected an array of integers"), std::string::npos);
    EXPECT_FALSE(m.require_int("words", 0, 1).ok());
    EXPECT_FALSE(m.require_int("u64", 0, INT64_MAX).ok());
}

TEST(GgufBadInput, MagicVersionEndianEmpty) {
    GgufBuilder b = small_file();
    b.magic = 0x04034b50;
    expect_refused(b.bytes(), {"not a GGUF file", "504b0304"});
    b = small_file();
    b.version = 1;
    expect_refused(b.bytes(), {"version 1", "expected 2 or 3"});
    b.version = 4;
    expect_refused(b.bytes(), {"version 4"});
    b.version = __builtin_bswap32(3);
    expect_refused(b.bytes(), {"big-endian"});
    expect_refused("", {"empty"});
    expect_refused("GG", {"truncated"});
}

// Every prefix of a proper file is refused, whatever it cuts.
TEST(GgufBadInput, TruncatedAnywhere) {
    const std::string file = small_file().bytes();
    for (size_t n = 0; n < file.size(); n++) {
        const Result<GgufContents> r = parse(file.substr(0, n));
        ASSERT_FALSE(r.ok()) << n;
        ASSERT_EQ(r.error().kind, ErrorKind::bad_input) << n;
    }
}

TEST(GgufBadInput, AbsurdCounts) {
    GgufBuilder b = small_file();
    b.key_value_count = INT64_MAX;
    expect_refused(b.bytes(), {"claims 9223372036854775807 metadata entries"});
    b = small_file();
    b.tensor_count = INT64_MAX / 2;
    expect_refused(b.bytes(), {"tensors", "only"});
    GgufBuilder array;
    array.entry("a", 9).put<uint32_t>(kU64).put<uint64_t>(UINT64_MAX / 8 + 2);  // times 8 wraps to 8
    expect_refused(array.bytes(), {"'a'", "array of 2305843009213693953 elements"});
    GgufBuilder texts;
    texts.entry("a", 9).put<uint32_t>(8).put<uint64_t>(uint64_t(1) << 61);
    expect_refused(texts.bytes(), {"array of 2305843009213693952 elements"});
    GgufBuilder flags;
    flags.entry("a", 9).put<uint32_t>(kBool).put<uint64_t>(uint64_t(1) << 40);
    expect_refused(flags.bytes(), {"array of 1099511627776 elements"});
}

TEST(GgufBadInput, LengthsThatOverflow) {
    GgufBuilder key;
    key.key_value_count = 1;
    const std::string head = key.bytes();
    expect_refused(ByteBuilder().put_raw(head).put<uint64_t>(UINT64_MAX).put_raw("0123456789abcdef").bytes(),
                   {"metadata key", "18446744073709551615 bytes"});
    GgufBuilder value;
    value.entry("k", 8).put<uint64_t>(UINT64_MAX - 8);
    expect_refused(value.bytes(), {"metadata string"});
    GgufBuilder dims;
    dims.tensor("big", {uint64_t(1) << 32, uint64_t(1) << 32}, kTypeF32, "");
    expect_refused(dims.bytes(), {"'big'", "more elements than 64 bits"});
    GgufBuilder bytes;
    bytes.tensor("big", {uint64_t(1) << 62}, kTypeF32, "");
    expect_refused(bytes.bytes(), {"'big'", "more bytes than 64 bits"});
    GgufBuilder offset;
    offset.tensor("far", {8}, kTypeF32, floats_of({1, 2, 3, 4, 5, 6, 7, 8}), int64_t(INT64_MAX) / 32 * 32);
    expect_refused(offset.bytes(), {"'far'", "truncated"});
}

TEST(GgufBadInput, TensorsThatOverlapOrAreMisaligned) {
    GgufBuilder b;
    b.tensor("one", {16}, kTypeF32, std::string(64, 'x'))
        .tensor("two", {16}, kTypeF32, std::string(64, 'x'), 32);
    expect_refused(b.bytes(), {"'one'", "'two'", "overlap"});
    GgufBuilder m;
    m.tensor("one", {4}, kTypeF32, std::string(16, 'x'))
        .tensor("two", {4}, kTypeF32, std::string(64, 'x'), 16);
    expect_refused(m.bytes(), {"'two'", "offset 16", "multiple of 32"});
}

TEST(GgufBadInput, Dimensions) {
    GgufBuilder zero;
    zero.tensor("z", {4, 0}, kTypeF32, "");
    expect_refused(zero.bytes(), {"'z'", "0 elements in dimension 1"});
    GgufBuilder negative;
    negative.tensor("n", {uint64_t(-4)}, kTypeF32, "");
    expect_refused(negative.bytes(), {"'n'", "-4 elements in dimension 0"});
    GgufBuilder five;
    five.tensor("f", {1, 1, 1, 1, 1}, kTypeF32, std::string(4, 'x'));
    expect_refused(five.bytes(), {"'f'", "5 dimensions"});
    GgufBuilder none;
    none.tensor("s", {}, kTypeF32, std::string(40, 'x'));
    expect_refused(none.bytes(), {"'s'", "0 dimensions"});
    GgufBuilder ragged;
    ragged.tensor("r", {48}, kTypeQ80, std::string(51, 'x'));
    expect_refused(ragged.bytes(), {"'r'", "rows of 48", "multiple of 32", "Q8_0"});
}

TEST(GgufBadInput, TypesOfTensorsAndValues) {
    GgufBuilder unknown;
    unknown.tensor("t", {32}, 99, std::string(32, 'x'));
    expect_refused(unknown.bytes(), {"'t'", "unknown type id 99"});
    GgufBuilder removed;
    removed.tensor("t", {32}, 4, std::string(32, 'x'));
    expect_refused(removed.bytes(), {"unknown type id 4"});
    GgufBuilder value;
    value.number<uint32_t>("k", 13, 0);
    expect_refused(value.bytes(), {"'k'", "value type 13"});
    GgufBuilder element;
    element.array<uint32_t>("k", 77, {1});
    expect_refused(element.bytes(), {"'k'", "elements of type 77"});
    GgufBuilder nested;
    nested.entry("k", 9).put<uint32_t>(9).put<uint64_t>(1).put<uint32_t>(kU8).put<uint64_t>(0);
    expect_refused(nested.bytes(), {"'k'", "array of arrays"});
    GgufBuilder boolean;
    boolean.number<uint8_t>("k", kBool, 7);
    expect_refused(boolean.bytes(), {"'k'", "boolean with the byte 7"});
    GgufBuilder huge;
    huge.array<uint64_t>("k", kU64, {1, UINT64_MAX});
    expect_refused(huge.bytes(), {"'k'", "18446744073709551615 at index 1"});
}

TEST(GgufBadInput, NamesAndKeys) {
    GgufBuilder keys;
    keys.text("k", "1").text("k", "2");
    expect_refused(keys.bytes(), {"'k' occurs twice"});
    GgufBuilder names;
    names.tensor("t", {1}, kTypeF32, "abcd").tensor("t", {1}, kTypeF32, "abcd");
    expect_refused(names.bytes(), {"'t' occurs twice"});
    GgufBuilder lengthy;
    lengthy.tensor(std::string(65, 'n'), {1}, kTypeF32, "abcd");
    expect_refused(lengthy.bytes(), {"65 bytes", "1 to 64"});
    GgufBuilder exact;
    exact.tensor(std::string(64, 'n'), {1}, kTypeF32, "abcd");
    EXPECT_TRUE(parse(exact.bytes()).ok());
    for (const char* bad : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "a\x80"}) {
        GgufBuilder key;
        key.text(bad, "v");
        expect_refused(key.bytes(), {"metadata key", "not UTF-8"});
        GgufBuilder name;
        name.tensor(bad, {1}, kTypeF32, "abcd");
        expect_refused(name.bytes(), {"tensor name", "not UTF-8"});
    }
    GgufBuilder empty;
    empty.text("", "v");
    expect_refused(empty.bytes(), {"0 bytes"});
}

TEST(GgufBadInput, Alignment) {
    for (const int64_t bad : {int64_t(0), int64_t(24), int64_t(-32), int64_t(1) << 40}) {
        GgufBuilder b;
        b.number<int64_t>("general.alignment", kI64, bad).tensor("t", {1}, kTypeF32, "abcd");
        expect_refused(b.bytes(), {"general.alignment", "power of two"});
    }
    GgufBuilder text;
    text.text("general.alignment", "32");
    expect_refused(text.bytes(), {"general.alignment", "string"});
}

// Random damage gives a Result, never a crash; the first 40 bytes are hit more often than their share.
TEST(GgufBadInput, RandomDamage) {
    const std::string file = small_file().bytes();
    std::mt19937 random(7);
    int accepted = 0;
    for (int round = 0; round < 6000; round++) {
        std::string damaged = file;
        const int flips = 1 + int(random() % 4);
        for (int i = 0; i < flips; i++) {
            const size_t limit = random() % 4 == 0 ? 40 : damaged.size();
            damaged[random() % limit] = char(random() % 8 == 0 ? 0xff : random());
        }
        if (random() % 4 == 0) damaged.resize(random() % damaged.size());
        const Result<GgufContents> r = parse(damaged);
        if (!r.ok()) {
            ASSERT_FALSE(r.error().message.empty());
            continue;
        }
        accepted++;
        for (const StoredTensor& t : r.value().tensors) ASSERT_LE(t.file_offset + t.bytes, damaged.size());
    }
    EXPECT_GT(accepted, 0);  // flips in values and data are harmless
}

class GgufFiles : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() / ("sparkinfer_gguf_" + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string write(const std::string& name, const std::string& bytes) {
        write_file((folder_ / name).string(), bytes);
        return (folder_ / name).string();
    }
    std::filesystem::path folder_;
};

// Risk: a message that lacks what the operator has to do.
void expect_fails(const std::string& path, const std::vector<std::string>& words) {
    const auto r = open_checkpoint(path);
    ASSERT_FALSE(r.ok()) << path;
    EXPECT_EQ(r.error().kind, ErrorKind::bad_input);
    for (const std::string& word : words)
        EXPECT_NE(r.error().message.find(word), std::string::npos)
            << r.error().message << "\nlacks: " << word;
}

TEST_F(GgufFiles, WeightsDecodeAndScalesApply) {
    GgufBuilder b;
    std::string q4;  // d = 2, m = -1, codes 0..15 and 15..0
    for (int i = 0; i < 2; i++) {
        ByteBuilder block;
        block.put(f32_to_f16(2)).put(f32_to_f16(-1));
        for (int j = 0; j < 16; j++) block.put(uint8_t(j | (15 - j) << 4));
        q4 += block.bytes();
    }
    b.tensor("blk.0.q.weight", {32, 2}, kTypeQ41, q4);
    b.tensor("blk.0.e.weight", {2, 1, 2}, kTypeF32, floats_of({1, 2, 3, 4}));
    b.tensor("blk.0.e.scale", {2}, kTypeF32, floats_of({10, 100}));
    b.tensor("blk.0.vector.weight", {2}, kTypeF16, std::string("\x00\x3c\x00\xc0", 4));
    b.tensor("blk.0.low.weight", {256}, 16, std::string(66, 'x'));
    b.tensor("blk.0.lost.scale", {1}, kTypeF32, floats_of({1}));
    b.tensor("blk.0.odd.weight", {2, 2}, kTypeF32, floats_of({1, 2, 3, 4}));
    b.tensor("blk.0.odd.scale", {2}, kTypeF32, floats_of({1, 2}));
    auto opened = open_checkpoint(write("m.gguf", b.bytes()));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    Checkpoint& c = **opened;

    const Weight q = c.weight("blk.0.q").value();
    EXPECT_EQ(q.quant, Quant::q4_1);
    EXPECT_EQ(q.out, 2);
    EXPECT_EQ(q.in, 32);
    std::vector<float> row(32);
    decode_row(q, 0, 1, row.data());
    EXPECT_EQ(row[3], 5.0f);
    EXPECT_EQ(row[16], 29.0f);

    const Weight e = c.weight("blk.0.e").value();
    EXPECT_EQ(e.experts, 2);
    EXPECT_EQ(e.scale_count, 2);
    decode_row(e, 1, 0, row.data());
    EXPECT_EQ(row[0], 300.0f);
    EXPECT_EQ(row[1], 400.0f);
    EXPECT_EQ(decode_element(e, 0, 0, 1), 20.0f);

    EXPECT_EQ(c.weight("blk.0.vector").value().out, 1);
    EXPECT_EQ(c.floats("blk.0.vector.weight", 2).value(), (std::vector<float>{1, -2}));
    EXPECT_NE(c.floats("blk.0.vector.weight", 3).error().message.find("expected 3 elements"),
              std::string::npos);
    EXPECT_NE(c.floats("nothing", 3).error().message.find("'nothing' is missing"), std::string::npos);
    EXPECT_NE(c.weight("blk.0.low").error().message.find("IQ2_XXS"), std::string::npos);
    EXPECT_NE(c.weight("blk.0.lost").error().message.find("orphan"), std::string::npos);
    EXPECT_NE(c.weight("blk.0.odd").error().message.find("2 elements, expected 1"), std::string::npos);
    EXPECT_NE(c.weight("blk.9.q").error().message.find("'blk.9.q.weight' is missing"), std::string::npos);
    EXPECT_FALSE(c.has_weight("blk.9.q"));
    EXPECT_EQ(c.unused(),
              (std::vector<std::string>{"blk.0.lost.scale", "blk.0.low.weight", "blk.0.odd.scale"}));
}

GgufBuilder piece(int number, int count, int tensors, const std::string& tensor) {
    GgufBuilder b;
    b.number<uint16_t>("split.no", kU16, uint16_t(number))
        .number<uint16_t>("split.count", kU16, uint16_t(count));
    b.number<int32_t>("split.tensors.count", kI32, tensors);
    b.tensor(tensor, {1}, kTypeF32, floats_of({float(number)}));
    return b;
}

TEST_F(GgufFiles, SplitFiles) {
    const std::string first = write("m-00001-of-00003.gguf", piece(0, 3, 3, "c").bytes());
    const std::string second = write("m-00002-of-00003.gguf", piece(1, 3, 3, "a").bytes());
    expect_fails(first, {"piece 3 of 3", "m-00003-of-00003.gguf", "No such file"});
    write("m-00003-of-00003.gguf", piece(2, 3, 3, "b").bytes());
    auto opened = open_checkpoint(first);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->files().size(), 3u);
    EXPECT_EQ((*opened)->tensors()[1].name, "b");
    EXPECT_EQ((*opened)->floats("b", 1).value()[0], 2.0f);
    expect_fails(second, {"piece 2 of 3", "m-00001-of-00003.gguf"});
    write("m-00003-of-00003.gguf", piece(1, 3, 3, "b").bytes());
    expect_fails(first, {"m-00003-of-00003.gguf", "piece 2 of 3", "expected piece 3 of 3"});
    write("m-00003-of-00003.gguf", piece(2, 3, 3, "a").bytes());
    expect_fails(first, {"'a' occurs in", "m-00002", "m-00003"});
    write("m-00003-of-00003.gguf", piece(2, 3, 3, "b").bytes().substr(0, 90));
    expect_fails(first, {"piece 3 of 3", "truncated"});
    write("n-00001-of-00001.gguf", piece(0, 1, 7, "b").bytes());
    expect_fails((folder_ / "n-00001-of-00001.gguf").string(), {"hold 1 tensors, expected 7"});
    const std::string renamed = write("renamed.gguf", piece(0, 3, 3, "c").bytes());
    expect_fails(renamed, {"-00001-of-00003.gguf"});
}

TEST_F(GgufFiles, PathsThatAreNoModels) {
    expect_fails((folder_ / "absent.gguf").string(), {"absent.gguf", "No such file"});
    expect_fails(write("empty.gguf", ""), {"empty.gguf", "empty"});
    expect_fails(write("notes.txt", "hello there"), {"not a GGUF file"});
    expect_fails(write("model.safetensors", "hello there"), {"give the folder"});
    if (::geteuid() != 0) {
        const std::string secret = write("secret.gguf", small_file().bytes());
        std::filesystem::permissions(secret, std::filesystem::perms::none);
        expect_fails(secret, {"Permission denied"});
    }
}

}  // namespace
}  // namespace sparkinfer
