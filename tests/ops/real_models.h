// real_models.h — the models that people run, as facts alone: what their GGUF files state and the shape and
// format of every tensor, over memory that is mapped and never filled.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "load/checkpoint.h"
#include "model/model.h"

namespace sparkinfer::test {

// Sizes that the tests compute from; the same numbers are in the checkpoint's metadata.
struct ModelFacts {
    const char* name;          // "Qwen3-0.6B Q4_K_M"
    const char* architecture;  // "qwen3"
    int layers, dim, vocabulary, ffn;
    int heads, kv_heads, width, rotary;     // H, G, d, rotary dimensions of a head
    int experts = 0, used = 0, shared = 0;  // E, K, Fs; ffn is an expert's then
    int key_heads = 0, value_heads = 0;     // n_k, n_v; every fourth layer attends, the others are recurrent
    bool tied = false;
    double eps = 1e-6, theta = 1e6;
    bool k_mix = true;  // Q4_K with Q6_K where llama.cpp's Q4_K_M has it; else `plain` everywhere
    Quant plain = Quant::q4_k, head = Quant::q6_k, table = Quant::q4_k, down = Quant::q4_k;
    int64_t tensors = 0;     // in the published file, without a block for multi-token prediction
    int64_t parameters = 0;  // of the published checkpoint; 0: unknown
    int64_t file_bytes = 0;  // of the published file; 0: unknown

    bool recurrent(int layer) const { return value_heads && layer % 4 != 3; }
    int attention_layers() const { return value_heads ? layers / 4 : layers; }
    int channels() const { return (2 * key_heads + value_heads) * 128; }  // of a recurrent layer
};

// SmolLM2-135M, Qwen3-0.6B, Qwen3-30B-A3B, Qwen3.6-35B-A3B, Qwen3.8-27B.
const std::vector<ModelFacts>& real_models();

// A checkpoint that states the facts; its values read as zero.
std::unique_ptr<Checkpoint> stated_checkpoint(const ModelFacts& facts);

// Rows of a step: decoding, its largest form, more than it takes.
constexpr int kRecordedRows[] = {1, 4, 8, 16};

// A model of facts alone and its tapes, one for each of kRecordedRows.
struct Recorded {
    const ModelFacts* facts;
    std::unique_ptr<Checkpoint> checkpoint;
    std::unique_ptr<Model> model;
    std::vector<Tape> tapes;
};
const std::vector<Recorded>& recorded_models();

}  // namespace sparkinfer::test
