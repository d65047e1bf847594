// model_service.h — the service over one engine: Service made real.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/metadata.h"
#include "server/engine_thread.h"
#include "server/service.h"
#include "server/transcript.h"

namespace sparkinfer {

struct ServiceOptions {
    std::string id;  // the model's name
    std::vector<std::string> aliases = {};
    int32_t trained_context = 0, vocab = 0;   // the model's
    SamplingParams sampling = {};             // what requests leave unsaid; its seed is not used
    size_t replay_bytes = size_t(256) << 20;  // of remembered answers
};

class ModelService : public Service {
  public:
    // `engine` must outlive the service. Errors: a tokenizer or a template that cannot be read.
    static Result<std::unique_ptr<ModelService>> make(EngineThread& engine, ServiceOptions options);
};

}  // namespace sparkinfer
