// bench_table.h — rows of `sparkinfer bench` and their forms: llama-bench's columns, names and habits, plus
// bytes and share of the floor.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "core/json.h"

namespace sparkinfer {

// One test: n_prompt or n_gen tokens (the other is 0) after n_depth others.
struct BenchRow {
    std::string model_filename, model_type, backend, cpu_info, test_time;
    int64_t model_size = 0, model_n_params = 0, n_batch = 0, n_threads = 0;
    int64_t n_prompt = 0, n_gen = 0, n_depth = 0;
    std::vector<int64_t> samples_ns;  // of each timed run
    double bytes = 0;                 // that a run must read and write (ops/explain.h)
    double bandwidth = 0;             // bytes a second, as measured at start; 0: not known

    // The run's tokens over each sample, a second.
    std::vector<double> samples_ts() const;
    int64_t tokens() const { return n_prompt + n_gen; }
    // "pp512", "tg128 @ d4096"
    std::string test() const;
    // Share of the time that memory bandwidth alone would take: 0 … 1 unless caches help; 0: not known.
    double floor_share() const;
};

// Mean and standard deviation (n − 1), as llama-bench computes them; 0 for fewer than two values.
double mean_of(const std::vector<double>& values);
double deviation_of(const std::vector<double>& values);

// What comes before the first row, a row, and what comes after the last; `first` tells the first row.
std::string bench_head(BenchFormat format);
std::string bench_line(const BenchRow& row, BenchFormat format, bool first);
std::string bench_foot(BenchFormat format);

}  // namespace sparkinfer
