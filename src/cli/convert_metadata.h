// convert_metadata.h — what a Hugging Face folder's config.json and tokenizer say, as GGUF metadata.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"
#include "model/config.h"

namespace sparkinfer {

using GgufPairs = std::vector<std::pair<std::string, std::string>>;  // key, value as gguf_writer.h makes them

// Hyper-parameters and defaults of sampling. `name` is general.name. Errors: a fact that GGUF has no key for.
Result<GgufPairs> convert_hyperparameters(const Metadata& folder, const Config& config, int32_t mtp_layers,
                                          const std::string& name);

// Vocabulary, merges, kinds of tokens, special ids and chat template. Errors: a tokenizer other than
// byte-level BPE, or with a pre-tokenizer that has no name in GGUF files.
Result<GgufPairs> convert_tokenizer(const Metadata& folder, int32_t vocab);

}  // namespace sparkinfer
