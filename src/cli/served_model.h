// served_model.h — the model behind a server: backend, engine on its thread, tokenizer, service.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/serve_sizes.h"
#include "server/engine_thread.h"
#include "server/service.h"

namespace sparkinfer {

struct ServedModel {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<EngineThread> engine;
    std::unique_ptr<Service> service;

    // Answers under way are the service's, and end before it.
    ~ServedModel() {
        if (engine) engine->stop();
    }
    int64_t page_bytes = 0;  // of a KV page, in all layers

    // Takes as long as loading does. `sizes` says how much of what the engine gets.
    using Sizes = std::function<Result<EngineOptions>(const ServeOptions&, const ServeMachine&)>;
    static Result<std::unique_ptr<ServedModel>> open(const ServeOptions& options, const Session& session,
                                                     const Sizes& sizes = serve_sizes);
};

// "models/Qwen3.6-35B-A3B-Q4_K_M-00001-of-00002.gguf" → "Qwen3.6-35B-A3B-Q4_K_M": a name without slashes,
// which some clients take for more than a name.
std::string model_id(const std::string& path);

}  // namespace sparkinfer
