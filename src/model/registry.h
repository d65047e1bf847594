// registry.h — the architectures: one loader each, one row each in registry.cpp.
#pragma once
#include <memory>

#include "model/config.h"
#include "model/model.h"

namespace sparkinfer {

Result<std::unique_ptr<Model>> load_llama(Checkpoint& checkpoint, const Config& config);
Result<std::unique_ptr<Model>> load_qwen35(Checkpoint& checkpoint, const Config& config);

}  // namespace sparkinfer
