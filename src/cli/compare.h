// compare.h — llama.cpp's llama-bench as the peer of a benchmark: one test at a time, on the same file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

struct PeerTest {
    std::string program, model;  // llama-bench, the model's file
    int64_t n_prompt = 0, n_gen = 0, n_depth = 0;
    int64_t threads = 1;
    bool gpu = false;  // all layers on the GPU, else none
};

// What it answered.
struct PeerResult {
    std::string backends;  // "CPU", "CUDA"
    std::string commit;    // of llama.cpp
    std::string type_k;    // "f16": what it keeps keys in
    double tokens_per_s = 0;
};

// The command: one timed run after its own warm-up, result as JSON.
std::vector<std::string> peer_command(const PeerTest& test);
// Runs it. Errors: it cannot be started, fails (with its last line), or answers with something else.
Result<PeerResult> run_peer(const PeerTest& test);
// The answer to `test` in llama-bench's JSON.
Result<PeerResult> parse_peer(const std::string& json, const PeerTest& test);

}  // namespace sparkinfer
