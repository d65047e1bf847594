// served_model.h — the model behind a server: backend, engine on its thread, tokenizer, service.
#pragma once
#include <memory>
#include <string>

#include "cli/commands.h"
#include "server/engine_thread.h"
#include "server/service.h"

namespace sparkinfer {

struct ServedModel {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<EngineThread> engine;
    std::unique_ptr<Service> service;
    int64_t page_bytes = 0;  // of a KV page, in all layers

    // Takes as long as loading does.
    static Result<std::unique_ptr<ServedModel>> open(const ServeOptions& options, const Session& session);
};

// "models/Qwen3.6-35B-A3B-Q4_K_M-00001-of-00002.gguf" → "Qwen3.6-35B-A3B-Q4_K_M": a name without slashes,
// which some clients take for more than a name.
std::string model_id(const std::string& path);

}  // namespace sparkinfer
