#include "cli/serve_sizes.h"

#include <gtest/gtest.h>

#include "cli/served_model.h"

namespace sparkinfer {
namespace {

constexpr int64_t kGib = int64_t(1) << 30;

ServeMachine machine() {
    ServeMachine m;
    m.memory = m.host_memory = 16 * kGib;
    m.weights = kGib;
    m.bytes_per_token = 46080;
    m.trained_context = 8192;
    return m;
}

// Risk: a server is given less context than it says, or more memory than there is.
TEST(ServeSizes, TheFilesContextForEverySlotWhereItFits) {
    const auto sizes = serve_sizes({}, machine());
    ASSERT_TRUE(sizes.ok()) << sizes.error().message;
    EXPECT_EQ(sizes.value().context, 8192);
    EXPECT_EQ(sizes.value().slots, 8);
    EXPECT_EQ(sizes.value().kv_tokens, 8 * (8192 + 2 * kPageTokens));
    EXPECT_TRUE(sizes.value().prefix_cache);
    // Less memory: fewer tokens in all, never fewer than one request may have.
    for (int64_t gib = 2; gib < 16; ++gib) {
        ServeMachine less = machine();
        less.memory = gib * kGib;
        const auto fewer = serve_sizes({}, less);
        ASSERT_TRUE(fewer.ok());
        EXPECT_GE(fewer.value().kv_tokens, 8192 + 2 * kPageTokens);
        EXPECT_LE(fewer.value().kv_tokens * less.bytes_per_token, less.memory - less.weights);
    }
}

// Risk: what does not fit is begun, or refused without saying what would fit.
TEST(ServeSizes, WhatDoesNotFitIsRefusedWithNumbers) {
    ServeMachine large = machine();
    large.trained_context = 262144;
    large.bytes_per_token = 100'000;
    const auto refused = serve_sizes({}, large);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::resources);
    const std::string& message = refused.error().message;
    const size_t at = message.find("--ctx ");
    ASSERT_NE(at, std::string::npos) << message;
    ServeOptions fitting;
    fitting.context = std::stoll(message.substr(at + 6));
    EXPECT_GT(*fitting.context, 100'000);
    EXPECT_TRUE(serve_sizes(fitting, large).ok());
    ServeOptions more = fitting;
    more.context = *fitting.context + 1000;
    EXPECT_FALSE(serve_sizes(more, large).ok());

    ServeOptions beyond;
    beyond.context = 8193;
    const auto usage = serve_sizes(beyond, machine());
    ASSERT_FALSE(usage.ok());
    EXPECT_EQ(usage.error().kind, ErrorKind::usage);

    ServeOptions kv;
    kv.kv_memory = kGib;
    EXPECT_EQ(serve_sizes(kv, machine()).value().kv_tokens, kGib / 46080);
    kv.kv_memory = kGib / 100;
    ASSERT_FALSE(serve_sizes(kv, machine()).ok());
    EXPECT_NE(serve_sizes(kv, machine()).error().message.find(", or --ctx "), std::string::npos);
    kv.kv_memory = 1;  // nothing fits: no context is advised
    EXPECT_EQ(serve_sizes(kv, machine()).error().message.find("or --ctx"), std::string::npos);
    kv.kv_memory = kGib / 100;
    kv.context = 64;
    EXPECT_TRUE(serve_sizes(kv, machine()).ok());
}

// Risk: a name with a slash, or with the number of a piece, in what clients ask for.
TEST(ServedModel, IdIsTheFilesName) {
    EXPECT_EQ(model_id("models/SmolLM2-135M-Instruct.Q4_1.gguf"), "SmolLM2-135M-Instruct.Q4_1");
    EXPECT_EQ(model_id("a/Qwen3.6-35B-A3B-Q4_K_M-00001-of-00002.gguf"), "Qwen3.6-35B-A3B-Q4_K_M");
    EXPECT_EQ(model_id("folder/Qwen3-0.6B/"), "Qwen3-0.6B");
    EXPECT_EQ(model_id("x-of-y.gguf"), "x-of-y");
}

}  // namespace
}  // namespace sparkinfer
