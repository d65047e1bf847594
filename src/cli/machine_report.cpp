#include "cli/machine_report.h"

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/machine.h"
#include "cli/model_store.h"
#include "cli/terminal.h"

namespace sparkinfer {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t(1) << 30;
constexpr int64_t kFilesForServe = 4096;    // fewer are soon used up by idle clients
constexpr int32_t kTokensTried = 4096;      // of context, for whether a model fits
constexpr int64_t kTemporaries = kGiB / 4;  // beside weights and context

std::string gib(int64_t bytes) { return fmt::format("{:.1f} GiB", double(bytes) / double(kGiB)); }

// The value of a line `key=value` or `key: value kB` of a small system file.
std::string value_in(const std::string& path, const std::string& key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        std::string value = line.substr(key.size());
        value.erase(0, value.find_first_not_of(" \"\t"));
        while (!value.empty() && (value.back() == '"' || value.back() == ' ')) value.pop_back();
        return value;
    }
    return "";
}

// "madvise" of "always [madvise] never".
std::string bracketed_word(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    const size_t open = line.find('['), close = line.find(']');
    return open == std::string::npos || close == std::string::npos ? ""
                                                                   : line.substr(open + 1, close - open - 1);
}

int level_of_cpu() {
    if (__builtin_cpu_supports("x86-64-v4")) return 4;
    if (__builtin_cpu_supports("x86-64-v3")) return 3;
    return __builtin_cpu_supports("x86-64-v2") ? 2 : 1;
}

// The folder itself, or the nearest one above it that exists.
fs::path existing_part(fs::path folder) {
    std::error_code trouble;
    while (!folder.empty() && folder != folder.root_path() && !fs::exists(folder, trouble))
        folder = folder.parent_path();
    return folder;
}

std::string instructions(int level) { return level >= 4 ? "AVX-512" : level == 3 ? "AVX2" : "no AVX2"; }

}  // namespace

MachineFacts survey_machine() {
    MachineFacts facts;
    facts.system = value_in("/etc/os-release", "PRETTY_NAME=");
    utsname name{};
    if (::uname(&name) == 0)
        facts.system += fmt::format("{}{} {}", facts.system.empty() ? "" : ", ", name.sysname, name.release);
    facts.cpu = cpu_name();
    facts.level = level_of_cpu();
    facts.cores = usable_cores();
    facts.online = int(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
    const std::string total = value_in("/proc/meminfo", "MemTotal:");
    if (!total.empty()) facts.memory = std::strtoll(total.c_str(), nullptr, 10) * 1024;
    const int64_t available = available_memory();
    if (available != INT64_MAX) facts.available = available;
    facts.models_folder = models_folder();
    if (!facts.models_folder.empty()) {
        const fs::path there = existing_part(facts.models_folder);
        facts.models_writable = ::access(there.c_str(), W_OK | X_OK) == 0 && fs::is_directory(there);
        std::error_code trouble;
        const fs::space_info space = fs::space(there, trouble);
        if (!trouble) facts.disk_free = int64_t(space.available);
    }
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0)
        facts.open_files = files.rlim_cur == RLIM_INFINITY ? INT64_MAX : int64_t(files.rlim_cur);
    facts.huge_pages = bracketed_word("/sys/kernel/mm/transparent_hugepage/enabled");
    return facts;
}

std::string report_line(const char* name, const std::string& text) {
    return fmt::format("{:<9} {}\n", name, text);
}

std::string machine_lines(const MachineFacts& f) {
    std::string text = report_line("system", f.system.empty() ? "not told" : f.system);
    text += report_line("cpu", fmt::format("{}, {}, {} cores usable", f.cpu, instructions(f.level), f.cores));
    if (f.level < 3)
        text += report_line("advice",
                            "the fast loops want AVX2: in a virtual machine, pass the host's CPU model on");
    std::string memory = f.available < 0 ? "not told" : gib(f.available) + " available";
    if (f.memory > 0 && f.available >= 0) memory += fmt::format(" of {}", gib(f.memory));
    text += report_line("memory", memory);
    if (f.available >= 0 && f.available < kGiB)
        text +=
            report_line("advice",
                        "close other programs, or raise the container's memory limit: under 1 GiB even small "
                        "models swap");
    return text;
}

std::string limit_lines(const MachineFacts& f) {
    std::string text;
    if (f.models_folder.empty()) {
        text += report_line("folder", "none: HOME and XDG_DATA_HOME are not set");
        text +=
            report_line("advice", "set HOME, or say `pull --to FOLDER`; chats keep no history without one");
    } else {
        std::string disk = f.disk_free >= 0 ? gib(f.disk_free) + " free" : "free space not told";
        text += report_line(
            "folder", fmt::format("{} in {}, where pull puts models", disk, terminal_safe(f.models_folder)));
        if (!f.models_writable)
            text +=
                report_line("advice",
                            "it cannot be written: say `pull --to FOLDER`, or set XDG_DATA_HOME to a folder "
                            "that can");
        else if (f.disk_free >= 0 && f.disk_free < kGiB)
            text += report_line("advice", "make room, or say `pull --to FOLDER` on another disk");
    }
    if (f.open_files >= 0) {
        text += report_line("files", f.open_files == INT64_MAX
                                         ? "any number may be open"
                                         : fmt::format("{} may be open at once", f.open_files));
        if (f.open_files < kFilesForServe)
            text +=
                report_line("advice", "`ulimit -n 8192` before `sparkinfer serve`: each client takes one");
    }
    if (f.huge_pages == "never") {
        text += report_line("pages", "large ones are off");
        text += report_line("advice", "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    }
    return text;
}

std::string model_lines(const std::vector<ModelNeed>& models, int64_t room, const std::string& where) {
    std::string text;
    for (const ModelNeed& model : models) {
        const std::string name = terminal_safe(model.name);
        if (!model.trouble.empty()) {
            text +=
                report_line("model", fmt::format("{} does not run: {}", name, terminal_safe(model.trouble)));
            continue;
        }
        const int64_t tokens = std::min(model.context, kTokensTried);
        const int64_t needed = model.weights + tokens * model.bytes_per_token + kTemporaries;
        const bool fits = room < 0 || needed <= room;
        text += report_line("model", fmt::format("{} {} {}: about {} with {} tokens of context", name,
                                                 fits ? "fits" : "does not fit", where, gib(needed), tokens));
        if (fits) continue;
        const int64_t left =
            model.bytes_per_token > 0 ? (room - model.weights - kTemporaries) / model.bytes_per_token : 0;
        text += report_line(
            "advice", left >= 256 ? fmt::format("--ctx {} fits", left / 64 * 64)
                                  : fmt::format("a file with smaller weights (`sparkinfer quantize`), or {} "
                                                "more memory",
                                                gib(needed - room)));
    }
    if (!models.empty()) return text;
    return report_line("model", "none was found in the usual folders") +
           report_line(
               "advice",
               "`sparkinfer pull` lists what can be obtained; any GGUF file will do: sparkinfer chat FILE");
}

}  // namespace sparkinfer
