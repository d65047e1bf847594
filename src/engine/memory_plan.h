// memory_plan.h — what a model will take of a backend's memory, known before any of it is taken.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>

#include "core/result.h"

namespace sparkinfer {

// All in bytes, but for the counts.
struct MemoryPlan {
    std::string backend;     // "cuda"
    int32_t context = 0;     // most tokens of one sequence
    int32_t sequences = 1;   // at once
    int64_t weights = 0;     // 0: they stay in the memory map of their files
    int64_t staging = 0;     // beside the weights while they are placed, given back before the rest is taken
    int64_t kv = 0;          // keys and values
    int64_t state = 0;       // recurrent states
    int64_t arena = 0;       // temporaries of a step
    int64_t scratch = 0;     // what the ops of a step need beside them
    int64_t graphs = 0;      // captured tapes and their kernels' code, estimated
    int64_t rest = 0;        // slots, step image, results
    int64_t available = -1;  // on the device, before any of it; -1: unknown

    int64_t kept() const { return weights + kv + state + arena + scratch + graphs + rest; }
    int64_t most() const { return std::max(kept(), weights + staging); }  // at once
};

// "21.4 GiB of 139.2 GiB free: weights 20.6 GiB, KV 640.0 MiB, …; 34.0 MiB of scratch while loading": parts
// of nothing are left out.
std::string memory_plan_text(const MemoryPlan& plan);

// Refuses a plan that does not fit, with its numbers and with what would: `at_context` is the plan for a
// shorter context, which never takes more than that for a longer one.
Result<void> check_memory(const MemoryPlan& plan,
                          const std::function<MemoryPlan(int32_t context)>& at_context);

}  // namespace sparkinfer
