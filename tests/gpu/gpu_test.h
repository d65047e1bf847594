// gpu_test.h — what the command line of gpu_test gives its tests.
#pragma once
#include <string>
#include <vector>

namespace sparkinfer::test {

struct GpuTestOptions {
    std::string models;  // --models=FOLDER: whole models are compared with the CPU
    std::string tokens;  // --tokens=FILE.npy: int32 ids of a text, for SmolLM2
};
const GpuTestOptions& gpu_test_options();

// *.gguf and folders of safetensors in --models, by name; without the default model (SmolLM2).
std::vector<std::string> small_models();

}  // namespace sparkinfer::test
