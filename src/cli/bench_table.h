// bench_table.h — rows of `sparkinfer bench` and their forms: llama-bench's columns, names and habits, plus
// bytes and share of the floor.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "core/json.h"

namespace sparkinfer {

// llama-bench on the same test, run in turns with us.
struct PeerSamples {
    std::string backends, commit, type_k, command;  // "CPU", of llama.cpp, "f16"
    std::vector<double> samples_ts;                 // one to each of ours
};

// One test: n_prompt or n_gen tokens (the other is 0) after n_depth others, in each of n_parallel sequences.
struct BenchRow {
    std::string model_filename, model_type, backend, device, cpu_info, test_time;
    std::string kv, state, activations;  // what keys and values, and recurrent states, are kept in; what
                                         // weights are multiplied by
    int64_t model_size = 0, model_n_params = 0, n_batch = 0, n_threads = 0;
    int64_t n_prompt = 0, n_gen = 0, n_depth = 0, n_parallel = 1;
    std::vector<int64_t> samples_ns;  // of each timed run
    double bytes = 0;                 // that a run must read and write (ops/explain.h)
    double bandwidth = 0;             // bytes a second of the memory; 0: not known
    // As read right after each run, the lowest clock and the highest temperature of the GPU; -1: not seen.
    int32_t sm_mhz = -1, temp_c = -1;
    std::optional<PeerSamples> peer;

    // The run's tokens over each sample, a second.
    std::vector<double> samples_ts() const;
    int64_t tokens() const { return (n_prompt + n_gen) * n_parallel; }
    // "pp512", "tg128 @ d4096", "tg128 x4"
    std::string test() const;
    // Ours over the peer's speed, turn by turn. REQUIRES: peer.
    std::vector<double> ratios() const;
    // Share of the time that memory bandwidth alone would take: 0 … 1 unless caches help; 0: not known.
    double floor_share() const;
};

// Mean and standard deviation (n − 1), as llama-bench computes them; 0 for fewer than two values.
double mean_of(const std::vector<double>& values);
double deviation_of(const std::vector<double>& values);
double median_of(std::vector<double> values);  // of an even count, the mean of the middle two; 0 of none

// A row of a results file (bench/results): who measured what, with which command. Fields that are not known
// are null.
struct ResultNotes {
    std::string model, sha256, commit, command;
};
std::string result_line(const BenchRow& row, const ResultNotes& notes);
// The peer's row beside it. REQUIRES: peer.
std::string peer_result_line(const BenchRow& row, const ResultNotes& notes);

// What comes before the first row, a row, and what comes after the last; `first` tells the first row.
std::string bench_head(BenchFormat format);
std::string bench_line(const BenchRow& row, BenchFormat format, bool first);
std::string bench_foot(BenchFormat format);

}  // namespace sparkinfer
