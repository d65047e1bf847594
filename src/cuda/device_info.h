// device_info.h — the facts of the GPU at hand that choices depend on.
#pragma once
#include <cstdint>
#include <string>

namespace sparkinfer::cuda {

struct DeviceInfo {
    std::string name;    // "NVIDIA H200"
    std::string bus_id;  // where it is on the PCI bus, "0000:19:00.0"
    int32_t major = 0, minor = 0;
    bool wgmma = false;            // matrix instructions of a warpgroup (sm_90a)
    int32_t sms = 0;               // multiprocessors
    int32_t shared_block = 0;      // bytes of shared memory a block may have
    int32_t shared_sm = 0;         // bytes of shared memory of a multiprocessor
    int64_t memory = 0, free = 0;  // bytes
};
}  // namespace sparkinfer::cuda
