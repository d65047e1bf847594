// main.cpp — the one place of the command line that names backends.
#include "cli/commands.h"
#include "core/log.h"
#include "cpu/backend.h"
#ifdef SPARKINFER_CUDA
#include "cuda/backend.h"
#endif

namespace sparkinfer {
namespace {

#ifdef SPARKINFER_CUDA
Result<std::unique_ptr<Backend>> make_backend(const BackendChoice& choice) {
    const std::string obstacle = choice.name == "auto" ? cuda_unavailable(0) : "";
    if (choice.name == "cpu" || !obstacle.empty()) {
        log_info("backend cpu{}{}", obstacle.empty() ? "" : ", since no GPU can be used: ", obstacle);
        return make_cpu_backend({.threads = choice.threads});
    }
    TRY(std::unique_ptr<Backend> backend, make_cuda_backend({}));
    log_info("backend cuda on {}", backend->info().device);
    return backend;
}

CudaView look_at_cuda() {
    const CudaSurvey seen = cuda_survey();
    CudaView view{true, seen.targets, seen.obstacle, seen.driver, {}};
    for (const CudaGpu& gpu : seen.gpus)
        view.gpus.push_back({.name = gpu.name,
                             .bus_id = canonical_bus_id(gpu.bus_id),
                             .major = gpu.major,
                             .minor = gpu.minor,
                             .memory = gpu.memory,
                             .free = gpu.free,
                             .has_code = gpu.has_code});
    return view;
}
#else
Result<std::unique_ptr<Backend>> make_backend(const BackendChoice& choice) {
    if (choice.name == "cuda")
        return usage_error(
            "--backend is 'cuda', but this build has no CUDA backend; configure with -DSPARKINFER_CUDA=ON");
    return make_cpu_backend({.threads = choice.threads});
}

CudaView look_at_cuda() { return {}; }
#endif

}  // namespace
}  // namespace sparkinfer

int main(int argc, char** argv) {
    return sparkinfer::cli_main(argc, argv, {sparkinfer::make_backend, sparkinfer::look_at_cuda});
}
