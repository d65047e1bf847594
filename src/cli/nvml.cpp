// The types and numbers are those of nvml.h of the driver's library, whose ABI is fixed by the _v2, _v3 of
// its names.
#include "cli/nvml.h"

#include <dlfcn.h>

namespace sparkinfer {

namespace {

using Device = void*;
constexpr int kSuccess = 0, kClockSm = 1, kSensorGpu = 0;

struct MemoryInfo {
    unsigned long long total, free, used;  // bytes
};
struct PciInfo {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t as nvmlDeviceGetPciInfo_v3 fills it");

}  // namespace

struct Nvml::Library {
    void* handle = nullptr;
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*driver)(char*, unsigned) = nullptr;
    int (*cuda_version)(int*) = nullptr;
    int (*count)(unsigned*) = nullptr;
    int (*by_index)(unsigned, Device*) = nullptr;
    int (*by_bus_id)(const char*, Device*) = nullptr;
    int (*name)(Device, char*, unsigned) = nullptr;
    int (*pci)(Device, PciInfo*) = nullptr;
    int (*capability)(Device, int*, int*) = nullptr;
    int (*memory)(Device, MemoryInfo*) = nullptr;
    int (*clock)(Device, int, unsigned*) = nullptr;
    int (*temperature)(Device, int, unsigned*) = nullptr;
    bool initialised = false;

    ~Library() {
        if (initialised) shutdown();
        if (handle) ::dlclose(handle);
    }
    template <class F>
    bool find(const char* symbol, F*& function) {
        function = reinterpret_cast<F*>(::dlsym(handle, symbol));
        return function != nullptr;
    }
    bool load() {
        handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        return handle && find("nvmlInit_v2", init) && find("nvmlShutdown", shutdown) &&
               find("nvmlSystemGetDriverVersion", driver) &&
               find("nvmlSystemGetCudaDriverVersion_v2", cuda_version) &&
               find("nvmlDeviceGetCount_v2", count) && find("nvmlDeviceGetHandleByIndex_v2", by_index) &&
               find("nvmlDeviceGetHandleByPciBusId_v2", by_bus_id) && find("nvmlDeviceGetName", name) &&
               find("nvmlDeviceGetPciInfo_v3", pci) &&
               find("nvmlDeviceGetCudaComputeCapability", capability) &&
               find("nvmlDeviceGetMemoryInfo", memory) && find("nvmlDeviceGetClockInfo", clock) &&
               find("nvmlDeviceGetTemperature", temperature);
    }

    GpuFacts facts(Device device) const {
        GpuFacts gpu;
        char text[96] = "";
        if (name(device, text, sizeof text) == kSuccess) gpu.name = text;
        PciInfo where{};
        if (pci(device, &where) == kSuccess) gpu.bus_id = canonical_bus_id(where.bus_id);
        int major = 0, minor = 0;
        if (capability(device, &major, &minor) == kSuccess) gpu.major = major, gpu.minor = minor;
        MemoryInfo bytes{};
        if (memory(device, &bytes) == kSuccess)
            gpu.memory = int64_t(bytes.total), gpu.free = int64_t(bytes.free);
        unsigned value = 0;
        if (clock(device, kClockSm, &value) == kSuccess) gpu.sm_mhz = int32_t(value);
        if (temperature(device, kSensorGpu, &value) == kSuccess) gpu.celsius = int32_t(value);
        return gpu;
    }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::open() {
    auto library = std::make_unique<Library>();
    if (!library->load() || library->init() != kSuccess) return nullptr;
    library->initialised = true;
    return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

std::string Nvml::driver() const {
    char text[80] = "";
    return library_->driver(text, sizeof text) == kSuccess ? text : "";
}

int32_t Nvml::cuda_version() const {
    int version = 0;
    return library_->cuda_version(&version) == kSuccess ? version : 0;
}

std::vector<GpuFacts> Nvml::gpus() const {
    std::vector<GpuFacts> all;
    unsigned count = 0;
    if (library_->count(&count) != kSuccess) return all;
    for (unsigned i = 0; i < count; ++i) {
        Device device = nullptr;
        if (library_->by_index(i, &device) == kSuccess) all.push_back(library_->facts(device));
    }
    return all;
}

GpuFacts Nvml::at(const std::string& bus_id) const {
    Device device = nullptr;
    if (bus_id.empty() || library_->by_bus_id(bus_id.c_str(), &device) != kSuccess) return {};
    return library_->facts(device);
}

}  // namespace sparkinfer
