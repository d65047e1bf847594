// serve_sizes.h — how much of what a server's engine gets.
#pragma once
#include "cli/options.h"
#include "engine/engine.h"

namespace sparkinfer {

// What the sizes are chosen from; bytes, but for the context.
struct ServeMachine {
    int64_t memory = 0;           // at hand where the model computes, before any of it is taken
    int64_t host_memory = 0;      // at hand on the host
    int64_t weights = 0;          // of the model
    int64_t bytes_per_token = 0;  // of keys and values
    int32_t trained_context = 0;  // the file's
    bool on_host = true;          // it computes there
};

// Errors: a context beyond the file's (usage), one that does not fit, with the numbers and what would fit
// (resources).
Result<EngineOptions> serve_sizes(const ServeOptions& options, const ServeMachine& machine);

}  // namespace sparkinfer
