// main.cpp — the one place of the command line that names backends.
#include "cli/commands.h"
#include "core/log.h"
#include "cpu/backend.h"
#ifdef SPARKINFER_CUDA
#include "cuda/backend.h"
#endif

namespace sparkinfer {
namespace {

Result<std::unique_ptr<Backend>> make_cpu(const BackendChoice& choice) {
    CpuOptions options;
    options.threads = choice.threads;
    options.measure = choice.measure;
    options.kv_type = choice.stored.kv.value_or(options.kv_type);
    options.state_type = choice.stored.state.value_or(options.state_type);
    options.activations = choice.stored.activations.value_or(Activations::int16);
    return make_cpu_backend(options);
}

#ifdef SPARKINFER_CUDA
Result<std::unique_ptr<Backend>> make_backend(const BackendChoice& choice) {
    const std::string obstacle = choice.name == "auto" ? cuda_unavailable(0) : "";
    if (choice.name == "cpu" || !obstacle.empty()) {
        log_info("backend cpu{}{}", obstacle.empty() ? "" : ", since no GPU can be used: ", obstacle);
        return make_cpu(choice);
    }
    if (choice.stored.activations && *choice.stored.activations != Activations::int16)
        return usage_error("--activations is '{}', but the backend 'cuda' has int16 alone",
                           activations_name(*choice.stored.activations));
    CudaOptions options;
    options.executor = choice.op_by_op ? CudaExecutor::op_by_op : CudaExecutor::graph;
    options.kv_type = choice.stored.kv.value_or(options.kv_type);
    options.state_type = choice.stored.state.value_or(options.state_type);
    options.measure = choice.measure;
    TRY(std::unique_ptr<Backend> backend, make_cuda_backend(options));
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
Error no_cuda() {
    return usage_error(
        "the backend asked for is 'cuda', but this build has no CUDA backend; configure with "
        "-DSPARKINFER_CUDA=ON");
}

Result<std::unique_ptr<Backend>> make_backend(const BackendChoice& choice) {
    if (choice.name == "cuda") return no_cuda();
    return make_cpu(choice);
}

CudaView look_at_cuda() { return {}; }
#endif

Result<Lowered> lower(const BackendChoice& choice, [[maybe_unused]] const std::string& gpu,
                      const Tape& tape) {
    Lowered lowered;
    if (choice.name == "cuda") {
#ifdef SPARKINFER_CUDA
        CudaLowering cuda = cuda_lowering(tape, gpu);
        return Lowered{std::move(cuda.launches), std::move(cuda.notices)};
#else
        return no_cuda();
#endif
    }
    // One function an op.
    for (size_t pc = 0; pc < tape.instrs().size(); ++pc)
        lowered.launches.push_back({int32_t(pc), "reference", 0, 0});
    return lowered;
}

}  // namespace
}  // namespace sparkinfer

int main(int argc, char** argv) {
    return sparkinfer::cli_main(argc, argv,
                                {sparkinfer::make_backend, sparkinfer::lower, sparkinfer::look_at_cuda});
}
