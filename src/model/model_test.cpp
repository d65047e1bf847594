// model_test.cpp — models made from small files, right ones and wrong ones, and rotary tables against their
// formulas. Risk: a wrong or unsupported file is run all the same, or refused in words that do not help.
#include "model/model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>

#include "load/gguf_test_builder.h"
#include "model/config.h"

namespace sparkinfer {
namespace {

namespace fs = std::filesystem;

struct Folder {
    const std::string path = fmt::format("{}model_test_{}", ::testing::TempDir(), ::getpid());
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
    Folder(const Folder&) = delete;
};

// A llama of one layer: D 8, 2 heads of 4 over 1, F 16, V 10, context 64. Extents as GGUF has them, the
// fastest first.
struct TinyLlama {
    std::string architecture = "llama";
    std::map<std::string, std::vector<uint64_t>> tensors = {
        {"token_embd.weight", {8, 10}},       {"output_norm.weight", {8}},
        {"blk.0.attn_norm.weight", {8}},      {"blk.0.attn_q.weight", {8, 8}},
        {"blk.0.attn_k.weight", {8, 4}},      {"blk.0.attn_v.weight", {8, 4}},
        {"blk.0.attn_output.weight", {8, 8}}, {"blk.0.ffn_norm.weight", {8}},
        {"blk.0.ffn_gate.weight", {8, 16}},   {"blk.0.ffn_up.weight", {8, 16}},
        {"blk.0.ffn_down.weight", {16, 8}},
    };
    std::map<std::string, uint32_t> numbers = {
        {"block_count", 1},          {"context_length", 64},         {"embedding_length", 8},
        {"attention.head_count", 2}, {"attention.head_count_kv", 1}, {"feed_forward_length", 16},
    };

