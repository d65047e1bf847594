// backend.h — the CUDA backend: one NVIDIA GPU. The only header of this folder that others include;
// no CUDA in it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace sparkinfer {

enum class CudaExecutor {
    graph,     // tapes of up to 64 rows are captured once and replayed
    op_by_op,  // each kernel launched by itself: bring-up, sanitizers, per-op timing
};

struct CudaOptions {
    int32_t device = 0;
    CudaExecutor executor = CudaExecutor::graph;
    DType kv_type = DType::bf16;    // or f32, e4m3: keys and values in the pages
    DType state_type = DType::f32;  // or bf16: S of recurrent states
    // Kernels are chosen as for that GPU (h200, rtx5090, pro6000, spark): its multiprocessors and shared
    // memory. Empty: as for the one at hand.
    std::string policy = {};
    bool measure = false;  // launch op by op and time each launch
};

// What keeps the GPU from being used, in one sentence; empty when nothing does. Starts nothing.
std::string cuda_unavailable(int32_t device);

// What the CUDA runtime sees of this machine, for a report: a context is started on each GPU for its free
// memory.
struct CudaGpu {
    std::string name, bus_id;       // "NVIDIA H200", "0000:19:00.0"
    int32_t major = 0, minor = 0;   // compute capability
    int64_t memory = 0, free = -1;  // bytes; -1: it does not answer
    bool has_code = false;          // this build has code for it
};
struct CudaSurvey {
    std::string targets;   // code generations of this build, "90a,120f"
    std::string obstacle;  // cuda_unavailable(0)
    int32_t driver = 0;    // the CUDA version that the driver supports, 13000; 0: no driver
    std::vector<CudaGpu> gpus;
};
CudaSurvey cuda_survey();

// What a tape becomes on the GPU of that name (h200, rtx5090, pro6000, spark), told from formats and shapes
// alone: no GPU is needed and no weight is read, so tensors are taken to survive their repacking.
struct CudaLowering {
    std::vector<LaunchInfo> launches;
    std::vector<std::string> notices;  // as BackendInfo's
};
CudaLowering cuda_lowering(const Tape& tape, const std::string& gpu);

// Errors: no driver, a driver older than the compiler's, a GPU that is neither sm_90 nor sm_12x (named), a
// policy that is not known or wants more shared memory than there is.
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options);

}  // namespace sparkinfer
