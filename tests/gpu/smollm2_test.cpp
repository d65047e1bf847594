// smollm2_test.cpp — a trained model over a real text, where the bounds can be tight: SmolLM2-135M in
// --models, the ids of tests/data/text.txt in --tokens. Risk: a loss that random weights hide or that op
// cases allow, and that adds up over thirty layers.
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "../models/compare_logits.h"
#include "../models/whole_model.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "gpu_test.h"

namespace sparkinfer::test {
namespace {

constexpr int kPositions = 2304;

// A one-dimensional int32 array of numpy's format 1.0, as numpy.save writes it.
Tokens read_tokens(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    CHECK(bytes.starts_with("\x93NUMPY\x01") && bytes.find("'<i4'") < 128, "{}: no int32 .npy file", path);
    const size_t at = 10 + uint8_t(bytes[8]) + 256u * uint8_t(bytes[9]);
    Tokens ids;
    for (size_t i = at; i + 4 <= bytes.size(); i += 4) {
        int32_t id;
        memcpy(&id, &bytes[i], 4);
        ids.push_back(TokenId(id));
    }
    return ids;
}

std::string model_path() {
    if (gpu_test_options().models.empty()) return "";
    for (const auto& entry : std::filesystem::directory_iterator(gpu_test_options().models))
        if (entry.path().filename().string().starts_with("SmolLM2") && entry.path().extension() == ".gguf")
            return entry.path().string();
    return "";
}

TEST(SmolLM2, LosesNothing) {
    const std::string path = model_path();
    if (path.empty() || gpu_test_options().tokens.empty())
        GTEST_SKIP() << "no SmolLM2*.gguf in --models, or no --tokens";
    Tokens ids = read_tokens(gpu_test_options().tokens);
    ASSERT_GE(int(ids.size()), kPositions);
    ids.resize(kPositions);
    LogitRows want;
    const auto cpu = make_cpu_backend({}).value();
    score_prompt(path, *cpu, ids, 512, [&](int i, auto row) { keep_row(want, i, row); });
    ASSERT_EQ(int(want.size()), kPositions);
    for (const DType kv : {DType::f32, DType::bf16}) {
        auto gpu = make_cuda_backend({.kv_type = kv});
        ASSERT_TRUE(gpu.ok()) << gpu.error().message;
        const double most = kv == DType::f32 ? 1e-5 : 3e-4;
        const std::string name = std::string(", KV ") + dtype_name(kv);
        for (const int rows : {0, 1, 8}) {
            Comparison comparison(0.25);
            const OnLogits add = [&](int i, auto row) { comparison.add(i, want[size_t(i)], row); };
            if (rows)
                score_decoding(path, **gpu, ids, rows, add);
            else
                score_prompt(path, **gpu, ids, 512, add);
            EXPECT_GE(comparison.rows(), kPositions - 1);
            comparison.expect((rows ? fmt::format("decoding {} rows a step", rows) : "prompt") + name, most);
        }
    }
}

}  // namespace
}  // namespace sparkinfer::test
