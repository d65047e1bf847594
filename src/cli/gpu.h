// gpu.h — NVIDIA GPUs as commands speak of them: facts of each, from whoever can tell.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sparkinfer {

// What can be seen of one GPU; what nobody tells stays -1, 0 or empty.
struct GpuFacts {
    std::string name;              // "NVIDIA H200"
    std::string bus_id;            // where it is on the PCI bus, "0000:19:00.0"
    int32_t major = 0, minor = 0;  // compute capability
    int64_t memory = -1;           // bytes
    int64_t free = -1;             // bytes
    int32_t sm_mhz = -1;           // clock of the multiprocessors, now
    int32_t celsius = -1;          // temperature, now
    bool has_code = false;         // this program's CUDA backend has code for it
};

// What the CUDA backend of this program says of itself and of the machine.
struct CudaView {
    bool built = false;          // there is one
    std::string targets;         // its code generations, "90a,120f"
    std::string obstacle;        // why no GPU can be used; empty: one can
    int32_t driver = 0;          // CUDA version that the driver supports, 13000; 0: no driver
    std::vector<GpuFacts> gpus;  // in its order: the first is used
};

// "0000:19:00.0" of any spelling of a PCI address ("00000000:19:00.0", upper case); empty when it is none.
std::string canonical_bus_id(const std::string& text);

// Whether any build of ours has code for a GPU of this compute capability.
bool gpu_supported(int32_t major, int32_t minor);

// Bytes a second that a GPU of this name reads from its memory, as far as it is known.
struct GpuBandwidth {
    const char* key;   // "h200", what --gpu takes
    const char* name;  // what the driver calls it
    double bytes_per_s;
    const char* note;  // how it is known
};
const std::vector<GpuBandwidth>& gpu_bandwidths();
// The row of a device's whole name (laptops, slices and other editions differ), null when it is not known.
const GpuBandwidth* find_gpu_bandwidth(const std::string& device);

}  // namespace sparkinfer
