// hf_folder.h — what a model folder says besides its tensors: which file holds which tensor, and the texts
// that become metadata.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"

namespace sparkinfer {

// config.json flattened under "config." (nested objects joined by dots; null, nested arrays and objects
// inside arrays left out), and each of the folder's texts whole under its file name: config.json,
// generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja, hf_quant_config.json.
Result<Metadata> read_folder_metadata(const std::string& folder);

// The safetensors files to read, relative to the folder, and which tensors each holds.
struct TensorFiles {
    std::vector<std::string> names;
    bool indexed = false;                       // false: every tensor of every file counts
    std::map<std::string, std::string> holder;  // tensor -> file, from the index
};
Result<TensorFiles> find_tensor_files(const std::string& folder);

}  // namespace sparkinfer
