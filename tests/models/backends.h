// backends.h — where whole models are run: on the CPU, or in a binary for the GPU on the device.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "ops/backend.h"
#ifdef SPARKINFER_CUDA
#include "cuda/backend.h"
#else
#include "cpu/backend.h"
#endif

namespace sparkinfer::test {

struct NamedBackend {
    std::string name;
    std::shared_ptr<Backend> backend;
};

inline std::vector<NamedBackend> whole_model_backends() {
    const auto own = [](Result<std::unique_ptr<Backend>> made) {
        CHECK(made.ok(), "{}", made.error().message);
        return std::shared_ptr<Backend>(std::move(made).value());
    };
#ifdef SPARKINFER_CUDA
    return {{"cuda, KV BF16", own(make_cuda_backend({.kv_type = DType::bf16}))},
            {"cuda, KV F32", own(make_cuda_backend({.kv_type = DType::f32}))}};
#else
    return {{"cpu", own(make_cpu_backend({}))}};
#endif
}

// Tokens of the contexts that are searched.
inline std::vector<int> recall_lengths() {
#ifdef SPARKINFER_CUDA
    return {600, 4097, 16384, 65536, (1 << 17) - 64};
#else
    return {600, 1500};
#endif
}

}  // namespace sparkinfer::test
