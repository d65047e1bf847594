#include "engine/memory_plan.h"

#include "engine/kv_cache.h"

namespace sparkinfer {
namespace {

std::string in_words(int64_t bytes) {
    const double mib = double(bytes) / (1 << 20);
    return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.1f} GiB", mib / 1024);
}

std::string parts_text(const MemoryPlan& plan) {
    const std::pair<const char*, int64_t> parts[] = {
        {"weights", plan.weights},        {"KV pages", plan.kv},
        {"recurrent states", plan.state}, {"temporaries", plan.arena},
        {"kernel scratch", plan.scratch}, {"graphs", plan.graphs},
        {"the rest", plan.rest},
    };
    std::string text;
    for (const auto& [name, bytes] : parts)
        if (bytes > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, in_words(bytes));
    return text;
}

// The largest context, in whole pages, whose plan fits; 0: none.
int32_t largest_context(const MemoryPlan& plan, const std::function<MemoryPlan(int32_t)>& at_context) {
    int32_t fits = 0, too_many = pages_for(plan.context);  // pages
    while (too_many - fits > 1) {
        const int32_t pages = fits + (too_many - fits) / 2;
        (at_context(pages * kPageTokens).most() <= plan.available ? fits : too_many) = pages;
    }
    return fits * kPageTokens;
}

}  // namespace

std::string memory_plan_text(const MemoryPlan& plan) {
    std::string text = in_words(plan.kept());
    if (plan.available >= 0) text += fmt::format(" of {} free", in_words(plan.available));
    text += ": " + parts_text(plan);
    if (plan.staging > 0) text += fmt::format("; while loading {} of scratch", in_words(plan.staging));
    return text;
}

Result<void> check_memory(const MemoryPlan& plan, const std::function<MemoryPlan(int32_t)>& at_context) {
    if (plan.available < 0 || plan.most() <= plan.available) return {};
    const int32_t context = largest_context(plan, at_context);
    const std::string advice = context > 0
                                   ? fmt::format("a context of {} tokens fits{}", context,
                                                 plan.sequences > 1 ? ", and so may fewer sequences" : "")
                               : plan.weights + plan.staging > plan.available ? "the weights alone do not fit"
                                                                              : "no context fits";
    return out_of_resources("{} sequence{} of {} tokens need{} {} ({}) and {} has {} free: {}",
                            plan.sequences, plan.sequences == 1 ? "" : "s", plan.context,
                            plan.sequences == 1 ? "s" : "", in_words(plan.most()), parts_text(plan),
                            plan.backend, in_words(plan.available), advice);
}

}  // namespace sparkinfer
