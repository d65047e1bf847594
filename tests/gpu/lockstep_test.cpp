// lockstep_test.cpp — whole models on the GPU against the CPU, op by op, as `sparkinfer diff` runs them.
// Risk: an op that is wrong in a model, behind a later one that hides it; a graph whose kernels overlap where
// they must not.
#include "engine/lockstep.h"

#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "cuda/backend.h"
#include "gpu_test.h"

namespace sparkinfer::test {
namespace {

constexpr int kPrompt = 75, kDecode = 6;

LockstepReport lockstep(const std::string& path, Backend& a, Backend& b, const LockstepOptions& options) {
    const auto checkpoint = open_checkpoint(path).value();
    const auto model = load_model(*checkpoint).value();
    CheckpointBytes bytes(*checkpoint);
    const SoloPlan plan{kPrompt + kDecode, 64};
    const auto left = Solo::make(*model, a, bytes, plan).value();
    const auto right = Solo::make(*model, b, bytes, plan).value();
    std::vector<TokenId> prompt;
    for (int i = 0; i < kPrompt; ++i) prompt.push_back(TokenId((i * 7919 + 13) % 500));
    return run_lockstep(*left, *right, prompt, options).value();
}

void expect_equal(const std::string& what, const LockstepReport& report) {
    for (const auto& [op, d] : report.largest)
        printf("    %s: %s %.1e (pc %d, %s, step %d)\n", what.c_str(), op.c_str(), d.relative_l2, d.pc,
               d.output.c_str(), d.step);
    EXPECT_GT(report.ops, 0);
    if (!report.difference) return;
    const Difference& d = *report.difference;
    ADD_FAILURE() << what << ": step " << d.step << ", pc " << d.pc << " " << d.op << ", " << d.output << " ["
                  << d.row << ", " << d.column << "]: " << d.value[1] << " for " << d.value[0]
                  << ", relative L2 " << d.relative_l2;
}

TEST(Lockstep, EveryOpOfAModelAgreesWithTheCpu) {
    for (const std::string& path : small_models())
        for (const int chunk : {8, 64}) {
            // Rows of longer steps are multiplied with operands of 11 bits: rows of the quantised files
            // reach 1.2e-3.
            const double tolerance = chunk > 8 ? 2e-3 : 1e-3;
            const auto cpu = make_cpu_backend({}).value();
            const auto gpu =
                make_cuda_backend({.executor = CudaExecutor::op_by_op, .kv_type = DType::f32}).value();
            expect_equal(path, lockstep(path, *cpu, *gpu,
                                        {.tolerance = tolerance, .chunk = chunk, .decode = kDecode}));
        }
}

TEST(Lockstep, GraphsHaveTheBitsOfTheirKernelsAlone) {
    for (const std::string& path : small_models())
        for (const int chunk : {8, 64}) {
            const auto op_by_op = make_cuda_backend({.executor = CudaExecutor::op_by_op}).value();
            const auto graph = make_cuda_backend({.executor = CudaExecutor::graph}).value();
            expect_equal(path, lockstep(path, *op_by_op, *graph,
                                        {.synced = false,
                                         .prefixes = {false, true},
                                         .tolerance = 0,
                                         .chunk = chunk,
                                         .decode = kDecode}));
        }
}

}  // namespace
}  // namespace sparkinfer::test
