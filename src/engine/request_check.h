// request_check.h — the range of every number a caller may give.
#pragma once
#include "engine/engine.h"
#include "model/model.h"

namespace sparkinfer {

constexpr int32_t kMaxSalt = 1024;  // bytes of Request::cache_salt

// One sentence naming the first parameter that is out of range, the value and the range.
Result<void> check_sampling(const SamplingParams& sampling, int32_t vocab);
Result<void> check_request(const Request& request, const EngineOptions& options, const ModelShape& shape);
Result<void> check_tokens(std::span<const TokenId> tokens, const char* what, int32_t vocab);

// Fills in the zeros. Errors: values out of range, or contradictory, with both numbers.
// `chunk`: what suits the backend.
Result<EngineOptions> resolve_options(EngineOptions options, const ModelShape& shape, int32_t pipeline,
                                      int32_t chunk);

// Recurrent states that the prefix cache may keep, beside those of live sequences; fills in the zero. Errors:
// a budget of less than one.
Result<int32_t> checkpoint_slots(EngineOptions& options, const ModelShape& shape, const BackendInfo& backend);

}  // namespace sparkinfer
