// doctor.h — what `sparkinfer doctor` reports, as a function of what was seen.
#pragma once
#include <string>

#include "cli/gpu.h"

namespace sparkinfer {

// Everything that was seen of NVIDIA's part of the machine.
struct GpuSurvey {
    bool pci = false;          // a GPU of NVIDIA is on the PCI bus
    std::string driver;        // "580.159.03", of the management library or of the kernel; empty: none seen
    int32_t cuda_version = 0;  // that the driver supports, 13000; 0: not told
    std::vector<GpuFacts> gpus;
    CudaView cuda;  // what this program's backend says, its `gpus` merged into those above
};

// Looks: management library, /proc, /sys, and what the CUDA backend told.
GpuSurvey survey_gpus(const CudaView& cuda);

// Whether this program will compute on a GPU, and if not, why and what would help. One sentence each.
struct GpuVerdict {
    bool used = false;
    std::string why, advice;  // both empty when used
};
GpuVerdict judge(const GpuSurvey& survey);

// The lines about driver, GPUs and what is used, each "name  text\n".
std::string gpu_report(const GpuSurvey& survey);

}  // namespace sparkinfer
