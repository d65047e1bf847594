// serve_stats.h — the requests of a run to the figures that describe it.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/serve_load.h"
#include "core/json.h"

namespace sparkinfer {

// The q-quantile of samples, between two of them in proportion (as numpy's default); 0 of none.
double quantile(std::vector<double> samples, double q);

// One run: some load, and what became of its requests.
struct LoadRun {
    std::string load;                  // "8 clients", "2.5 requests/s", "4 sessions"
    int64_t clients = 0;               // closed loop and sessions
    double rate = 0;                   // open loop
    int64_t prompt = 0, generate = 0;  // tokens, as asked for
    std::vector<LoadResult> results = {};
};

// Rows of `sparkinfer bench serve`. Times run from when a request was due, over the requests that went well;
// tokens per second from when the first was due to the end of the last; "decode" (batch_decode_tokens_per_s)
// while as many answers as clients are being written at once, which is what `bench -np CLIENTS` measures.
std::string serve_head(BenchFormat format);
std::string serve_row(const LoadRun& run, BenchFormat format, bool first);
std::string serve_foot(BenchFormat format);

// The row's fields; of sessions with one object a turn.
JsonObject serve_fields(const LoadRun& run);

}  // namespace sparkinfer
