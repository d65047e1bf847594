// bench_serve_options.cpp — the flags of `sparkinfer bench serve`.
#include "cli/option_binder.h"

namespace sparkinfer {
namespace {

constexpr int64_t kClientsMax = 4096;

Result<std::vector<double>> parse_rates(const std::string& text) {
    std::vector<double> rates;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        TRY(const double rate, parse_number("--rate", text.substr(begin, end - begin), {0, 1e6, true}));
        rates.push_back(rate);
        begin = end + 1;
    }
    return rates;
}

}  // namespace

void bind_bench_serve(Binder b, BenchServeOptions& o) {
    b.word("URL", "the server, as in http://127.0.0.1:8080", o.url);
    b.list("-c,--clients", "clients that ask again when they are answered; each count is a run (default 1)",
           1, kClientsMax, o.clients);
    b.value("--rate", "X[,X…]",
            "requests a second at random times instead, whatever is answered; each is a run",
            [&o](const std::string& text) -> Result<void> {
                TRY(o.rates, parse_rates(text));
                return {};
            });
    b.integer("-r,--requests", "requests of a run (default 4 a client; 32 with --rate)", 1, 1 << 24,
              o.requests);
    b.integer("-p,--n-prompt", "tokens of a prompt; of a session's system message, words (default 512)", 1,
              1 << 24, o.prompt);
    b.integer("-n,--n-gen", "tokens of an answer; in sessions, at most (default 128)", 1, 1 << 24,
              o.generate);
    b.integer("--turns", "sessions of N turns instead, whose prompts grow as an agent's; one a client", 1,
              10000, o.turns);
    b.integer("--turn-words", "words that each of these turns appends (default 200)", 1, 1 << 20,
              o.turn_words);
    b.text("--trace", "FILE.jsonl",
           "sessions from a file: a line a turn, {\"messages\": [what it appends], \"max_tokens\": N, "
           "\"tools\": [...]}",
           o.trace);
    b.text("--model", "NAME", "the model to ask for (default: the first that the server lists)", o.model);
    b.text("--api-key-file", "FILE", "a file whose first line is the API key", o.api_key_file);
    b.integer("--seed", "of the random prompts and times (default 1)", 0, 1 << 30, o.seed);
    b.integer("--timeout", "seconds without a byte after which a request has failed (default 600)", 1, 86400,
              o.timeout_s);
    b.value("-o,--output", "FORMAT", "md (default), json or jsonl",
            [&o](const std::string& name) -> Result<void> {
                if (name != "md" && name != "json" && name != "jsonl")
                    return usage_error("-o is '{}', expected md, json or jsonl", name);
                o.format = name == "md"     ? BenchFormat::md
                           : name == "json" ? BenchFormat::json
                                            : BenchFormat::jsonl;
                return {};
            });
}

Result<void> check_bench_serve(const BenchServeOptions& o) {
    if (o.trace && o.turns) return usage_error("--trace and --turns: expected one of them");
    if (!o.rates.empty() && (o.trace || o.turns))
        return usage_error(
            "--rate with --trace or --turns: sessions wait for their answers, expected --clients");
    return {};
}

}  // namespace sparkinfer
