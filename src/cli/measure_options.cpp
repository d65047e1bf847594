// measure_options.cpp — the flags of `sparkinfer explain` and `sparkinfer bench`.
#include "cli/option_binder.h"

namespace sparkinfer {

void bind_explain(Binder b, ExplainOptions& o) {
    b.model(o.model);
    b.known(
        b.value("--gpu", "NAME", "whose bandwidth makes the floor: h200 (default), rtx5090, pro6000, spark",
                [&o](const std::string& name) -> Result<void> {
                    if (name != "h200" && name != "rtx5090" && name != "pro6000" && name != "spark")
                        return usage_error("--gpu is '{}', expected h200, rtx5090, pro6000 or spark", name);
                    o.gpu = name;
                    return {};
                }),
        {"h200", "rtx5090", "pro6000", "spark"});
    b.integer("--rows", "rows of the step: tokens of one sequence (default 1)", 1, 65536, o.rows);
    b.integer("--depth", "tokens of the sequence before them (default 0)", 0, kMaxTokens, o.depth);
    b.known(
        b.value("--backend", "NAME",
                "also show the kernels that cuda (for --gpu, which need not be here) or cpu makes of each op",
                [&o](const std::string& name) -> Result<void> {
                    if (name != "cuda" && name != "cpu")
                        return usage_error("--backend is '{}', expected cuda or cpu", name);
                    o.backend = name;
                    return {};
                }),
        {"cuda", "cpu"});
    b.stored(o.stored, "the measured backend's, else bf16");
    b.flag("--measured", "run the step (on --backend, else as auto) and show µs and % of floor of each op",
           o.measured);
    b.threads(o.threads);
}

void bind_bench(Binder b, BenchOptions& o) {
    b.model(o.model);
    b.list("-p,--n-prompt", "tokens of a prompt to time; 0: no such test (default 512)", 0, 1 << 24,
           o.prompt);
    b.list("-n,--n-gen", "tokens to generate and time; 0: no such test (default 128)", 0, 1 << 24,
           o.generate);
    b.list("-d,--n-depth", "tokens already in the context (default 0)", 0, 1 << 24, o.depth);
    b.list("-t,--threads", kThreadsHelp, 1, kMaxThreads, o.threads);
    b.backend(o.backend);
    b.stored(o.stored, kKvDefault);
    b.integer("-r,--repetitions", "timed runs of each test (default 5)", 1, 1000, o.repetitions);
    b.known(b.value("-o,--output", "FORMAT", "md (default), csv, json or jsonl",
                    [&o](const std::string& name) -> Result<void> {
                        static const std::pair<const char*, BenchFormat> kFormats[] = {
                            {"md", BenchFormat::md},
                            {"csv", BenchFormat::csv},
                            {"json", BenchFormat::json},
                            {"jsonl", BenchFormat::jsonl}};
                        for (const auto& [known, format] : kFormats)
                            if (name == known) {
                                o.format = format;
                                return {};
                            }
                        return usage_error("-o is '{}', expected md, csv, json or jsonl", name);
                    }),
            {"md", "csv", "json", "jsonl"});
    b.list("--parallel", "sequences that generate side by side, also -np; prompts run alone (default 1)", 1,
           64, o.parallel);
    b.text("--compare", "LLAMA_BENCH",
           "run this llama-bench on the same file in turns, print the ratio of speeds", o.compare);
    b.text("--jsonl", "FILE", "append a row a test to FILE: speeds, clock, commit, command", o.jsonl);
    b.text("--label", "NAME", "the model's name in these rows (default: the file's)", o.label);
    b.flag("--sha256", "put the file's SHA-256 into these rows: reads the whole file once", o.sha256);
}

}  // namespace sparkinfer
