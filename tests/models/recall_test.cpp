// recall_test.cpp — a model that must find what lies behind an earlier place of a token, one step of decoding
// after the other.   (recall_model.h)
// Risk: keys lost, doubled or taken from another page in long contexts; positions that lose their precision;
// softmax over 100,000 keys; a cursor, a page table or a split count that goes wrong as a sequence grows.
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "backends.h"
#include "recall_model.h"
#include "whole_model.h"

namespace sparkinfer::test {
namespace {

// The model in a file of this process alone: test binaries run side by side, and a file that is written again
// while another process has it mapped ends that process with a bus error.
struct RecallFile {
    const std::string path;
    RecallFile()
        : path(
              (std::filesystem::path(testing::TempDir()) / ("recall-" + std::to_string(::getpid()) + ".gguf"))
                  .string()) {
        write_recall_model(path);
    }
    RecallFile(const RecallFile&) = delete;
    RecallFile& operator=(const RecallFile&) = delete;
    ~RecallFile() {
        std::error_code gone;
        std::filesystem::remove(path, gone);
    }
};

TEST(Recall, FollowsTheChain) {
    const RecallFile file;
    for (const NamedBackend& b : whole_model_backends())
        for (const int length : recall_lengths()) {
            constexpr int kLinks = 48;
            const RecallPrompt prompt = recall_prompt(length, kLinks, unsigned(length));
            Request request;
            request.prompt = prompt.tokens;
            request.max_tokens = kLinks;
            request.sampling.temperature = 0;
            EngineOptions options;
            options.context = length + kLinks + 1;
            const Spoken said = answer(file.path, *b.backend, options, {request})[0];
            ASSERT_EQ(said.tokens.size(), size_t(kLinks)) << b.name << ", " << length << " tokens";
            float worst = 0;
            for (size_t i = 0; i < said.tokens.size(); ++i) {
                ASSERT_EQ(raw(said.tokens[i]), raw(prompt.answer[i]))
                    << b.name << ": link " << i << " of " << length << " tokens, kept at " << prompt.place[i];
                worst = std::min(worst, said.logprobs[i]);
            }
            printf("    %s: %d links in %d tokens, log-probabilities from %.4f\n", b.name.c_str(), kLinks,
                   length, double(worst));
            EXPECT_GT(worst, -0.05f) << b.name << ", " << length << " tokens";
        }
}

// Risk: the test above passes whatever the cache holds.
TEST(Recall, ForgetsALinkThatIsNotThere) {
    const RecallFile file;
    const NamedBackend b = whole_model_backends().front();
    RecallPrompt prompt = recall_prompt(1500, 20, 7);
    prompt.tokens[size_t(prompt.place[12]) + 1] = TokenId(kRecallNodes);  // a filler
    Request request;
    request.prompt = prompt.tokens;
    request.max_tokens = 20;
    request.sampling.temperature = 0;
    EngineOptions options;
    options.context = 1600;
    const Spoken said = answer(file.path, *b.backend, options, {request})[0];
    ASSERT_EQ(said.tokens.size(), 20u);
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(raw(said.tokens[i]), raw(prompt.answer[i])) << i;
    EXPECT_NE(raw(said.tokens[12]), raw(prompt.answer[12]));
}

}  // namespace
}  // namespace sparkinfer::test
