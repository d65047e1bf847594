// safetensors_test.cpp — model folders, right and wrong. Risk: a crafted header makes us read outside the
// file; a quantised layout is read with the wrong nibble order, scale axis or factor; an incomplete model
// goes unnoticed.
#include "load/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/half.h"
#include "load/gguf_test_builder.h"
#include "quant/decode.h"

namespace sparkinfer {
namespace {

// A file of `header` (JSON) and data.
std::string safetensors(const std::string& header, const std::string& data) {
    return ByteBuilder().put_text(header).put_raw(data).bytes();
}

// Tensors one after the other, with a proper header.
class SafetensorsBuilder {
  public:
    SafetensorsBuilder& add(const std::string& name, const std::string& dtype, const std::string& shape,
                            const std::string& bytes) {
        header_ += fmt::format("{}\"{}\": {{\"dtype\": \"{}\", \"shape\": {}, \"data_offsets\": [{}, {}]}}",
                               header_.empty() ? "" : ", ", name, dtype, shape, data_.size(),
                               data_.size() + bytes.size());
        data_ += bytes;
        return *this;
    }
    std::string bytes() const { return safetensors("{" + header_ + "}", data_); }

  private:
    std::string header_, data_;
};

std::string floats_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

Result<std::vector<StoredTensor>> parse(const std::string& file) {
    static std::vector<std::byte> bytes;
    bytes.assign(reinterpret_cast<const std::byte*>(file.data()),
                 reinterpret_cast<const std::byte*>(file.data() + file.size()));
    bytes.shrink_to_fit();
    return parse_safetensors(bytes, "m.safetensors");
}

void expect_words(const Error& error, const std::vector<std::string>& words) {
    EXPECT_EQ(error.kind, ErrorKind::bad_input);
    for (const std::string& word : words)
        EXPECT_NE(error.message.find(word), std::string::npos) << error.message << "\nlacks: " << word;
}

void expect_refused(const std::string& file, const std::vector<std::string>& words) {
    const auto r = parse(file);
    ASSERT_FALSE(r.ok()) << "expected a refusal with '" << words[0] << "'";
    EXPECT_NE(r.error().message.find("m.safetensors"), std::string::npos) << r.error().message;
    expect_words(r.error(), words);
}

std::string entry(const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
    return "{\"dtype\": \"" + dtype + "\", \"shape\": " + shape + ", \"data_offsets\": " + offsets + "}";
}

TEST(Safetensors, ProperFile) {
    const auto r = parse(safetensors(R"({"__metadata__": {"format": "pt"}, "b": )" + entry("[2]", "[4, 12]") +
                                         ", \"a\": " + entry("[]", "[0, 4]") + "}   ",
                                     floats_of({1, 2, 3})));
    ASSERT_TRUE(r.ok()) << r.error().message;
    ASSERT_EQ(r.value().size(), 2u);
    EXPECT_EQ(r.value()[1].name, "b");
    EXPECT_EQ(r.value()[1].shape, (std::vector<int64_t>{2}));
    float first = 0;
    std::memcpy(&first, r.value()[1].data, 4);
    EXPECT_EQ(first, 2.0f);
}

TEST(SafetensorsBadInput, HeadersThatLie) {
    expect_refused("", {"empty"});
    expect_refused("1234567", {"truncated", "header length"});
    expect_refused(ByteBuilder().put<uint64_t>(UINT64_MAX).put_raw("{}").bytes(),
                   {"18446744073709551615", "at most"});
    expect_refused(ByteBuilder().put<uint64_t>(100).put_raw("{}").bytes(), {"truncated", "header"});
    expect_refused(safetensors("{", ""), {"the header", "not JSON", "byte"});
    expect_refused(safetensors("[]", ""), {"an array, expected an object"});
    expect_refused(safetensors(std::string(10, '[') + std::string(10, ']'), ""), {"too deep"});
    expect_refused(safetensors("{\"a\": 3}", ""), {"'a'", "a number, expected an object"});
    expect_refused(safetensors("{\"a\": {}}", ""), {"'a'", "'dtype' is missing"});
    expect_refused(safetensors("{\"a\": {\"dtype\": \"F32\"}}", ""), {"'a'", "'shape' is missing"});
    const std::string four(4, 'x');
    expect_refused(
        safetensors("{\"a\": " + entry("[1]", "[0, 4]") + ", \"a\": " + entry("[1]", "[0, 4]") + "}", four),
        {"'a' occurs twice"});
    expect_refused(safetensors("{\"a\": " + entry("[1]", "[0, 4]", "F12") + "}", four),
                   {"'a'", "unknown dtype 'F12'"});
}

TEST(SafetensorsBadInput, ShapesAndOffsets) {
    const std::string data(8, 'x');
    const std::pair<const char*, const char*> shapes[] = {{"[0]", "0"},
                                                          {"[-1]", "-1"},
                                                          {"[1.5]", "1.5"},
                                                          {"[\"2\"]", "\"2\""},
                                                          {"[18446744073709551615]", "18446744073709551615"}};
    for (const auto& [shape, shown] : shapes)
        expect_refused(safetensors("{\"a\": " + entry(shape, "[0, 8]") + "}", data),
                       {"'a'", "'shape' holds", shown});
    expect_refused(safetensors("{\"a\": " + entry("3", "[0, 8]") + "}", data), {"'shape' is a number"});
    for (const char* offsets : {"[0]", "[0, 4, 8]", "[-4, 4]", "[8, 4]", "[0, 12]", "[0, \"8\"]",
                                "[0, 18446744073709551615]", "[9223372036854775807, 9223372036854775807]"})
        expect_refused(safetensors("{\"a\": " + entry("[2]", offsets) + "}", data),
                       {"'a'", "'data_offsets'"});
    expect_refused(safetensors("{\"a\": " + entry("[3]", "[0, 8]") + "}", data), {"8 bytes", "expected 12"});
    expect_refused(safetensors("{\"a\": " + entry("[4294967296, 4294967296]", "[0, 8]") + "}", data),
                   {"more bits than 64 bits"});
    expect_refused(
        safetensors("{\"a\": " + entry("[1]", "[0, 4]") + ", \"b\": " + entry("[1]", "[0, 4]") + "}", data),
        {"'b'", "overlaps"});
    expect_refused(safetensors("{\"a\": " + entry("[1]", "[4, 8]") + "}", data), {"gap before tensor 'a'"});
    expect_refused(safetensors("{\"a\": " + entry("[1]", "[0, 4]") + "}", data),
                   {"end at byte 4", "8 bytes"});
}

TEST(SafetensorsBadInput, TruncatedAnywhereAndRandomDamage) {
    const std::string file = SafetensorsBuilder()
                                 .add("model.a.weight", "BF16", "[2, 3]", std::string(12, 'a'))
                                 .add("model.b.weight", "F8_E4M3", "[5]", std::string(5, 'b'))
                                 .bytes();
    ASSERT_TRUE(parse(file).ok());
    for (size_t n = 0; n < file.size(); n++) ASSERT_FALSE(parse(file.substr(0, n)).ok()) << n;
    std::mt19937 random(11);
    int accepted = 0;
    for (int round = 0; round < 5000; round++) {
        std::string damaged = file;
        for (int i = 0; i <= round % 3; i++) damaged[random() % damaged.size()] = char(random());
        if (random() % 4 == 0) damaged.resize(random() % damaged.size());
        const auto r = parse(damaged);
        if (!r.ok()) continue;
        accepted++;
        for (const StoredTensor& t : r.value()) ASSERT_LE(t.file_offset + t.bytes, damaged.size());
    }
    EXPECT_GT(accepted, 0);
}

class Folder : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("sparkinfer_folder_" + std::to_string(::getpid()));
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
        write("config.json", "{}");
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    void write(const std::string& name, const std::string& bytes) {
        write_file((folder_ / name).string(), bytes);
    }
    Result<std::unique_ptr<Checkpoint>> open() { return open_checkpoint(folder_.string()); }
    void expect_fails(const std::vector<std::string>& words) {
        const auto r = open();
        ASSERT_FALSE(r.ok()) << "expected a refusal with '" << words[0] << "'";
        expect_words(r.error(), words);
    }
    // The error of weight(module) in a folder with just this file.
    void expect_weight_fails(const SafetensorsBuilder& file, const std::string& module,
                             const std::vector<std::string>& words) {
        write("model.safetensors", file.bytes());
        auto c = open();
        ASSERT_TRUE(c.ok()) << c.error().message;
        const auto w = (*c)->weight(module);
        ASSERT_FALSE(w.ok()) << "expected a refusal with '" << words[0] << "'";
        expect_words(w.error(), words);
    }
    std::filesystem::path folder_;
};

std::string one(const std::string& name, float value) {
    return SafetensorsBuilder().add(name, "F32", "[1]", floats_of({value})).bytes();
}

TEST_F(Folder, FoldersThatAreNoModels) {
    expect_fails({"no model folder", "no safetensors files"});
    std::filesystem::remove(folder_ / "config.json");
    write("pytorch_model.bin", "x");
    expect_fails({"no model folder", "config.json is missing"});
    write("config.json", "{\"a\": ");
    expect_fails({"config.json", "not JSON"});
    write("config.json", "[1]");
    expect_fails({"config.json", "an array, expected an object"});
    write("config.json", "{}");
    write("model.safetensors", "");
    expect_fails({"model.safetensors", "empty"});
    if (::geteuid() == 0) return;  // permissions do not bind root
    std::filesystem::permissions(folder_ / "model.safetensors", std::filesystem::perms::none);
    expect_fails({"model.safetensors", "Permission denied"});
}

TEST_F(Folder, ConfigIsFlattenedAndTextsAreWhole) {
    const std::string config =
        R"({"model_type": "m", "text_config": {"n": 3, "eps": 1e-6, "tied": false, "none": null,
        "kinds": ["a", "b"], "sizes": [1, 2], "mixed": [1, 2.5], "flags": [true], "odd": [1, "a"], "deep": [[1]],
        "rope": {"theta": 10000000, "type": "default"}}, "big": 18446744073709551615})";
    write("config.json", config);
    write("tokenizer_config.json", "{\"x\": 1}");
    write("chat_template.jinja", "{{ a }}");
    write("model.safetensors", one("a", 1));
    const auto opened = open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Metadata& m = opened.value()->metadata();
    EXPECT_EQ(m.require_string("config.model_type").value(), "m");
    EXPECT_EQ(m.require_int("config.text_config.n", 0, 9).value(), 3);
    EXPECT_EQ(m.require_number("config.text_config.eps").value(), 1e-6);
    EXPECT_FALSE(m.bool_or("config.text_config.tied", true).value());
    EXPECT_EQ(m.require_int("config.text_config.rope.theta", 0, INT64_MAX).value(), 10000000);
    EXPECT_EQ(*m.strings("config.text_config.kinds").value(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(*m.ints("config.text_config.sizes").value(), (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(*m.numbers("config.text_config.mixed").value(), (std::vector<double>{1, 2.5}));
    EXPECT_EQ(*m.bools("config.text_config.flags").value(), (std::vector<bool>{true}));
    for (const char* absent : {"none", "odd", "deep"})
        EXPECT_FALSE(m.contains(std::string("config.text_config.") + absent)) << absent;
    EXPECT_EQ(m.require_string("config.json").value(), config);
    EXPECT_EQ(m.require_string("tokenizer_config.json").value(), "{\"x\": 1}");
    EXPECT_EQ(m.require_string("chat_template.jinja").value(), "{{ a }}");
    EXPECT_FALSE(m.contains("tokenizer.json"));
    EXPECT_EQ(opened.value()->container(), Container::safetensors);
}

TEST_F(Folder, TheIndexIsTheAuthority) {
    write("model-00001-of-00002.safetensors", one("a", 1));
    write("model-00002-of-00002.safetensors", one("b", 2));
    write("stray.safetensors", one("a", 9));  // not in the index: not read
    const auto index = [&](const std::string& map) {
        write("model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": " + map + "}");
    };
    const std::string first = "\"model-00001-of-00002.safetensors\"",
                      second = "\"model-00002-of-00002.safetensors\"";
    index("{\"a\": " + first + ", \"b\": " + second + "}");
    auto opened = open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->floats("a", 1).value()[0], 1.0f);
    EXPECT_EQ((*opened)->unused(), (std::vector<std::string>{"b"}));
    EXPECT_EQ((*opened)->files().size(), 2u);
    index("{\"a\": " + first + "}");
    opened = open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->tensors().size(), 1u);
    index("{\"a\": " + first + ", \"b\": " + second + ", \"c\": " + second + "}");
    expect_fails({"tensor 'c' is missing", "model-00002-of-00002.safetensors"});
    index("{\"a\": " + second + ", \"b\": " + first + "}");
    expect_fails({"tensor", "but the index says"});
    index("{\"a\": \"gone.safetensors\"}");
    expect_fails({"'gone.safetensors' is missing", "'a'"});
    index("{\"a\": \"../" + folder_.filename().string() + "/stray.safetensors\"}");
    expect_fails({"'a'", "the name of a file in this folder"});
    index("{\"a\": 3}");
    expect_fails({"'a' is in 3"});
    index("{\"a\": " + first + ", \"a\": " + second + "}");
    expect_fails({"'a' occurs twice"});
    index("[]");
    expect_fails({"'weight_map' is an array"});
    index("{}");
    expect_fails({"'weight_map' is empty"});
    write("model.safetensors.index.json", "{}");
    expect_fails({"'weight_map' is missing"});
}

TEST_F(Folder, WithoutAnIndexEveryFileIsRead) {
    write("model.safetensors", one("a", 1));
    write("model_mtp.safetensors", one("mtp.b", 2));
    auto opened = open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->tensors().size(), 2u);
    write("other.safetensors", one("a", 3));
    expect_fails({"'a' occurs in", "model.safetensors", "other.safetensors"});
}

