// model_facts.h — what a command must know of a model before (or without) opening an engine: no weights are
// read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "core/metadata.h"
#include "core/result.h"
#include "engine/engine.h"
#include "load/checkpoint.h"
#include "model/model.h"

namespace sparkinfer {

// How many tensors have a type, and their bytes.
struct TypeCount {
    std::string type;  // "Q4_K"
    int64_t tensors = 0, elements = 0, bytes = 0;
};
// By bytes, the largest first.
std::vector<TypeCount> quant_census(const std::vector<StoredTensor>& tensors);

struct ModelFacts {
    Metadata metadata;
    ModelShape shape;
    std::vector<std::string> files;  // paths of the weights' files, in their order
    int64_t file_bytes = 0;          // of all files
    int64_t tensor_bytes = 0;        // of all tensors
    int64_t tensor_elements = 0;
    std::string main_type;  // the type with most bytes
};

// Opens the files, checks configuration and tensors, closes them again.
Result<ModelFacts> model_facts(const std::string& path);
// The metadata alone: also of an architecture that cannot be run.
Result<Metadata> model_metadata(const std::string& path);

// Bytes of keys and values a token of context takes.
int64_t kv_bytes_per_token(const ModelShape& shape, DType type);

// The model's own context, cut to what fits into `memory` bytes beside the weights: whole pages of tokens.
int32_t context_that_fits(const ModelFacts& facts, int64_t memory, int64_t bytes_per_token);

// The --ctx of a run: what prompt and answer need, at most the model's own. Without a limit on the answer,
// the model's own, cut (with a warning) to what fits into `memory` bytes beside the weights.
struct ContextNeed {
    int64_t prompt = 0, answer = -1;    // tokens; -1: to the end token
    std::optional<int64_t> asked = {};  // --ctx
    int64_t memory = INT64_MAX;         // bytes at hand
    int64_t bytes_per_token = 0;
};
// Errors: --ctx beyond the model's context (usage), a prompt that leaves no room for an answer (bad input).
Result<int32_t> choose_context(const ModelFacts& facts, const ContextNeed& need);

// general.sampling.* of the file under the command line's. Errors: a value in the file that is out of range.
Result<SamplingParams> resolve_sampling(const SamplingOptions& options, const Metadata& metadata);

}  // namespace sparkinfer
