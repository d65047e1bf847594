// safetensors.h — a model folder of the Hugging Face kind: config.json and one or more safetensors files.
// docs/formats.md shows the bytes and the tensor names of each quantised layout.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "load/checkpoint.h"

namespace sparkinfer {

// The checked tensor table of one file of `bytes`; touches no tensor data. `path` is for messages. The
// tensors' `data` point into `bytes`.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                    const std::string& path);

// Opens a folder with config.json and safetensors. model.safetensors.index.json decides which file holds
// which tensor; without it all *.safetensors files of the folder are read.
Result<std::unique_ptr<Checkpoint>> open_safetensors(const std::string& folder);

}  // namespace sparkinfer