// Rows of a module against the golden values, relative to the largest.
void expect_decodes(Checkpoint& c, const std::string& module, Quant quant,
                    const std::vector<float>& expected) {
    const Result<Weight> r = c.weight(module);
    ASSERT_TRUE(r.ok()) << r.error().message;
    const Weight w = r.value();
    EXPECT_EQ(w.quant, quant) << module;
    ASSERT_EQ(int64_t(w.experts) * w.out * w.in, int64_t(expected.size())) << module;
    std::vector<float> row(size_t(w.in));
    for (int e = 0; e < w.experts; e++)
        for (int r = 0; r < w.out; r++) {
            decode_row(w, e, r, row.data());
            for (int i = 0; i < w.in; i++) {
                const float want = expected[(size_t(e) * w.out + r) * w.in + i];
                ASSERT_NEAR(row[i], want, std::fabs(want) * 3e-7)
                    << module << " expert " << e << " row " << r << " " << i;
            }
        }
}

// Golden fixtures: tools/goldens_quant.py made codes, scales and float64 values.
TEST(SafetensorsGolden, EveryQuantisedLayout) {
    const std::string folder = std::string(SPARKINFER_SOURCE_DIR) + "/tests/data/quant/split";
    auto opened = open_checkpoint(folder);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    std::ifstream values(folder + "/expected.f32", std::ios::binary);
    const struct {
        const char* module;
        Quant quant;
        size_t elements;
    } modules[] = {
        {"block", Quant::fp8_block, 130 * 144},         {"channel", Quant::fp8_channel, 130 * 144},
        {"ct_experts", Quant::nvfp4_split, 3 * 8 * 32}, {"ct_linear", Quant::nvfp4_split, 24 * 64},
        {"ctblock", Quant::fp8_block, 130 * 144},       {"mo_experts", Quant::nvfp4_split, 3 * 8 * 32},
        {"mo_linear", Quant::nvfp4_split, 24 * 64},     {"tensor", Quant::fp8_tensor, 130 * 144}};
    for (const auto& m : modules) {
        std::vector<float> expected(m.elements);
        values.read(reinterpret_cast<char*>(expected.data()), std::streamsize(m.elements * 4));
        ASSERT_TRUE(values.good());
        expect_decodes(**opened, m.module, m.quant, expected);
    }
    EXPECT_EQ(values.peek(), EOF);
    EXPECT_TRUE((*opened)->unused().empty());
    // The same matrix in both NVFP4 forms, bit for bit.
    for (const char* name : {"linear", "experts"}) {
        const Weight ct = (*opened)->weight(std::string("ct_") + name).value();
        const Weight mo = (*opened)->weight(std::string("mo_") + name).value();
        for (int e = 0; e < ct.experts; e++)
            for (int r = 0; r < ct.out; r++)
                for (int i = 0; i < ct.in; i++)
                    ASSERT_EQ(decode_element(ct, e, r, i), decode_element(mo, e, r, i));
    }
}

