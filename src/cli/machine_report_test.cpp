#include "cli/machine_report.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

constexpr int64_t kGiB = int64_t(1) << 30;

MachineFacts good() {
    MachineFacts facts;
    facts.system = "Debian GNU/Linux 12 (bookworm), Linux 6.1.0";
    facts.cpu = "AMD EPYC";
    facts.level = 4;
    facts.cores = 8;
    facts.memory = 64 * kGiB;
    facts.available = 60 * kGiB;
    facts.models_folder = "/data/sparkinfer/models";
    facts.models_writable = true;
    facts.disk_free = 100 * kGiB;
    facts.open_files = 65536;
    facts.huge_pages = "madvise";
    return facts;
}

size_t advices(const std::string& text) {
    size_t count = 0;
    for (size_t at = text.find("advice "); at != std::string::npos; at = text.find("advice ", at + 1))
        ++count;
    return count;
}

// Risk: advice where all is well, or none where something is not.
TEST(MachineReport, AdviceWhereSomethingIsMissingAndNowhereElse) {
    EXPECT_EQ(advices(machine_lines(good()) + limit_lines(good())), 0u);
    const auto with = [](auto change) {
        MachineFacts facts = good();
        change(facts);
        return machine_lines(facts) + limit_lines(facts);
    };
    EXPECT_EQ(advices(with([](MachineFacts& f) { f.level = 2; })), 1u);
    EXPECT_EQ(advices(with([](MachineFacts& f) { f.available = kGiB / 2; })), 1u);
    EXPECT_EQ(advices(with([](MachineFacts& f) { f.models_folder = ""; })), 1u);
    EXPECT_EQ(advices(with([](MachineFacts& f) { f.models_writable = false; })), 1u);
    EXPECT_EQ(advices(with([](MachineFacts& f) { f.disk_free = 1; })), 1u);
    EXPECT_EQ(advices(with([](MachineFacts& f) { f.open_files = 1024; })), 1u);
    EXPECT_EQ(advices(with([](MachineFacts& f) { f.huge_pages = "never"; })), 1u);
}

// Risk: a model is said to fit that does not, or the context that is advised does not fit either.
TEST(MachineReport, ModelsAndWhatFits) {
    const ModelNeed model{"m.gguf", 20 * kGiB, kGiB / 1024, 32768, ""};  // 4 GiB of context at 4,096 tokens
    EXPECT_EQ(model_lines({model}, 32 * kGiB, "into memory"),
              "model     m.gguf fits into memory: about 24.2 GiB with 4096 tokens of context\n");
    EXPECT_EQ(model_lines({model}, 22 * kGiB, "into memory"),
              "model     m.gguf does not fit into memory: about 24.2 GiB with 4096 tokens of context\n"
              "advice    --ctx 1792 fits\n");
    EXPECT_NE(model_lines({model}, 10 * kGiB, "onto the GPU").find("14.2 GiB more memory"),
              std::string::npos);
    EXPECT_EQ(model_lines({{"b\x1b.gguf", 0, 0, 0, "it is broken"}}, kGiB, ""),
              "model     b\uFFFD.gguf does not run: it is broken\n");
    EXPECT_EQ(advices(model_lines({}, kGiB, "")), 1u);
}

}  // namespace
}  // namespace sparkinfer
