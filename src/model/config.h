// config.h — hyper-parameters as the files state them: GGUF keys ("qwen35.embedding_length") or config.json
// ("config.hidden_size"), read into one struct. Nothing is assumed that a file must say.
#pragma once
#include <string>
#include <vector>

#include "core/metadata.h"
#include "load/checkpoint.h"

namespace sparkinfer {

struct RopeConfig {
    double theta = 10000;
    int32_t dims = 0;          // rotated entries of a head
    int32_t sections[3] = {};  // interleaved multi-axis positions; all 0: one axis
    std::string scaling;       // "", "linear", "yarn", "llama3"
    double factor = 1;
    double original_context = 0;
    double beta_fast = 32, beta_slow = 1;                        // yarn
    double attention_factor = 0;                                 // yarn; 0: 0.1·ln(factor) + 1
    double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3
};

// Fields an architecture does not have stay 0.
struct Config {
    std::string architecture;  // the GGUF word for it: "qwen35moe"
    Container container = Container::gguf;
    int32_t layers = 0;      // main layers
    int32_t mtp_layers = 0;  // stored after them, not run
    int32_t dim = 0, ffn = 0, vocab = 0, context = 0;
    int32_t heads = 0, kv_heads = 0, head_width = 0;
    float eps = 0;
    bool tied = false;  // the head is the embedding table
    RopeConfig rope;
    int32_t experts = 0, experts_used = 0, expert_ffn = 0, shared_ffn = 0;
    bool renormalise = true;      // expert weights sum to 1
    std::vector<bool> recurrent;  // [layers]; empty: none
    int32_t key_heads = 0, value_heads = 0, state_width = 0, taps = 0;

    bool hf() const { return container == Container::safetensors; }
    bool moe() const { return experts > 0; }
    bool is_recurrent(int32_t layer) const { return !recurrent.empty() && recurrent[layer]; }
};

// `architecture` is the GGUF word for it, whatever the container.
Result<Config> read_config(const Checkpoint& checkpoint, const std::string& architecture);

// Radians per position of each rotated pair [dims/2], long-context scaling included, and the factor on cos
// and sin.
struct RopeTable {
    std::vector<float> frequency;
    float magnitude = 1;
};
Result<RopeTable> rope_table(const RopeConfig& rope, const std::vector<float>& factors);

}  // namespace sparkinfer
