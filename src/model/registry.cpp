#include "model/registry.h"

#include "core/check.h"

namespace sparkinfer {
namespace {

struct Entry {
    const char* gguf;  // general.architecture
    const char* hf;    // config.json model_type
    Result<std::unique_ptr<Model>> (*load)(Checkpoint&, const Config&);
};
constexpr Entry kArchitectures[] = {
    {"llama", "llama", load_llama},
    {"qwen3", "qwen3", load_llama},
    {"qwen3moe", "qwen3_moe", load_llama},
    {"qwen35", "qwen3_5", load_qwen35},
    {"qwen35", "qwen3_5_text", load_qwen35},
    {"qwen35moe", "qwen3_5_moe", load_qwen35},
    {"qwen35moe", "qwen3_5_moe_text", load_qwen35},
};

}  // namespace

Result<std::unique_ptr<Model>> load_model(Checkpoint& checkpoint) {
    const Metadata& m = checkpoint.metadata();
    const bool hf = checkpoint.container() == Container::safetensors;
    TRY(std::string name, m.require_string(hf ? "config.model_type" : "general.architecture"));
    std::string known;
    for (const Entry& e : kArchitectures) {
        const std::string word = hf ? e.hf : e.gguf;
        if (name == word) {
            TRY(Config config, read_config(checkpoint, e.gguf));
            return e.load(checkpoint, config);
        }
        if (!known.ends_with(word)) known += (known.empty() ? "" : ", ") + word;
    }
    return bad_input("{}: architecture '{}' is not supported, expected one of {}", m.source(), name, known);
}

}  // namespace sparkinfer
