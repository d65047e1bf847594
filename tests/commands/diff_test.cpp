// diff_test.cpp — `sparkinfer diff` with a backend that computes one op wrongly.
// Risk: a planted wrong op is not named, or a script cannot tell by the exit code.
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "engine/test_backend.h"

namespace sparkinfer {
namespace {

// The CPU, but the `wrong`-th linear_glu of a model normalises with an epsilon of 1.
class WrongBackend final : public OverCpu {
  public:
    explicit WrongBackend(size_t wrong) : wrong_(wrong) {}
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source) override {
        if (group.op == OpCode::linear_glu) gates_.push_back(group.weights[1].data);
        return cpu_->place(group, source);
    }
    Result<Compiled> compile(const Tape& tape) override {
        Tape spoilt = tape;
        for (Instr& i : spoilt.instrs())
            if (i.code == OpCode::linear_glu && i.linear_glu.gate.data == gates_.at(wrong_))
                i.linear_glu.eps = 1;
        return cpu_->compile(spoilt);
    }

  private:
    size_t wrong_;
    std::vector<const void*> gates_;
};

struct Answer {
    int code;
    std::string out;
};
// `sparkinfer diff llama.gguf A B`, where the backend "cuda" is the wrong one.
Answer diff(const char* a, const char* b, size_t wrong) {
    Backends backends;
    backends.make = [&](const BackendChoice& choice) -> Result<std::unique_ptr<Backend>> {
        if (choice.name == "cuda") return std::unique_ptr<Backend>(std::make_unique<WrongBackend>(wrong));
        return make_cpu_backend({.threads = 1});
    };
    const std::string model = std::string(SPARKINFER_SOURCE_DIR) + "/tests/golden/quantised/llama.gguf";
    const char* arguments[] = {"sparkinfer", "diff", model.c_str(), a, b, "-p", "Once upon a time"};
    testing::internal::CaptureStdout();
    const int code = cli_main(std::size(arguments), const_cast<char**>(arguments), backends);
    return {code, testing::internal::GetCapturedStdout()};
}

TEST(DiffCommand, NamesAPlantedWrongOp) {
    const std::pair<size_t, const char*> places[] = {
        {0, "pc 4 linear_glu"}, {1, "pc 9 linear_glu"}, {2, "pc 14 linear_glu"}};
    for (const auto& [wrong, place] : places) {
        const Answer answer = diff("cpu", "cuda:op", wrong);
        EXPECT_EQ(answer.code, 1) << answer.out;
        const size_t at = answer.out.find("different: step 0, ");
        ASSERT_NE(at, std::string::npos) << answer.out;
        const std::string verdict = answer.out.substr(at);
        EXPECT_NE(verdict.find(place), std::string::npos) << verdict;
        EXPECT_NE(verdict.find("y ["), std::string::npos) << verdict;
        EXPECT_NE(verdict.find("worst at ["), std::string::npos) << verdict;
        EXPECT_NE(verdict.find(": cpu "), std::string::npos) << verdict;
        EXPECT_NE(verdict.find(", cuda:op "), std::string::npos) << verdict;
        EXPECT_NE(verdict.find("relative L2"), std::string::npos) << verdict;
    }
}

TEST(DiffCommand, IsCleanWhereNothingDiffers) {
    for (const char* executor : {"cuda:op", "cuda:graph"}) {
        const Answer answer = diff("cuda:op", executor, 1);  // equally wrong
        EXPECT_EQ(answer.code, 0);
        EXPECT_NE(answer.out.find("no difference"), std::string::npos) << answer.out;
    }
}

}  // namespace
}  // namespace sparkinfer
