// load_bench.cpp — how long loading a model onto the GPU takes, and what memory.
//     gpu_load_bench MODEL [TIMES]
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "cuda/backend.h"
#include "engine/engine.h"

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

int main(int argc, char** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: gpu_load_bench MODEL [TIMES]\n");
        return 2;
    }
    int rc = 0;
    for (int i = argc > 2 ? atoi(argv[2]) : 1; i > 0 && rc == 0; --i) rc = load(argv[1]);
    return rc;
}
