#include "ops/explain.h"

#include <gtest/gtest.h>

#include "ops/tape_fixture.h"
#include "ops/validate.h"

namespace sparkinfer {
namespace {

// Risk: % of floor in every report is wrong. Each op's bytes are counted here by hand from the block sizes:
// Q4_1 20 bytes per 32, Q8_0 34 per 32.
TEST(Explain, BytesAreThoseOfTheOperands) {
    const Tape t = dense_tape(1, OutputKind::select);
    const auto rows = explain(t, {1, 10, 1});
    ASSERT_EQ(rows.size(), 7u);
    EXPECT_EQ(rows[0].op, "embed");
    EXPECT_DOUBLE_EQ(rows[0].cost.bytes(), 68);                                 // one row of the table
    EXPECT_DOUBLE_EQ(rows[1].cost.bytes(), 256 + 64 * 40 + 32 * 40 + 32 * 68);  // norm, q, k, v
    EXPECT_DOUBLE_EQ(rows[1].cost.flops, 2.0 * 128 * 64);
    EXPECT_EQ(rows[1].quant, "Q4_1+Q8_0");
    EXPECT_EQ(rows[1].shapes, "[1, 64] · [64|32|32, 64]");
    EXPECT_DOUBLE_EQ(rows[2].cost.kv_bytes, 11 * 2 * 2 * 16 * 4);  // 10 read, 1 written
    EXPECT_DOUBLE_EQ(rows[2].cost.flops, 4.0 * 4 * 16 * 11);
    EXPECT_DOUBLE_EQ(rows[3].cost.bytes(), 64 * 40);
    EXPECT_DOUBLE_EQ(rows[4].cost.bytes(), 256 + 2 * 96 * 40);
    EXPECT_DOUBLE_EQ(rows[5].cost.bytes(), 64 * 60);
    EXPECT_DOUBLE_EQ(rows[6].cost.bytes(), 256 + 128 * 68);
    double sum = 0;
    for (const auto& row : rows) sum += row.cost.bytes();
    EXPECT_DOUBLE_EQ(tape_cost(t, {1, 10, 1}).bytes(), sum);
}

// Risk: weights are counted once per row, or a prompt's keys quadratically.
TEST(Explain, RowsShareWeightsAndCache) {
    const Tape t = dense_tape(8, OutputKind::none);
    const OpCost one = tape_cost(t, {1, 100, 0}), eight = tape_cost(t, {8, 100, 0});
    EXPECT_DOUBLE_EQ(eight.weight_bytes - one.weight_bytes, 7 * 68);
    EXPECT_DOUBLE_EQ(eight.kv_bytes - one.kv_bytes, 7 * 2 * 2 * 16 * 4);
}

// Risk: a step of many rows is billed for K experts, or for all of them.
TEST(Explain, ExpertsAreCountedAsExpected) {
    EXPECT_DOUBLE_EQ(expected_experts(256, 8, 1), 8);
    EXPECT_NEAR(expected_experts(256, 8, 2), 16 - 64.0 / 256, 1e-9);
    EXPECT_NEAR(expected_experts(4, 2, 1000), 4, 1e-9);
    Tape t({}, {}, nullptr);
    Tensor x = t.embed(matrix(128, 64), 1);
    const Weight router[] = {matrix(8, 64)};
    Tensor logits = t.norm_linear(x, matrix(1, 64), 1e-5f, router)[0];
    const Router choice{{}, Scoring::softmax, 2, 1.0f, true};
    Tensor h = t.moe_glu(x, matrix(1, 64), 1e-5f, logits, choice, matrix(32, 64, Quant::q8_0, 8),
                         matrix(32, 64, Quant::q8_0, 8));
    t.moe_down_add(h, logits, choice, matrix(64, 32, Quant::q8_0, 8), {}, x);
    const auto rows = explain(t, {1, 0, 0});
    EXPECT_DOUBLE_EQ(rows[2].cost.bytes(), 256 + 2 * 2 * 32 * 68);
    EXPECT_DOUBLE_EQ(rows[3].cost.bytes(), 2 * 64 * 34);
    EXPECT_DOUBLE_EQ(rows[3].cost.flops, 2.0 * 2 * 64 * 32);
    EXPECT_TRUE(validate(t).ok()) << validate(t).error().message;
}

}  // namespace
}  // namespace sparkinfer
