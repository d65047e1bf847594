#include "cli/doctor.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

const GpuFacts kH200{.name = "NVIDIA H200",
                     .bus_id = "0000:19:00.0",
                     .major = 9,
                     .minor = 0,
                     .memory = int64_t(140) << 30,
                     .free = int64_t(139) << 30,
                     .sm_mhz = 1980,
                     .celsius = 39,
                     .has_code = true};

// A machine where all is well.
GpuSurvey good() {
    GpuSurvey s;
    s.pci = true;
    s.driver = "580.159.03";
    s.cuda_version = 13000;
    s.gpus = {kH200};
    s.cuda = {true, "90a,120f", "", 13000, {kH200}};
    return s;
}

// What --backend auto would say, for a machine where something is missing.
GpuSurvey bad(const std::string& obstacle) {
    GpuSurvey s = good();
    s.cuda.obstacle = obstacle;
    return s;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST(Doctor, SaysWhatIsUsed) {
    const std::string text = gpu_report(good());
    EXPECT_TRUE(judge(good()).used);
    EXPECT_TRUE(contains(text, "driver    NVIDIA 580.159.03, supports CUDA 13.0\n")) << text;
    EXPECT_TRUE(
        contains(text,
                 "NVIDIA H200 at 0000:19:00.0, compute capability 9.0, 139.0 of 140.0 GiB free, 1980 MHz, "
                 "39 °C; this program has code for it"))
        << text;
    EXPECT_TRUE(contains(text, "computes  on NVIDIA H200, which --backend auto takes\n")) << text;
    EXPECT_FALSE(contains(text, "advice")) << text;
}

// Risk: the wrong one of several reasons is given, or none, or advice that does not fit it.
TEST(Doctor, NamesTheReasonAndWhatHelps) {
    GpuSurvey s = bad("no NVIDIA driver is installed");
    s.driver = "", s.cuda_version = s.cuda.driver = 0, s.gpus = s.cuda.gpus = {};
    EXPECT_TRUE(contains(judge(s).why, "on the PCI bus, but no NVIDIA driver")) << judge(s).why;
    EXPECT_TRUE(contains(judge(s).advice, "580")) << judge(s).advice;
    s.pci = false;
    EXPECT_TRUE(contains(judge(s).why, "neither an NVIDIA GPU nor")) << judge(s).why;

    s = bad("the NVIDIA driver supports CUDA 12.8, expected 13.0 or newer (driver 580)");
    s.driver = "570.86.10", s.cuda_version = s.cuda.driver = 12080;
    EXPECT_EQ(judge(s).why, "the NVIDIA driver 570.86.10 supports CUDA 12.8, expected CUDA 13.0 or newer");
    EXPECT_TRUE(contains(judge(s).advice, "580")) << judge(s).advice;
    s.cuda_version = s.cuda.driver = 0;  // only the kernel's module is seen
    EXPECT_TRUE(contains(judge(s).why, "570.86.10 supports CUDA 12 or older")) << judge(s).why;

    s = bad("the NVIDIA driver sees no GPU");
    s.gpus = s.cuda.gpus = {};
    EXPECT_EQ(judge(s).why, "the NVIDIA driver sees no GPU");

    s = bad("NVIDIA A100 has compute capability 8.0, expected 9.0, 12.0 or 12.1");
    s.gpus[0].name = "NVIDIA A100", s.gpus[0].major = 8, s.gpus[0].has_code = false;
    s.cuda.gpus = s.gpus;
    EXPECT_EQ(judge(s).why, "NVIDIA A100 has compute capability 8.0, expected 9.0, 12.0 or 12.1");
    EXPECT_TRUE(contains(gpu_report(s), "this program has no code for it")) << gpu_report(s);

    s = bad("NVIDIA H200 has compute capability 9.0, and this build has code for 120f alone");
    s.gpus[0].has_code = s.cuda.gpus[0].has_code = false;
    EXPECT_EQ(judge(s).why, s.cuda.obstacle);
    EXPECT_TRUE(contains(judge(s).advice, "SPARKINFER_CUDA_TARGETS='90a;120f'")) << judge(s).advice;

    s = bad("the NVIDIA driver answers: unknown error");
    EXPECT_EQ(judge(s).why, s.cuda.obstacle);
    EXPECT_TRUE(contains(judge(s).advice, "nvidia-smi")) << judge(s).advice;
}

// Risk: a program without CUDA claims a GPU, or sends people to install a driver they have.
TEST(Doctor, WithoutCudaABuildIsAdvised) {
    GpuSurvey s = good();
    s.cuda = {};
    EXPECT_FALSE(judge(s).used);
    EXPECT_TRUE(contains(judge(s).why, "built without the CUDA backend")) << judge(s).why;
    EXPECT_TRUE(contains(judge(s).advice, "make cuda")) << judge(s).advice;
    EXPECT_FALSE(contains(gpu_report(s), "code for it")) << gpu_report(s);
    s.gpus[0].major = 7, s.gpus[0].minor = 5;  // a CUDA build would not help
    EXPECT_TRUE(contains(judge(s).why, "7.5")) << judge(s).why;
}

// Risk: one GPU counts as two because two libraries spell its address differently.
TEST(Doctor, AddressesHaveOneSpelling) {
    EXPECT_EQ(canonical_bus_id("00000000:19:00.0"), "0000:19:00.0");
    EXPECT_EQ(canonical_bus_id("0000:AF:00.0"), "0000:af:00.0");
    for (const char* bad : {"", "19:00.0", "0000:19:00", "0000:19:00.0x", "GPU-0"})
        EXPECT_EQ(canonical_bus_id(bad), "") << bad;
}

// Risk: a slice of a GPU, a laptop's or another edition is measured against the whole card's bandwidth.
TEST(Doctor, BandwidthsAreOfWholeNames) {
    ASSERT_NE(find_gpu_bandwidth("NVIDIA H200"), nullptr);
    EXPECT_STREQ(find_gpu_bandwidth("NVIDIA H200")->key, "h200");
    for (const char* other :
         {"", "NVIDIA GH200 480GB", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 5090 Laptop GPU"})
        EXPECT_EQ(find_gpu_bandwidth(other), nullptr) << other;
}

}  // namespace
}  // namespace sparkinfer
