#include "cli/gpu.h"

#include <fmt/core.h>

#include <cstdio>

namespace sparkinfer {

std::string canonical_bus_id(const std::string& text) {
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    int end = 0;
    const int found = std::sscanf(text.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end);
    if (found != 4 || size_t(end) != text.size()) return "";
    return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

bool gpu_supported(int32_t major, int32_t minor) {
    return (major == 9 && minor == 0) || (major == 12 && minor <= 1);
}

const std::vector<GpuBandwidth>& gpu_bandwidths() {
    static const std::vector<GpuBandwidth> known = {
        {"h200", "NVIDIA H200", 4.50e12, "H200, 4.50 TB/s as measured by a read of all memory (nominal 4.8)"},
        {"rtx5090", "NVIDIA GeForce RTX 5090", 1.792e12,
         "RTX 5090, 1.792 TB/s nominal: no kernel reads faster than about 0.93 of it"},
        {"pro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 1.792e12,
         "RTX PRO 6000, 1.792 TB/s nominal: no kernel reads faster than about 0.93 of it"},
        {"spark", "NVIDIA GB10", 0.273e12,
         "DGX Spark, 0.273 TB/s nominal: no kernel reads faster than about 0.9 of it"},
    };
    return known;
}

const GpuBandwidth* find_gpu_bandwidth(const std::string& device) {
    for (const GpuBandwidth& gpu : gpu_bandwidths())
        if (device == gpu.name) return &gpu;
    return nullptr;
}

}  // namespace sparkinfer
