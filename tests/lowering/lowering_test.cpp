// lowering_test.cpp — what `explain --backend cuda` tells of a tape. Needs a build with CUDA, no GPU.
#include <gtest/gtest.h>

#include "cuda/backend.h"
#include "ops/tape_fixture.h"

namespace sparkinfer {
namespace {

// A dense layer of D = 512, F = 1024, 8 heads of `width` over 4, with a head of V = 1024.
Tape layer_tape(int32_t rows, Quant quant, int32_t width) {
    Tape t({}, {}, nullptr);
    const Tensor x = t.embed(matrix(1024, 512, Quant::q4_k), rows);
    {
        auto scope = t.scope();
        const Weight parts[] = {matrix(8 * width, 512, quant), matrix(4 * width, 512, quant),
                                matrix(4 * width, 512, quant)};
        const auto qkv = t.norm_linear(x, matrix(1, 512), 1e-5f, parts);
        Attention op{};
        op.q = qkv[0], op.k = qkv[1], op.v = qkv[2];
        op.heads = 8;
        op.kv.heads = 4, op.kv.width = width, op.kv.dtype = DType::bf16;
        op.rope.dims = width, op.rope.frequency = matrix(1, width / 2);
        t.linear_add(t.attention(op), matrix(512, 8 * width, quant), x);
        t.linear_add(
            t.linear_glu(x, matrix(1, 512), 1e-5f, matrix(1024, 512, quant), matrix(1024, 512, quant)),
            matrix(512, 1024, quant), x);
    }
    Batch batch;
    batch.rows = rows;
    batch.output = OutputKind::select;
    batch.outputs = 1;
    t.output(x, matrix(1, 512), 1e-5f, matrix(1024, 512, Quant::q8_0), batch);
    return t;
}

// "slab", "rms_norm generic generic generic"
std::vector<std::string> variants(const CudaLowering& lowering, size_t ops) {
    std::vector<std::string> all(ops);
    for (const LaunchInfo& l : lowering.launches)
        all.at(size_t(l.pc)) += (all.at(size_t(l.pc)).empty() ? "" : " ") + l.variant;
    return all;
}

// Risk: the table shows other kernels than those that run.
TEST(Lowering, NamesTheKernelsOfEachOp) {
    const Tape fast = layer_tape(1, Quant::q4_k, 64);
    for (const char* gpu : {"h200", "rtx5090", "pro6000", "spark"}) {
        const CudaLowering lowering = cuda_lowering(fast, gpu);
        EXPECT_EQ(
            variants(lowering, fast.instrs().size()),
            (std::vector<std::string>{"rows", "slab", "split", "slab", "slab", "slab", "slab chunks choose"}))
            << gpu;
        EXPECT_TRUE(lowering.notices.empty()) << gpu << ": " << lowering.notices[0];
    }
}

// Risk: a shape without a fast kernel goes by unseen, or its cause is another one than is said.
TEST(Lowering, CountsWhatRunsOnPlainKernels) {
    const Tape slow = layer_tape(1, Quant::q2_k, 96);
    const CudaLowering lowering = cuda_lowering(slow, "h200");
    const std::vector<std::string> all = variants(lowering, slow.instrs().size());
    EXPECT_EQ(all[1], "rms_norm generic generic generic");
    EXPECT_EQ(all[2], "append plain");
    ASSERT_EQ(lowering.notices.size(), 1u);
    EXPECT_EQ(lowering.notices[0],
              "5 of 7 ops of a step of 1 row run on plain kernels: norm_linear × 1 (Q2_K), attention × 1 (8 "
              "heads of width 96 over 4), linear_add × 2 (Q2_K), linear_glu × 1 (Q2_K)");
    // A format that has slabs, in a shape that has none.
    Tape odd({}, {}, nullptr);
    const Tensor x = odd.embed(matrix(64, 256), 1);
    const Weight part[] = {matrix(24, 256, Quant::q4_k)};
    odd.norm_linear(x, matrix(1, 256), 1e-5f, part);
    const CudaLowering kept = cuda_lowering(odd, "h200");
    ASSERT_EQ(kept.notices.size(), 1u);
    EXPECT_NE(kept.notices[0].find("norm_linear × 1 (Q4_K [24, 256])"), std::string::npos) << kept.notices[0];
}

// Risk: where shared memory is small, long rows of a format fall to plain kernels, or rows go one by one.
TEST(Lowering, LongRowsOfEveryCountTakeSlabs) {
    for (const char* gpu : {"h200", "rtx5090", "spark"})
        for (const Quant quant : {Quant::q4_k, Quant::q5_k, Quant::q6_k, Quant::q8_0, Quant::q4_1})
            for (const int32_t rows : {1, 2, 4, 5, 8})
                for (const int32_t in : {1024, 5120, 17408}) {
                    Tape t({}, {}, nullptr);
                    const Tensor x = t.embed(matrix(64, in), rows);
                    const Weight parts[] = {matrix(4096, in, quant), matrix(1024, in, Quant::q8_0)};
                    t.norm_linear(x, matrix(1, in), 1e-5f, parts);
                    const CudaLowering lowering = cuda_lowering(t, gpu);
                    const std::string kernels = variants(lowering, t.instrs().size())[1];
                    EXPECT_TRUE(kernels == "slab" || kernels == "slab, passes" ||
                                kernels == "planes slab, passes")
                        << gpu << ' ' << quant_name(quant) << ' ' << rows << " x " << in << ": " << kernels;
                }
}

// Risk: a step of many rows goes through the kernels for few, row by row.
TEST(Lowering, ManyRowsOfRawFormatsTakePlanes) {
    for (const char* gpu : {"h200", "rtx5090"}) {
        Tape many({}, {}, nullptr);
        const Tensor x = many.embed(matrix(64, 256), 200);
        const Weight parts[] = {matrix(24, 256, Quant::q2_k), matrix(40, 256), matrix(24, 256, Quant::bf16)};
        many.norm_linear(x, matrix(1, 256), 1e-5f, parts);
        many.linear_add(many.linear_glu(x, matrix(1, 256), 1e-5f, matrix(96, 256, Quant::q5_0),
                                        matrix(96, 256, Quant::q5_0)),
                        matrix(256, 96, Quant::q5_0), x);
        const CudaLowering lowering = cuda_lowering(many, gpu);
        EXPECT_EQ(variants(lowering, many.instrs().size()),
                  (std::vector<std::string>{"rows", "pack planes planes", "pack planes glu", "pack planes"}))
            << gpu;
        EXPECT_TRUE(lowering.notices.empty()) << gpu << ": " << lowering.notices[0];
    }
}

}  // namespace
}  // namespace sparkinfer
