// machine_report.h — what `sparkinfer doctor` says of the machine beside its GPU: what it is, which models
// fit, what stands in the way, with one line of advice each.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sparkinfer {

// What was seen; what nobody tells stays -1 or empty.
struct MachineFacts {
    std::string system;                   // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0-13-amd64"
    std::string cpu;                      // "AMD EPYC"
    int level = -1;                       // of x86-64: 4 has AVX-512, 3 AVX2
    int cores = 1, online = 1;            // physical ones that may be used; processors of the machine
    int64_t memory = -1, available = -1;  // bytes
    std::string models_folder;            // empty: there is no home
    bool models_writable = false;         // it, or the folder that it will be made in
    int64_t disk_free = -1;               // bytes there
    int64_t open_files = -1;              // descriptors that the process may have
    std::string huge_pages;               // "always", "madvise", "never"
};
MachineFacts survey_machine();

// A model on disk, and what it needs where it would compute.
struct ModelNeed {
    std::string name;
    int64_t weights = 0;          // bytes
    int64_t bytes_per_token = 0;  // of keys and values
    int32_t context = 0;          // the model's
    std::string trouble;          // why it is not run at all
};
// `room`: bytes at hand where it would compute, `where` the name of that.
std::string model_lines(const std::vector<ModelNeed>& models, int64_t room, const std::string& where);

// Each line "name  text\n"; "advice" belongs to the line above it.
std::string machine_lines(const MachineFacts& facts);
std::string limit_lines(const MachineFacts& facts);
std::string report_line(const char* name, const std::string& text);

}  // namespace sparkinfer
