// bench_time.h — one timed run of a benchmark's test on an engine, and the bytes such a run moves at least.
#pragma once
#include <cstdint>
#include <random>

#include "core/result.h"
#include "engine/engine.h"

namespace sparkinfer {

constexpr int32_t kBenchChunk = 512;  // most prompt rows in one step

struct BenchTest {
    int64_t prompt = 0, generate = 0, depth = 0;  // tokens; of prompt and generate one is 0
    int64_t parallel = 1;                         // sequences; 1 with a prompt
    int32_t chunk = kBenchChunk;                  // most prompt rows in one step
    // Tokens that a sequence generates before the last one has read its prompt, at most: it goes on
    // meanwhile.
    int64_t head_start() const;
    // In the context of a sequence at the end: tg feeds one token before it can generate.
    int64_t context() const { return depth + (prompt ? prompt + 1 : generate + 2 + head_start()); }
};

// Nanoseconds of one run on an idle engine: of `prompt` tokens after `depth` others, or of `generate` tokens
// in each sequence after `depth` others and a first one. The tokens are random, the depth is run and not
// timed. Ctrl-C (interrupted()) ends it early.
Result<int64_t> time_test(Engine& engine, const BenchTest& test, std::mt19937& random);

// What one run of the test must read and write at least.
double bytes_of(const Engine& engine, const BenchTest& test);

}  // namespace sparkinfer
