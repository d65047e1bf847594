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
    DType kv_type = DType::bf16;  // or f32
    bool measure = false;         // time every launch, or every graph
};

// What keeps the GPU from being used, in one sentence; empty when nothing does. Starts nothing.
std::string cuda_unavailable(int32_t device);

// One kernel of a tape as it was timed: its instruction, its name, median and count.
struct CudaMeasurement {
    int32_t rows = 0, pc = 0;  // rows the tape was recorded at
    std::string op, variant;
    double us = 0;
    int32_t count = 0;
};
// What a backend made with `measure` has timed so far. REQUIRES: made by make_cuda_backend.
Result<std::vector<CudaMeasurement>> cuda_measurements(Backend& backend);

// Errors: no driver, a driver older than the compiler's, a GPU that is neither sm_90 nor sm_12x (named).
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options);

}  // namespace sparkinfer
