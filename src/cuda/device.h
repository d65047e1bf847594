// device.h — errors of the CUDA runtime as values, and the facts of the GPU at hand.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "core/result.h"
#include "cuda/device_info.h"

namespace sparkinfer::cuda {

Error device_error(cudaError_t status, const char* what);

// CUDA_TRY(cudaMalloc(&p, n)): returns the device's error from the enclosing function.
#define CUDA_TRY(call)                                                                                       \
    do {                                                                                                     \
        const cudaError_t cuda_try_status = (call);                                                          \
        if (cuda_try_status != cudaSuccess) return ::sparkinfer::cuda::device_error(cuda_try_status, #call); \
    } while (false)

// Device memory, for cudaFree. Errors: with what is free and what was asked for.
Result<std::byte*> device_memory(int64_t bytes);

Result<DeviceInfo> open_device(int32_t device);

}  // namespace sparkinfer::cuda
