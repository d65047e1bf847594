// model_store.h — models on disk: where pulled ones lie, which files are known, what there is.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_facts.h"
#include "core/result.h"

namespace sparkinfer {

// Where `pull` puts models: sparkinfer/models below $XDG_DATA_HOME or ~/.local/share; empty without a home.
std::string models_folder();

// MODEL as a user writes it, as a path: what exists is taken as it is; else a word without a slash is looked
// for among the pulled models: by its file's name, that name without ".gguf", or its name in the built-in
// manifest. Not found: the word itself. Errors: a name of the built-in manifest that was not pulled.
Result<std::string> find_model(const std::string& word);

// A file as a manifest knows it.
struct KnownFile {
    std::string file;  // its name, without a folder
    uint64_t bytes = 0;
    std::string sha256;  // 64 hexadecimal digits in lower case
};
struct KnownModel {
    std::string name, note;
    std::vector<KnownFile> files;  // the first is the one to open
};
// Files that have been seen and hashed.
std::vector<KnownModel> built_in_manifest();
// {"models": [{"name", "files": [{"file", "bytes", "sha256"}]}]}. Errors name the field.
Result<std::vector<KnownModel>> read_manifest(const std::string& path);

// A model that was found.
struct FoundModel {
    std::string path;
    std::optional<ModelFacts> facts;
    std::string trouble;  // why there are no facts: it cannot be read, or not be run
};
// GGUF files (of a split one its first piece) and folders with config.json and safetensors, sorted by path,
// at most `depth` folders below `folder`. Errors: a folder that cannot be read.
Result<std::vector<FoundModel>> find_models(const std::string& folder, int depth);
// In the folders where models usually lie: that of pull, models/ and the working folder.
std::vector<FoundModel> find_usual_models();

}  // namespace sparkinfer
