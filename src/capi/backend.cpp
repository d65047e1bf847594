// backend.cpp — the one place of the C interface that names backends.
#include <algorithm>

#include "capi/loaded_model.h"
#include "cli/machine.h"
#include "cpu/backend.h"
#ifdef SPARKINFER_CUDA
#include "cuda/backend.h"
#endif

namespace sparkinfer::capi {

namespace {

Result<std::unique_ptr<Backend>> make_cpu(int threads) {
    CpuOptions options;
    options.threads = threads != 0 ? threads : std::min(usable_cores(), kMaxCpuThreads);
    options.activations = Activations::int16;
    return make_cpu_backend(options);
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const LoadChoice& choice) {
    const std::string& name = choice.backend;
    if (name != "auto" && name != "cpu" && name != "cuda")
        return usage_error("backend is '{}', expected 'auto', 'cpu' or 'cuda'", name);
#ifdef SPARKINFER_CUDA
    if (name == "cuda" || (name == "auto" && cuda_unavailable(0).empty())) return make_cuda_backend({});
#else
    if (name == "cuda") return usage_error("backend is 'cuda', but this build has no CUDA backend");
#endif
    return make_cpu(choice.threads);
}

}  // namespace sparkinfer::capi
