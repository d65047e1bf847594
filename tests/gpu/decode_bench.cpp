// decode_bench.cpp — tokens per second of decode on the GPU, and where the time goes; or how a model is
// loaded.
//     gpu_bench MODEL [DEPTH] [ROWS]
//     gpu_bench MODEL load [TIMES]
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "cuda/backend.h"
#include "engine/engine.h"
#include "model/model.h"

using namespace sparkinfer;
using Clock = std::chrono::steady_clock;

static int fail(const Error& e) {
    fprintf(stderr, "%s\n", e.message.c_str());
    return int(e.kind);
}

static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}
static double mib(int64_t bytes) { return double(bytes) / (1 << 20); }

// Seconds of Engine::open and its parts, the host's and the device's memory; the plan beside what was taken.
static int load(const char* path) {
    auto backend = make_cuda_backend({});
    if (!backend.ok()) return fail(backend.error());
    const auto free_now = [&] { return (*backend)->plan({}, {}).value().available; };
    const auto opening = Clock::now();
    double planned_s = 0, placed_s = 0;
    int64_t before = 0, least = 0, sampled_at = 0;
    OpenObserver observer;
    observer.planned = [&](const MemoryPlan& plan) {
        planned_s = seconds_since(opening);
        before = least = plan.available;
        printf("plan: %s\n", memory_plan_text(plan).c_str());
    };
    observer.placed = [&](int64_t done, int64_t total) {
        placed_s = seconds_since(opening);
        if (done < sampled_at && done < total) return;
        sampled_at = done + total / 16;
        least = std::min(least, free_now());
    };
    EngineOptions options;
    options.context = 4096;
    const auto engine = Engine::open(path, **backend, options, observer);
    if (!engine.ok()) return fail(engine.error());
    const double all_s = seconds_since(opening);
    const int64_t after = free_now();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    printf("load %.2f s: files and plan %.2f, weights %.2f, memory and graphs %.2f\n", all_s, planned_s,
           placed_s - planned_s, all_s - placed_s);
    printf("host: at most %.0f MiB resident\n", mib(int64_t(usage.ru_maxrss) << 10));
    printf("device: at most %.1f MiB taken, %.1f MiB kept\n", mib(before - std::min(least, after)),
           mib(before - after));
    return 0;
}

static int run(const char* path, int depth, int rows, CudaOptions cuda, int answer) {
    auto backend = make_cuda_backend(cuda);
    if (!backend.ok()) return fail(backend.error());
    EngineOptions options;
    options.context = depth + answer + 128;
    options.slots = rows;
    const auto opening = Clock::now();
    auto engine = Engine::open(path, **backend, options);
    if (!engine.ok()) return fail(engine.error());
    printf("load %.2f s\n", seconds_since(opening));
    for (int r = 0; r < rows; ++r) {
        Request request;
        for (int i = 0; i < depth; ++i)
            request.prompt.push_back(
                TokenId((i * 7919 + r * 104729 + 13) % 100000 % (*engine)->shape().vocab));
        request.max_tokens = answer;
        request.sampling.temperature = 0;
        if (auto id = (*engine)->submit(request); !id.ok()) return fail(id.error());
    }
    std::vector<double> gaps;
    auto last = Clock::now();
    int tokens = 0;
    while (!(*engine)->idle()) {
        auto events = (*engine)->step();
        if (!events.ok()) return fail(events.error());
        int now = 0;
        for (const Event& e : *events) now += e.token.has_value();
        tokens += now;
        if (now == rows) {
            const auto t = Clock::now();
            gaps.push_back(std::chrono::duration<double>(t - last).count());
            last = t;
        } else if (now)
            last = Clock::now();
    }
    if (cuda.measure) {
        std::map<std::string, std::pair<double, int>> sums;
        double total = 0;
        const auto measured = cuda_measurements(**backend);
        if (!measured.ok()) return fail(measured.error());
        for (const CudaMeasurement& m : measured.value()) {
            if (m.count < 0)
                printf("  %3d %-14s %-24s %8.2f us\n", m.pc, m.op.c_str(), m.variant.c_str(), m.us);
            if (m.count < 8) continue;
            auto& s = sums[m.op + " " + m.variant];
            s.first += m.us;
            ++s.second;
            total += m.us;
            if (m.pc < 14 || m.pc > 235)
                printf("  %3d %-14s %-12s %8.2f us\n", m.pc, m.op.c_str(), m.variant.c_str(), m.us);
        }
        for (auto& [name, s] : sums)
            printf("  %-28s %4d launches %9.1f us, %6.2f each\n", name.c_str(), s.second, s.first,
                   s.first / s.second);
        printf("  sum %.1f us\n", total);
        return 0;
    }
    if (gaps.size() < 20) return 1;
    std::sort(gaps.begin() + 4, gaps.end());
    const double median = gaps[4 + (gaps.size() - 4) / 2];
    printf("%s: depth %d, rows %d: %.1f us a step, %.1f tok/s\n", path, depth, rows, median * 1e6,
           rows / median);
    return 0;
}

int main(int argc, char** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: gpu_bench MODEL [DEPTH] [ROWS] | gpu_bench MODEL load [TIMES]\n");
        return 2;
    }
    if (argc > 2 && std::string_view(argv[2]) == "load") {
        int rc = 0;
        for (int i = argc > 3 ? atoi(argv[3]) : 1; i > 0 && rc == 0; --i) rc = load(argv[1]);
        return rc;
    }
    const int depth = argc > 2 ? atoi(argv[2]) : 128, rows = argc > 3 ? atoi(argv[3]) : 1;
    if (int rc = run(argv[1], depth, rows, {}, 260)) return rc;
    if (int rc = run(argv[1], depth, rows, {.measure = true}, 60)) return rc;
    return run(argv[1], depth, rows, {.executor = CudaExecutor::op_by_op, .measure = true}, 24);
}
