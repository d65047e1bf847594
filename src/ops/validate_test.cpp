#include "ops/validate.h"

#include <gtest/gtest.h>

#include <functional>

#include "ops/tape_fixture.h"

namespace sparkinfer {
namespace {

// The planted mistakes: each changes one thing of a tape that passes.
std::string trouble(int32_t rows, const std::function<void(std::vector<Instr>&)>& plant) {
    Tape t = dense_tape(rows, OutputKind::select);
    EXPECT_TRUE(validate(t).ok());
    plant(t.instrs());
    const auto checked = validate(t);
    if (checked.ok()) return "nothing";
    EXPECT_EQ(checked.error().kind, ErrorKind::internal);
    return checked.error().message;
}

// Risk: validate says yes to everything.
TEST(Validate, FindsMissingAndMalformedWeights) {
    EXPECT_EQ(trouble(1, [](auto& i) { i[3].linear_add.w.data = nullptr; }),
              "pc 3 linear_add: weight w is missing");
    EXPECT_EQ(trouble(1, [](auto& i) { i[2].attention.rope.frequency.data = nullptr; }),
              "pc 2 attention: weight rope.frequency is missing");
    EXPECT_EQ(trouble(1, [](auto& i) { i[1].norm_linear.w[0].quant = Quant::q4_k; }),
              "pc 1 norm_linear: a weight's 64 columns are no multiple of the 256 of a Q4_K block");
    EXPECT_EQ(trouble(1, [](auto& i) { i[3].linear_add.w.scale_count = 1; }),
              "pc 3 linear_add: a weight's factors and their count disagree");
}

TEST(Validate, FindsShapesThatDisagree) {
    EXPECT_EQ(trouble(1, [](auto& i) { i[4].linear_glu.up.out = 64; }),
              "pc 4 linear_glu: F is 64 here and 96 before");
    EXPECT_EQ(trouble(2, [](auto& i) { i[3].linear_add.y.shape[0] = 1; }),
              "pc 3 linear_add: T is 1 here and 2 before");
    EXPECT_EQ(trouble(1, [](auto& i) { i[2].attention.heads = 3; }),
              "pc 2 attention: query heads are no multiple of key/value heads");
    EXPECT_EQ(trouble(2, [](auto& i) { i[0].embed.y.shape[0] = 3; }),
              "pc 1 norm_linear: tensor x has 2 rows, the tape 3");
    EXPECT_EQ(trouble(1, [](auto& i) { i[6].output.scratch.shape[1] = 64; }),
              "pc 6 output: V is 64 here and 128 before");
}

TEST(Validate, FindsReadsOfWhatIsNotThere) {
    EXPECT_EQ(trouble(1, [](auto& i) { i.erase(i.begin() + 1); }),
              "pc 1 attention: tensor q is read, and nothing wrote it");
    EXPECT_EQ(trouble(1, [](auto& i) { i.erase(i.begin()); }), "pc 0 norm_linear: a tape starts with embed");
    EXPECT_EQ(trouble(2, [](auto& i) { i[4].linear_glu.y.data = reinterpret_cast<void*>(1 << 20); }),
              "pc 5 linear_add: tensor x is overwritten: pc 1 wrote over it");
    EXPECT_EQ(trouble(2,
                      [](auto& i) {
                          i[2].attention.y.data = i[0].embed.y.data;
                          i[3].linear_add.x.data = i[0].embed.y.data;
                      }),
              "pc 3 linear_add: output y overlaps input x");
    EXPECT_EQ(trouble(2, [](auto& i) { i[1].norm_linear.y[2].data = i[0].embed.y.data; }),
              "pc 1 norm_linear: output y overlaps input x");
    EXPECT_EQ(trouble(2, [](auto& i) { i[1].norm_linear.y[1].data = i[1].norm_linear.y[0].data; }),
              "pc 1 norm_linear: output y overlaps output y");
    EXPECT_EQ(trouble(2,
                      [](auto& i) {
                          const auto at = reinterpret_cast<uintptr_t>(i[1].norm_linear.y[1].data);
                          i[2].attention.y.data = reinterpret_cast<void*>(at + 256);
                          i[3].linear_add.x.data = i[1].norm_linear.y[1].data;
                          i[3].linear_add.x.shape[1] = 64;
                          i[3].linear_add.x.stride = 64;
                      }),
              "pc 2 attention: output y overlaps input v");
    EXPECT_EQ(trouble(2, [](auto& i) { i[5].linear_add.x.stride = 100; }),
              "pc 5 linear_add: tensor x is overwritten: pc 4 wrote over it");
}

TEST(Validate, RefusesAnEmptyTape) { EXPECT_FALSE(validate(Tape({}, {}, nullptr)).ok()); }

}  // namespace
}  // namespace sparkinfer