TEST_F(Folder, MissingOrphanedAndMisshapenScales) {
    const std::string codes(32, '\x11'), scales(4, '\x38'), one_float = floats_of({1});
    const auto packed = [&] { return SafetensorsBuilder().add("x.weight_packed", "U8", "[2, 16]", codes); };
    expect_weight_fails(packed(), "x", {"'x.weight_scale' is missing", "x.weight_packed"});
    expect_weight_fails(packed().add("x.weight_scale", "F8_E4M3", "[2, 2]", scales), "x",
                        {"'x.weight_global_scale' is missing"});
    expect_weight_fails(packed().add("x.weight_scale", "F8_E4M3", "[4]", scales), "x",
                        {"shape [4]", "[2, 2]"});
    expect_weight_fails(packed().add("x.weight_scale", "U8", "[2, 2]", scales), "x", {"dtype U8", "F8_E4M3"});
    for (const float bad : {0.0f, -1.0f, INFINITY, NAN})
        expect_weight_fails(packed()
                                .add("x.weight_scale", "F8_E4M3", "[2, 2]", scales)
                                .add("x.weight_global_scale", "F32", "[1]", floats_of({bad})),
                            "x", {"'x.weight_global_scale' holds", "positive finite"});
    expect_weight_fails(packed()
                            .add("x.weight_scale", "F8_E4M3", "[2, 2]", scales)
                            .add("x.weight_global_scale", "F32", "[2]", floats_of({1, 1})),
                        "x", {"2 elements, expected 1"});
    const auto bytes = [&] { return SafetensorsBuilder().add("x.weight", "U8", "[2, 16]", codes); };
    expect_weight_fails(bytes().add("x.weight_scale", "F8_E4M3", "[2, 2]", scales), "x",
                        {"'x.weight_scale_2' is missing"});
    const auto fp8 = [&] { return SafetensorsBuilder().add("x.weight", "F8_E4M3", "[2, 16]", codes); };
    expect_weight_fails(fp8(), "x", {"'x.weight_scale' is missing"});
    expect_weight_fails(fp8().add("x.weight_scale", "F32", "[3]", floats_of({1, 1, 1})), "x",
                        {"shape [3]", "[2, 1]"});
    expect_weight_fails(fp8().add("x.weight_scale_inv", "F32", "[2, 1]", floats_of({1, 1})), "x",
                        {"shape [2, 1]", "[1, 1]", "128"});
    expect_weight_fails(fp8().add("x.weight_scale", "I32", "[1]", one_float), "x", {"type I32"});
    expect_weight_fails(fp8()
                            .add("x.weight_scale", "F32", "[1]", one_float)
                            .add("x.weight_scale_inv", "F32", "[1, 1]", one_float),
                        "x", {"both"});
    const auto plain = [&] { return SafetensorsBuilder().add("x.weight", "BF16", "[2, 8]", codes); };
    expect_weight_fails(plain().add("x.weight_scale", "F32", "[1]", one_float), "x",
                        {"'x.weight_scale' is an orphan"});
    expect_weight_fails(SafetensorsBuilder().add("x.weight", "I8", "[2, 16]", codes), "x", {"dtype I8"});
    expect_weight_fails(plain(), "y", {"'y.weight' is missing"});
    expect_weight_fails(SafetensorsBuilder().add("x.weight", "BF16", "[1, 1, 1, 16]", codes), "x",
                        {"[1, 1, 1, 16]"});
    expect_weight_fails(plain().add("x.weight_packed", "U8", "[2, 16]", codes), "x", {"both"});
    for (const char* orphan :
         {"x.weight_scale", "x.weight_scale_2", "x.weight_scale_inv", "x.weight_global_scale"}) {
        write("model.safetensors", one(orphan, 1));
        expect_fails({orphan, "is an orphan"});
    }
}

