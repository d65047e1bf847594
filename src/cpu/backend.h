// backend.h — the reference backend: tapes run on the host's cores, in order, one instruction after the
// other.
//
// float32 values, fixed order of every sum: the bits of a row depend on nothing but that row and its
// sequence, not on the number of threads, the rows beside it or how a prompt was cut. Everything is done when
// execute() or copy() returns. Weights are used where they lie, as the file has them.
#pragma once
#include <memory>

#include "ops/backend.h"

namespace sparkinfer {

struct CpuOptions {
    int threads = 0;             // 0: one for each core the process may use; at most kMaxCpuThreads
    bool measure = false;        // time every op
    DType kv_type = DType::f32;  // or bf16, e4m3: keys and values in the pages
    // The reference is f32; where the machine lacks instructions for integers (BackendInfo::activations
    // tells), it is f32 too.
    Activations activations = Activations::f32;
    DType state_type = DType::f32;  // or bf16: S of recurrent states
};
constexpr int kMaxCpuThreads = 512;

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options = {});

}  // namespace sparkinfer
