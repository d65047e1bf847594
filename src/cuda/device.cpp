#include "cuda/device.h"

#include <algorithm>

#include "cuda/backend.h"
#include "cuda/targets.h"

namespace sparkinfer {
namespace cuda {

constexpr int kDriverNeeded = 13000;                       // the runtime this is built with
constexpr const char* kTargets = SPARKINFER_CUDA_TARGETS;  // from cuda.cmake

Error device_error(cudaError_t status, const char* what) {
    const ErrorKind kind = status == cudaErrorMemoryAllocation ? ErrorKind::resources : ErrorKind::internal;
    return {kind, fmt::format("the GPU failed: {} ({}) in {}", cudaGetErrorString(status),
                              cudaGetErrorName(status), what)};
}

Result<std::byte*> device_memory(int64_t bytes) {
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, size_t(std::max<int64_t>(bytes, 1)));
    if (status == cudaSuccess) return static_cast<std::byte*>(p);
    cudaGetLastError();
    size_t free = 0, total = 0;
    if (status != cudaErrorMemoryAllocation || cudaMemGetInfo(&free, &total) != cudaSuccess)
        return device_error(status, "cudaMalloc");
    return out_of_resources("the GPU has {} MiB free of {} MiB, {} MiB more were asked for", free >> 20,
                            total >> 20, (bytes + (1 << 20) - 1) >> 20);
}

// The first reason why device `device` cannot be used, or nothing.
static std::string obstacle(int32_t device, cudaDeviceProp* properties) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "no NVIDIA driver is installed";
    if (driver < kDriverNeeded)
        return fmt::format("the NVIDIA driver supports CUDA {}.{}, expected 13.0 or newer (driver 580)",
                           driver / 1000, driver % 1000 / 10);
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess)
        return fmt::format("the NVIDIA driver answers: {}", cudaGetErrorString(status));
    if (count == 0) return "the NVIDIA driver sees no GPU";
    if (device < 0 || device >= count) return fmt::format("GPU {} was asked for, {} found", device, count);
    if (cudaGetDeviceProperties(properties, device) != cudaSuccess) return "the GPU does not answer";
    if (properties->major != 9 && properties->major != 12)
        return fmt::format("{} has compute capability {}.{}, expected 9.0, 12.0 or 12.1", properties->name,
                           properties->major, properties->minor);
    if (!targets_run_on(kTargets, properties->major, properties->minor))
        return fmt::format("{} has compute capability {}.{}, and this build has code for {} alone",
                           properties->name, properties->major, properties->minor, kTargets);
    return {};
}

static std::string bus_id(int32_t device) {
    char text[32] = "";
    return cudaDeviceGetPCIBusId(text, sizeof text, device) == cudaSuccess ? text : "";
}

Result<DeviceInfo> open_device(int32_t device) {
    cudaDeviceProp p{};
    if (std::string reason = obstacle(device, &p); !reason.empty())
        return out_of_resources("no GPU can be used: {}", reason);
    CUDA_TRY(cudaSetDevice(device));
    size_t free = 0, memory = 0;
    CUDA_TRY(cudaMemGetInfo(&free, &memory));
    DeviceInfo d;
    d.name = p.name;
    d.bus_id = bus_id(device);
    d.major = p.major;
    d.wgmma = p.major == 9;
    d.minor = p.minor;
    d.sms = p.multiProcessorCount;
    d.shared_block = int32_t(p.sharedMemPerBlockOptin);
    d.shared_sm = int32_t(p.sharedMemPerMultiprocessor);
    d.memory = int64_t(memory);
    d.free = int64_t(free);
    return d;
}

}  // namespace cuda

std::string cuda_unavailable(int32_t device) {
    cudaDeviceProp p{};
    return cuda::obstacle(device, &p);
}

CudaSurvey cuda_survey() {
    CudaSurvey survey;
    survey.targets = cuda::kTargets;
    survey.obstacle = cuda_unavailable(0);
    int driver = 0, count = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return survey;
    survey.driver = driver;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return survey;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp p{};
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
        CudaGpu gpu{p.name, cuda::bus_id(i), p.major, p.minor, int64_t(p.totalGlobalMem)};
        gpu.has_code = cuda::targets_run_on(cuda::kTargets, p.major, p.minor);
        size_t free = 0, all = 0;
        if (cudaSetDevice(i) == cudaSuccess && cudaMemGetInfo(&free, &all) == cudaSuccess)
            gpu.free = int64_t(free);
        survey.gpus.push_back(std::move(gpu));
    }
    return survey;
}

}  // namespace sparkinfer
