// doctor.cpp — `sparkinfer doctor`: what this machine is, whether its GPU is used, which models fit, what is
// missing.
#include "cli/doctor.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/commands.h"
#include "cli/machine_report.h"
#include "cli/model_store.h"
#include "cli/nvml.h"
#include "cli/version.h"

namespace sparkinfer {

namespace {

constexpr int32_t kCudaNeeded = 13000;  // CUDA 13.0
constexpr int kDriverNeeded = 580;      // the first series that supports it

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// "580.159.03" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue …": the first word with a
// dot that starts with a digit.
std::string kernel_driver() {
    std::istringstream words(first_line("/proc/driver/nvidia/version"));
    for (std::string word; words >> word;)
        if (word[0] >= '0' && word[0] <= '9' && word.find('.') != std::string::npos) return word;
    return "";
}

// A display or 3D controller (class 0x03…) of vendor 0x10de.
bool on_pci_bus() {
    std::error_code trouble;
    for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices", trouble))
        if (first_line(device.path() / "vendor") == "0x10de" &&
            first_line(device.path() / "class").rfind("0x03", 0) == 0)
            return true;
    return false;
}

int series_of(const std::string& driver) {
    int series = 0;
    std::from_chars(driver.data(), driver.data() + driver.size(), series);
    return series;
}

std::string cuda_text(int32_t version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }
std::string gib(int64_t bytes) { return fmt::format("{:.1f}", double(bytes) / double(int64_t(1) << 30)); }

std::string line(const char* name, const std::string& text) { return report_line(name, text); }

std::string driver_line(const GpuSurvey& s) {
    if (s.driver.empty() && s.cuda_version == 0) return line("driver", "no NVIDIA driver was found");
    std::string text = s.driver.empty() ? "NVIDIA, version not told" : "NVIDIA " + s.driver;
    if (s.cuda_version > 0) text += ", supports CUDA " + cuda_text(s.cuda_version);
    return line("driver", text);
}

std::string gpu_line(const GpuSurvey& s, const GpuFacts& gpu) {
    std::string text = gpu.name.empty() ? "a GPU that does not tell its name" : gpu.name;
    if (!gpu.bus_id.empty()) text += " at " + gpu.bus_id;
    if (gpu.major > 0) text += fmt::format(", compute capability {}.{}", gpu.major, gpu.minor);
    if (gpu.free >= 0 && gpu.memory >= 0)
        text += fmt::format(", {} of {} GiB free", gib(gpu.free), gib(gpu.memory));
    if (gpu.sm_mhz >= 0) text += fmt::format(", {} MHz", gpu.sm_mhz);
    if (gpu.celsius >= 0) text += fmt::format(", {} °C", gpu.celsius);
    if (s.cuda.built)
        text += gpu.has_code ? "; this program has code for it" : "; this program has no code for it";
    return line("gpu", text);
}

std::string program_line(const CudaView& cuda) {
    std::string code = "without CUDA";
    if (cuda.built) code = "CUDA code for sm_" + cuda.targets;
    for (size_t at = 0; (at = code.find(',', at)) != std::string::npos;) code.replace(at, 1, " and sm_");
    return line("program", fmt::format("{}, {}", version_text(), code));
}

// The models in the usual folders, and what they need on the GPU (or else the host).
std::vector<ModelNeed> needs(bool on_gpu) {
    std::vector<ModelNeed> models;
    for (const FoundModel& found : find_usual_models()) {
        ModelNeed need{found.path, 0, 0, 0, found.trouble};
        if (found.facts) {
            need.weights = found.facts->tensor_bytes;
            need.bytes_per_token = kv_bytes_per_token(found.facts->shape, on_gpu ? DType::bf16 : DType::f32);
            need.context = found.facts->shape.context;
        }
        models.push_back(std::move(need));
    }
    return models;
}

}  // namespace

GpuSurvey survey_gpus(const CudaView& cuda) {
    GpuSurvey s;
    s.cuda = cuda;
    s.pci = on_pci_bus();
    s.driver = kernel_driver();
    s.cuda_version = cuda.driver;
    s.gpus = cuda.gpus;
    const std::unique_ptr<Nvml> nvml = Nvml::open();
    if (!nvml) return s;
    if (const std::string told = nvml->driver(); !told.empty()) s.driver = told;
    if (s.cuda_version == 0) s.cuda_version = nvml->cuda_version();
    for (const GpuFacts& seen : nvml->gpus()) {
        const auto same = std::find_if(s.gpus.begin(), s.gpus.end(), [&](const GpuFacts& gpu) {
            return !gpu.bus_id.empty() && gpu.bus_id == seen.bus_id;
        });
        if (same == s.gpus.end()) {
            s.gpus.push_back(seen);
        } else {
            same->sm_mhz = seen.sm_mhz;
            same->celsius = seen.celsius;
        }
    }
    return s;
}

GpuVerdict judge(const GpuSurvey& s) {
    const CudaView& cuda = s.cuda;
    if (cuda.built && cuda.obstacle.empty()) return {true, "", ""};
    const bool old_series = series_of(s.driver) > 0 && series_of(s.driver) < kDriverNeeded;
    if (s.driver.empty() && s.cuda_version == 0) {
        if (s.pci)
            return {false, "an NVIDIA GPU is on the PCI bus, but no NVIDIA driver is installed",
                    "install NVIDIA's driver of the 580 series or newer; in a container, pass the GPU on "
                    "(docker run --gpus all)"};
        return {
            false, "neither an NVIDIA GPU nor an NVIDIA driver was found",
            "none is needed where there is no such GPU; else install NVIDIA's driver of the 580 series or "
            "newer"};
    }
    if (s.cuda_version > 0 ? s.cuda_version < kCudaNeeded : old_series)
        return {false,
                fmt::format("the NVIDIA driver {} supports CUDA {}, expected CUDA 13.0 or newer", s.driver,
                            s.cuda_version > 0 ? cuda_text(s.cuda_version) : "12 or older"),
                "install NVIDIA's driver of the 580 series or newer"};
    if (s.gpus.empty())
        return {false, "the NVIDIA driver sees no GPU",
                "look whether nvidia-smi lists one; in a container, pass it on (docker run --gpus all); "
                "CUDA_VISIBLE_DEVICES may hide it"};
    const GpuFacts& first = s.gpus.front();
    if (first.major > 0 && !gpu_supported(first.major, first.minor))
        return {false,
                fmt::format("{} has compute capability {}.{}, expected 9.0, 12.0 or 12.1", first.name,
                            first.major, first.minor),
                "there is no code for this generation of GPUs: use the CPU, or a Hopper or Blackwell GPU"};
    if (!cuda.built)
        return {false, "this program was built without the CUDA backend",
                "`make cuda` builds build/cuda/sparkinfer, which has it"};
    if (!cuda.gpus.empty() && !first.has_code)
        return {false, cuda.obstacle,
                "build with both code generations: cmake --preset cuda "
                "-DSPARKINFER_CUDA_TARGETS='90a;120f', then make cuda"};
    return {false, cuda.obstacle,
            "look whether nvidia-smi works, and whether libcuda.so.1 is installed; in a container, pass both "
            "on (docker run --gpus all)"};
}

std::string gpu_report(const GpuSurvey& s) {
    std::string text = driver_line(s);
    for (const GpuFacts& gpu : s.gpus) text += gpu_line(s, gpu);
    if (s.gpus.empty())
        text += line("gpu", s.pci ? "one of NVIDIA on the PCI bus, without a driver" : "none");
    const GpuVerdict verdict = judge(s);
    if (verdict.used) {
        const std::string name = s.cuda.gpus.empty() ? "the GPU" : s.cuda.gpus.front().name;
        return text + line("computes", fmt::format("on {}, which --backend auto takes", name));
    }
    return text + line("computes", "on the CPU; no GPU is used: " + verdict.why) +
           line("advice", verdict.advice);
}

Result<int> run_command(const DoctorOptions& o, Session& session) {
    const CudaView cuda = session.backends.look_at_cuda();
    const GpuSurvey survey = survey_gpus(cuda);
    const MachineFacts machine = survey_machine();
    const GpuVerdict verdict = judge(survey);
    const bool on_gpu = verdict.used && !survey.cuda.gpus.empty();
    const int64_t room = on_gpu ? survey.cuda.gpus.front().free : machine.available;
    TRY_VOID(session.out.write(program_line(cuda) + machine_lines(machine) + gpu_report(survey) +
                               model_lines(needs(on_gpu), room, on_gpu ? "onto the GPU" : "into memory") +
                               limit_lines(machine)));
    if (o.backend == "cuda" && !verdict.used)
        return out_of_resources("--backend is 'cuda', but no GPU can be used: {}", verdict.why);
    return 0;
}

}  // namespace sparkinfer