TEST_F(Folder, FusedAndSeparateExperts) {
    SafetensorsBuilder b;
    b.add("l.experts.gate_up_proj", "BF16", "[2, 2, 2]", std::string(16, '\x3f'));
    // Experts 0 and 1 of "near" follow each other in the file, those of "far" do not.
    b.add("l.experts.0.near.weight", "F32", "[1, 2]", floats_of({1, 2}));
    b.add("l.experts.1.near.weight", "F32", "[1, 2]", floats_of({3, 4}));
    const std::string pad(6, '\0');
    for (const std::string e : {"0", "1"}) {
        const bool second = e == "1";
        b.add("l.experts." + e + ".far.weight", "U8", "[2, 8]", std::string(16, second ? '\x22' : '\x44'));
        b.add("l.experts." + e + ".far.weight_scale", "F8_E4M3", "[2, 1]",
              std::string(2, second ? '\x40' : '\x38'));
        b.add("l.experts." + e + ".far.weight_scale_2", "F32", "[]", floats_of({second ? 10.0f : 0.5f}));
        b.add("l.experts." + e + ".pad", "U8", "[6]", pad);
    }
    b.add("l.experts.2.near.weight", "F32", "[2, 1]", floats_of({1, 2}));
    write("model.safetensors", b.bytes());
    auto opened = open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    Checkpoint& c = **opened;

    EXPECT_TRUE(c.has_weight("l.experts.gate_up_proj"));
    const Weight fused = c.weight("l.experts.gate_up_proj").value();
    EXPECT_EQ(fused.experts, 2);
    EXPECT_EQ(fused.quant, Quant::bf16);
    EXPECT_EQ(decode_element(fused, 1, 1, 1), bf16_to_f32(0x3f3f));

    const Weight near = c.stacked({"l.experts.0.near", "l.experts.1.near"}).value();
    EXPECT_EQ(near.data, c.find("l.experts.0.near.weight")->data) << "adjacent experts are not copied";
    EXPECT_EQ(decode_element(near, 1, 0, 1), 4.0f);

    const Weight far = c.stacked({"l.experts.0.far", "l.experts.1.far"}).value();
    EXPECT_EQ(far.experts, 2);
    EXPECT_EQ(far.scale_count, 2);
    EXPECT_EQ(decode_element(far, 0, 1, 15), 2.0f * 1.0f * 0.5f);
    EXPECT_EQ(decode_element(far, 1, 0, 0), 1.0f * 2.0f * 10.0f);
    expect_words(c.stacked({"l.experts.0.near", "l.experts.2.near"}).error(),
                 {"'l.experts.2.near'", "2 by 1", "expected 1 by 2"});
    expect_words(c.stacked({"l.experts.0.near", "l.experts.3.near"}).error(),
                 {"'l.experts.3.near.weight' is missing"});
}

}  // namespace
}  // namespace sparkinfer
