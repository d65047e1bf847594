#include "cli/machine.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <new>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

namespace sparkinfer {

namespace {

// The first word-separated number of a small system file; `missing` when there is none.
int64_t number_in(const std::string& path, int64_t missing) {
    std::ifstream file(path);
    int64_t value = 0;
    return file >> value ? value : missing;
}

// This process's folder in the hierarchy of control groups, version 2; "" when there is none.
std::string cgroup_folder() {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);)
        if (line.rfind("0::", 0) == 0)
            return "/sys/fs/cgroup" + (line.substr(3) == "/" ? "" : line.substr(3));
    return "";
}

// Whole cores of a container's CPU quota, rounded up; INT_MAX without one.
int quota_cores() {
    const std::string folder = cgroup_folder();
    std::ifstream file(folder + "/cpu.max");
    double quota = 0, period = 0;
    if (folder.empty() || !(file >> quota >> period) || quota <= 0 || period <= 0) return INT32_MAX;
    return std::max(1, int((quota + period - 1) / period));
}

}  // namespace

int usable_cores() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return std::max(1, int(std::thread::hardware_concurrency()));
    std::set<std::pair<int64_t, int64_t>> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        cores.emplace(number_in(folder + "physical_package_id", 0), number_in(folder + "core_id", -1 - cpu));
    }
    return std::clamp(int(cores.size()), 1, quota_cores());
}

int64_t available_memory() {
    int64_t available = INT64_MAX;
    std::ifstream file("/proc/meminfo");
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name;
        int64_t kib = 0;
        if (words >> name >> kib && name == "MemAvailable:") available = kib * 1024;
    }
    const std::string folder = cgroup_folder();
    const int64_t limit = folder.empty() ? -1 : number_in(folder + "/memory.max", -1);
    if (limit >= 0)
        available =
            std::min(available, std::max<int64_t>(0, limit - number_in(folder + "/memory.current", 0)));
    return available;
}

int64_t peak_resident_bytes() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss) * 1024;
}

double read_bandwidth(int threads) {
    constexpr size_t kBytes = size_t(64) << 20;  // a thread
    constexpr int kPasses = 5;
    const size_t words = kBytes / sizeof(uint64_t);
    std::vector<std::unique_ptr<uint64_t[]>> buffers;
    for (int i = 0; i < threads; ++i) {
        buffers.emplace_back(new (std::nothrow) uint64_t[words]);
        if (!buffers.back()) return 0;
        std::fill_n(buffers.back().get(), words, uint64_t(i) * 0x9e3779b97f4a7c15u);
    }
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        std::vector<uint64_t> sums(size_t(threads) * 8);  // a cache line each
        const auto start = std::chrono::steady_clock::now();
        const auto read = [&](int i) {
            uint64_t sum[8] = {};
            const uint64_t* data = buffers[size_t(i)].get();
            for (size_t k = 0; k < words; k += 8)
                for (size_t lane = 0; lane < 8; ++lane) sum[lane] ^= data[k + lane];
            for (const uint64_t lane : sum) sums[size_t(i) * 8] ^= lane;
        };
        std::vector<std::thread> workers;
        bool all_started = true;
        try {
            for (int i = 0; i < threads; ++i) workers.emplace_back(read, i);
        } catch (const std::system_error&) {
            all_started = false;  // no thread is left; the backend will meet the same
        }
        for (std::thread& worker : workers) worker.join();
        if (!all_started) return 0;
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        volatile uint64_t keep = sums[0];  // the sums are used, so that the reads are not optimised away
        (void)keep;
        best = std::max(best, double(threads) * double(kBytes) / seconds);
    }
    return best;
}

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(": ");
        if (colon != std::string::npos && line.rfind("model name", 0) == 0) return line.substr(colon + 2);
    }
    return "unknown";
}

}  // namespace sparkinfer
