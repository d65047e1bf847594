// nvml.h — what NVIDIA's management library tells of the GPUs: names, memory, clocks, temperatures. It comes
// with the driver and is loaded at run time; it needs no CUDA and starts no context.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cli/gpu.h"

namespace sparkinfer {

class Nvml {
  public:
    // Null when libnvidia-ml.so.1 is not installed or finds no driver.
    static std::unique_ptr<Nvml> open();
    ~Nvml();
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    std::string driver() const;          // "580.159.03"; empty: not told
    int32_t cuda_version() const;        // that the driver supports, 13000; 0: not told
    std::vector<GpuFacts> gpus() const;  // in the order of the PCI bus
    // The GPU at this PCI address, its clock and temperature as of now; all unknown when there is none.
    GpuFacts at(const std::string& bus_id) const;

  private:
    struct Library;  // the functions of the library that are used
    explicit Nvml(std::unique_ptr<Library> library);
    std::unique_ptr<Library> library_;
};

}  // namespace sparkinfer