    std::string bytes() const {
        constexpr uint32_t kU32 = 4, kF32 = 6;
        GgufBuilder b;
        b.text("general.architecture", architecture);
        for (const auto& [key, value] : numbers) b.number(architecture + "." + key, kU32, value);
        b.number(architecture + ".attention.layer_norm_rms_epsilon", kF32, 1e-5f);
        for (const auto& [name, extents] : tensors) {
            uint64_t elements = 1;
            for (const uint64_t extent : extents) elements *= extent;
            b.tensor(name, extents, 0, std::string(elements * 4, '\0'));
        }
        return b.bytes();
    }
};

std::string trouble_of_path(const std::string& path) {
    auto checkpoint = open_checkpoint(path);
    if (!checkpoint.ok()) return "the checkpoint: " + checkpoint.error().message;
    const auto model = load_model(**checkpoint);
    if (model.ok()) return "none";
    EXPECT_EQ(model.error().kind, ErrorKind::bad_input);
    return model.error().message;
}
std::string trouble(const TinyLlama& tiny) {
    const Folder folder;
    write_file(folder.path + "/tiny.gguf", tiny.bytes());
    return trouble_of_path(folder.path + "/tiny.gguf");
}
// A folder with this config.json and a table of embeddings [10, 8] alone.
std::string trouble_of_config(const std::string& config) {
    const Folder folder;
    write_file(folder.path + "/config.json", config);
    const std::string header =
        R"({"model.embed_tokens.weight": {"dtype": "F32", "shape": [10, 8], "data_offsets": [0, 320]}})";
    write_file(folder.path + "/model.safetensors",
               ByteBuilder().put_text(header).put_raw(std::string(320, '\0')).bytes());
    return trouble_of_path(folder.path);
}

void expect_words(const std::string& sentence, const std::vector<std::string>& words) {
    for (const std::string& word : words)
        EXPECT_NE(sentence.find(word), std::string::npos) << sentence << "\nlacks: " << word;
}

TEST(Model, LoadsAWholeFile) {
    const Folder folder;
    write_file(folder.path + "/tiny.gguf", TinyLlama{}.bytes());
    auto checkpoint = open_checkpoint(folder.path + "/tiny.gguf");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    const auto model = load_model(**checkpoint);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const ModelShape& shape = model.value()->shape();
    EXPECT_EQ(shape.dim, 8);
    EXPECT_EQ(shape.vocab, 10);
    EXPECT_EQ(shape.layers, 1);
    ASSERT_EQ(shape.kv.size(), 1u);
    EXPECT_EQ(shape.kv[0].heads, 1);
    EXPECT_EQ(shape.kv[0].width, 4);
    EXPECT_TRUE(model.value()->unused().empty());
}

TEST(Model, UnknownArchitectureListsTheKnown) {
    TinyLlama tiny;
    tiny.architecture = "mamba";
    expect_words(trouble(tiny), {"tiny.gguf", "'mamba'", "llama, qwen3, qwen3moe, qwen35, qwen35moe"});
    expect_words(trouble_of_config(R"({"model_type": "gpt2"})"), {"'gpt2'", "qwen3_moe", "qwen3_5_moe_text"});
}

TEST(Model, MissingTensorsAreNamed) {
    TinyLlama tiny;
    tiny.tensors.erase("blk.0.ffn_up.weight");
    expect_words(trouble(tiny), {"tiny.gguf", "1 tensor is missing", "blk.0.ffn_up"});
    tiny.tensors.erase("blk.0.attn_norm.weight");
    expect_words(trouble(tiny), {"2 tensors are missing", "blk.0.attn_norm", "blk.0.ffn_up"});
}

TEST(Model, MisshapenTensorIsNamedWithBothShapes) {
    TinyLlama tiny;
    tiny.tensors["blk.0.attn_k.weight"] = {8, 6};
    expect_words(trouble(tiny), {"blk.0.attn_k", "[6, 8]", "expected [4, 8]"});
    tiny = {};
    tiny.tensors["blk.0.ffn_norm.weight"] = {7};
    expect_words(trouble(tiny), {"blk.0.ffn_norm.weight", "7", "8"});
}

TEST(Model, UnexpectedTensorIsRefused) {
    TinyLlama tiny;
    tiny.tensors["blk.0.attn_q.bias"] = {8};
    expect_words(trouble(tiny), {"1 tensor is not part of architecture 'llama'", "blk.0.attn_q.bias"});
    tiny = {};
    tiny.tensors["blk.1.attn_norm.weight"] = {8};
    expect_words(trouble(tiny), {"not part of", "blk.1.attn_norm.weight"});
}

TEST(Model, CountsThatCannotBeAreRefusedBeforeTheyAreUsed) {
    TinyLlama tiny;
    tiny.numbers["block_count"] = 1 << 24;  // gigabytes, if a layer were made of each
    expect_words(trouble(tiny), {"tiny.gguf", "claims 16777216 layers", "11 tensors"});
    tiny = {};
    tiny.numbers["attention.head_count"] = 1 << 24;
    tiny.numbers["attention.key_length"] = tiny.numbers["attention.value_length"] = 1024;
    expect_words(trouble(tiny), {"16777216 heads of width 1024", "at most 16777216"});
    tiny = {};
    tiny.architecture = "qwen35";  // fewer layers than none
    tiny.numbers["block_count"] = 0;
    tiny.numbers["nextn_predict_layers"] = 1;
    expect_words(trouble(tiny), {"qwen35.block_count", "is 0"});
    expect_words(trouble_of_config(
                     R"({"model_type": "qwen3_5_text", "num_hidden_layers": 1, "max_position_embeddings": 64,
                "hidden_size": 8, "vocab_size": 10, "num_attention_heads": 2, "head_dim": 4,
                "intermediate_size": 16, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 256, "linear_value_head_dim": 256, "linear_num_key_heads": 16777216,
                "linear_num_value_heads": 16777216})"),
                 {"16777216 value heads", "state width 256"});
}

// A window that is asked for is refused; one that is merely stated is not.
TEST(Model, SlidingWindowsAreRefused) {
    const auto with = [](const std::string& more) {
        return trouble_of_config(
            R"({"model_type": "qwen3", "num_hidden_layers": 1, "max_position_embeddings": 64, "hidden_size": 8,
                "vocab_size": 10, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
                "intermediate_size": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": true)" +
            more + "}");
    };
    expect_words(with(R"(, "use_sliding_window": true, "sliding_window": 32)"),
                 {"model_test_", "use_sliding_window is true", "not supported"});
    expect_words(with(R"(, "use_sliding_window": false, "layer_types": ["sliding_attention"])"),
                 {"layer_types has 'sliding_attention'", "full_attention"});
    for (const char* harmless : {R"(, "use_sliding_window": false, "sliding_window": 32)",
                                 R"(, "sliding_window": null)", R"(, "layer_types": ["full_attention"])"})
        expect_words(with(harmless), {"tensors are missing"});  // as far as the tensors, then
    TinyLlama tiny;
    tiny.numbers["attention.sliding_window"] = 32;
    expect_words(trouble(tiny), {"attention.sliding_window is 32", "context of 64"});
    tiny.numbers["attention.sliding_window"] = 64;  // sees all there is
    EXPECT_EQ(trouble(tiny), "none");
}

constexpr double kTheta = 10000;
constexpr int kDims = 64;

RopeConfig rope_config(const char* scaling, double factor, double original) {
    RopeConfig r;
    r.theta = kTheta;
    r.dims = kDims;
    r.scaling = scaling;
    r.factor = factor;
    r.original_context = original;
    return r;
}
// Radians a position of pair i without scaling.
double plain(int i) { return std::exp(-std::log(kTheta) * 2 * i / kDims); }
// Turns of pair i over `tokens` positions.
double turns(int i, double tokens) { return plain(i) * tokens / (2 * std::numbers::pi); }

template <class F>
void expect_table(const RopeConfig& r, double magnitude, F frequency) {
    const auto table = rope_table(r, {});
    ASSERT_TRUE(table.ok()) << table.error().message;
    ASSERT_EQ(table.value().frequency.size(), size_t(kDims / 2));
    EXPECT_NEAR(table.value().magnitude, magnitude, 1e-6);
    for (int i = 0; i < kDims / 2; i++)
        EXPECT_NEAR(table.value().frequency[size_t(i)] / frequency(i), 1, 1e-6) << "pair " << i;
}

TEST(Rope, PlainAndLinear) {
    expect_table(rope_config("", 1, 0), 1, plain);
    expect_table(rope_config("linear", 4, 2048), 1, [](int i) { return plain(i) / 4; });
}

// Pairs that turn 32 times and more over the original context stay, those that turn once at most are slowed
// by the factor, between them lies a ramp in whole pairs.
TEST(Rope, Yarn) {
    const double original = 4096, factor = 8;
    int low = 0, high = 0;  // the last pair above 32 turns, the first below 1
    while (turns(low + 1, original) > 32) ++low;
    while (turns(high, original) > 1) ++high;
    ASSERT_GT(low, 0);
    ASSERT_GT(high, low + 2);
    ASSERT_LT(high, kDims / 2);
    expect_table(rope_config("yarn", factor, original), 1 + std::log(factor) / 10, [=](int i) {
        const double slowed = i <= low ? 0 : i >= high ? 1 : double(i - low) / (high - low);
        return plain(i) * (1 - slowed + slowed / factor);
    });
    RopeConfig given = rope_config("yarn", factor, original);
    given.attention_factor = 1.5;
    EXPECT_FLOAT_EQ(rope_table(given, {}).value().magnitude, 1.5f);
}

// Llama 3: pairs that turn more than 4 times stay, those below 1 are slowed, in between linear in the turns.
TEST(Rope, Llama3) {
    const double original = 2048, factor = 8;
    int between = 0;
    expect_table(rope_config("llama3", factor, original), 1, [&](int i) {
        const double n = turns(i, original);
        if (n > 1 && n < 4) ++between;
        const double kept = n >= 4 ? 1 : n <= 1 ? 0 : (n - 1) / (4 - 1);
        return plain(i) * (kept + (1 - kept) / factor);
    });
    EXPECT_GT(between, 1);
}

TEST(Rope, FactorsOfTheFileDivide) {
    std::vector<float> factors(kDims / 2);
    for (size_t i = 0; i < factors.size(); i++) factors[i] = 1 + float(i) / 4;
    const auto table = rope_table(rope_config("", 1, 0), factors);
    ASSERT_TRUE(table.ok());
    for (int i = 0; i < kDims / 2; i++)
        EXPECT_NEAR(table.value().frequency[size_t(i)] * (1 + i / 4.0) / plain(i), 1, 1e-6);
    factors.pop_back();
    EXPECT_FALSE(rope_table(rope_config("", 1, 0), factors).ok());
    EXPECT_FALSE(rope_table(rope_config("linear", 0, 2048), {}).ok());
    EXPECT_FALSE(rope_table(rope_config("yarn", 8, 0), {}).ok());
}

}  // namespace
}  // namespace sparkinfer
