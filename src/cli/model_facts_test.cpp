#include "cli/model_facts.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sparkinfer {
namespace {

ModelFacts facts_of(int32_t context, int64_t file_bytes) {
    ModelFacts facts;
    facts.metadata = Metadata("m.gguf");
    facts.shape.context = context;
    facts.file_bytes = file_bytes;
    return facts;
}

// Risk: memory for a context nobody uses, an answer cut short, or a prompt that leaves no room.
TEST(Context, IsWhatPromptAndAnswerNeed) {
    const ModelFacts facts = facts_of(1000, 0);
    const auto context = [&](ContextNeed need) {
        const auto chosen = choose_context(facts, need);
        return chosen.ok() ? chosen.value() : -int32_t(chosen.error().kind);
    };
    EXPECT_EQ(context({.prompt = 10, .answer = 5}), 15);
    EXPECT_EQ(context({.prompt = 10, .answer = 5000}), 1000);
    EXPECT_EQ(context({.prompt = 10}), 1000);
    EXPECT_EQ(context({.prompt = 10, .answer = 5, .asked = 12}), 12);
    EXPECT_EQ(context({.prompt = 999, .answer = 5}), 1000);
    EXPECT_EQ(context({.prompt = 1000, .answer = 5}), -3);
    EXPECT_EQ(context({.prompt = 12, .answer = 5, .asked = 12}), -3);
    EXPECT_EQ(context({.prompt = 12, .asked = 1001}), -2);
}

// Risk: a model with a huge context cannot be run on a small machine at all.
TEST(Context, WithoutALimitIsWhatFitsIntoMemory) {
    const ModelFacts facts = facts_of(262144, int64_t(1) << 30);
    ContextNeed need{.prompt = 10, .memory = int64_t(4) << 30, .bytes_per_token = 1 << 18};
    EXPECT_EQ(choose_context(facts, need).value(),
              int32_t(((int64_t(5) << 29) >> 18) / 64 * 64));  // 4 − 1 − 0.5 GiB
    need.memory = int64_t(1) << 30;  // too little: the prompt and a short answer are tried all the same
    EXPECT_EQ(choose_context(facts, need).value(), 74);
    need.memory = INT64_MAX;
    EXPECT_EQ(choose_context(facts, need).value(), 262144);
}

// Risk: the file's own sampling is ignored, or wins over the command line.
TEST(Sampling, CommandLineThenFileThenDefault) {
    Metadata m("m.gguf");
    m.insert("general.sampling.temp", 0.6);
    m.insert("general.sampling.top_k", uint64_t(20));
    m.insert("general.sampling.penalty_repeat", 1.25);
    SamplingOptions o;
    o.top_k = 7;
    o.seed = 5;
    o.presence_penalty = -1;
    o.logit_bias = {{3, 1.5f}};
    const SamplingParams p = resolve_sampling(o, m).value();
    EXPECT_EQ(p.temperature, 0.6f);
    EXPECT_EQ(p.top_k, 7);
    EXPECT_EQ(p.top_p, 0.95f);
    EXPECT_EQ(p.min_p, 0.05f);
    EXPECT_EQ(p.repeat_penalty, 1.25f);
    EXPECT_EQ(p.repeat_last_n, 64);
    EXPECT_EQ(p.presence_penalty, -1);
    EXPECT_EQ(p.seed, 5u);
    EXPECT_EQ(p.logit_bias, (std::vector<std::pair<TokenId, float>>{{TokenId(3), 1.5f}}));
    const SamplingParams d = resolve_sampling({}, Metadata("m")).value();
    EXPECT_EQ(d.temperature, 0.8f);
    EXPECT_EQ(d.top_k, 40);
}

// Risk: nonsense in a file reaches the sampler, or is blamed on the user.
TEST(Sampling, RefusesNonsenseInTheFile) {
    for (const auto& [key, value] :
         std::vector<std::pair<const char*, double>>{{"general.sampling.temp", -1},
                                                     {"general.sampling.temp", std::nan("")},
                                                     {"general.sampling.top_p", 2},
                                                     {"general.sampling.min_p", -0.5}}) {
        Metadata m("m.gguf");
        m.insert(key, value);
        const auto resolved = resolve_sampling({}, m);
        ASSERT_FALSE(resolved.ok()) << key;
        EXPECT_EQ(resolved.error().kind, ErrorKind::bad_input);
        EXPECT_NE(resolved.error().message.find(key), std::string::npos);
    }
}

TEST(Census, CountsByTypeLargestFirst) {
    std::vector<StoredTensor> tensors(3);
    tensors[0].type = tensors[2].type = "F32";
    tensors[0].shape = {4};
    tensors[0].bytes = 16;
    tensors[1].type = "Q8_0";
    tensors[1].shape = {2, 32};
    tensors[1].bytes = 68;
    tensors[2].bytes = 4;
    const auto census = quant_census(tensors);
    ASSERT_EQ(census.size(), 2u);
    EXPECT_EQ(census[0].type, "Q8_0");
    EXPECT_EQ(census[1].tensors, 2);
    EXPECT_EQ(census[1].elements, 5);
    EXPECT_EQ(census[1].bytes, 20);
}

}  // namespace
}  // namespace sparkinfer
