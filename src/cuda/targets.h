// targets.h — which GPUs the code generations of this build run on. No CUDA in it.
#pragma once
#include <string_view>

namespace sparkinfer::cuda {

// A target as nvcc names it: "90a" runs on that compute capability alone, "120f" on it and later ones of its
// family (12.x), "90" likewise. Anything else runs nowhere.
constexpr bool target_runs_on(std::string_view target, int major, int minor) {
    int number = 0;
    size_t digits = 0;
    while (digits < target.size() && target[digits] >= '0' && target[digits] <= '9')
        number = number * 10 + (target[digits++] - '0');
    const std::string_view suffix = target.substr(digits);
    if (digits == 0 || number / 10 != major) return false;
    if (suffix == "a") return number % 10 == minor;
    return (suffix.empty() || suffix == "f") && number % 10 <= minor;
}

// The same of a comma list, "90a,120f".
constexpr bool targets_run_on(std::string_view targets, int major, int minor) {
    while (!targets.empty()) {
        const size_t comma = targets.find(',');
        if (target_runs_on(targets.substr(0, comma), major, minor)) return true;
        targets = comma == std::string_view::npos ? "" : targets.substr(comma + 1);
    }
    return false;
}

static_assert(targets_run_on("90a,120f", 9, 0) && targets_run_on("90a,120f", 12, 0) &&
              targets_run_on("120f", 12, 1));
static_assert(!targets_run_on("90a,120f", 8, 0) && !targets_run_on("90a,120f", 10, 0) &&
              !targets_run_on("90a", 12, 0));
static_assert(!target_runs_on("120a", 12, 1) && !target_runs_on("121f", 12, 0) && !target_runs_on("", 0, 0));

}  // namespace sparkinfer::cuda
