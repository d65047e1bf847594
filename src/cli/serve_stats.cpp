#include "cli/serve_stats.h"

#include <algorithm>
#include <cmath>

namespace sparkinfer {
namespace {

constexpr std::pair<const char*, double> kQuantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};

JsonObject quantiles(const std::vector<double>& samples) {
    JsonObject out;
    for (const auto& [name, q] : kQuantiles) out[name] = quantile(samples, q);
    out["max"] = quantile(samples, 1);
    return out;
}

// Tokens per second while `clients` answers are being written at once, none of which waits for its first
// token: what a batch of as many sequences decodes, without their prompts. 0: it never came to that.
double batch_decode_rate(std::span<const LoadResult> results, int64_t clients) {
    struct Moment {
        double at_s;
        int32_t writing;  // change of the answers being written
        double tokens;
    };
    std::vector<Moment> moments;
    for (const LoadResult& r : results) {
        if (!r.ok() || r.gaps_s.empty()) continue;
        // A piece may hold several tokens.
        const double tokens = double(r.completion_tokens - 1) / double(r.gaps_s.size());
        double at = r.first_s;
        moments.push_back({at, 1, 0});
        for (const double gap : r.gaps_s) moments.push_back({at += gap, 0, tokens});
        moments.push_back({at, -1, 0});
    }
    // At one time: beginnings, then pieces, then ends.
    std::sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) {
        return std::pair(a.at_s, b.writing) < std::pair(b.at_s, a.writing);
    });
    double tokens = 0, seconds = 0, before = 0;
    int64_t writing = 0;
    for (const Moment& m : moments) {
        if (writing >= clients) tokens += m.tokens, seconds += m.at_s - before;
        writing += m.writing;
        before = m.at_s;
    }
    return clients > 0 && seconds > 0 ? tokens / seconds : 0;
}

struct Totals {
    int64_t ok = 0, prompt = 0, cached = 0, completion = 0;
    double begin_s = 0, end_s = 0;
    std::vector<double> ttft_ms = {}, itl_ms = {}, e2e_s = {}, decode = {};

    double seconds() const { return std::max(end_s - begin_s, 1e-9); }
    double cached_share() const { return prompt ? double(cached) / double(prompt) : 0; }
};

Totals totals_of(std::span<const LoadResult> results) {
    Totals t;
    t.begin_s = INFINITY;
    for (const LoadResult& r : results) {
        t.begin_s = std::min(t.begin_s, r.due_s);
        t.end_s = std::max(t.end_s, r.end_s);
        if (!r.ok()) continue;
        t.ok++;
        t.prompt += r.prompt_tokens;
        t.cached += r.cached_tokens;
        t.completion += r.completion_tokens;
        t.ttft_ms.push_back((r.first_s - r.due_s) * 1e3);
        t.e2e_s.push_back(r.end_s - r.due_s);
        for (const double gap : r.gaps_s) t.itl_ms.push_back(gap * 1e3);
        if (r.completion_tokens > 1 && r.end_s > r.first_s)
            t.decode.push_back(double(r.completion_tokens - 1) / (r.end_s - r.first_s));
    }
    if (results.empty()) t.begin_s = 0;
    return t;
}

JsonObject fields_of(std::span<const LoadResult> results) {
    const Totals t = totals_of(results);
    return {{"requests", results.size()},
            {"failed", int64_t(results.size()) - t.ok},
            {"seconds", t.seconds()},
            {"prompt_tokens", t.prompt},
            {"cached_tokens", t.cached},
            {"cached_share", t.cached_share()},
            {"completion_tokens", t.completion},
            {"requests_per_s", double(t.ok) / t.seconds()},
            {"tokens_per_s", double(t.completion) / t.seconds()},
            {"decode_tokens_per_s", quantile(t.decode, 0.5)},  // of one request, behind its first token
            {"ttft_ms", quantiles(t.ttft_ms)},
            {"itl_ms", quantiles(t.itl_ms)},
            {"e2e_s", quantiles(t.e2e_s)}};
}

std::string cell(double value) {
    return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 1000 ? 1 : 0);
}

// "12.0 / 15.1 / 20.9"
std::string cells(const std::vector<double>& samples) {
    std::string out;
    for (const auto& [name, q] : kQuantiles) out += (out.empty() ? "" : " / ") + cell(quantile(samples, q));
    return out;
}

std::string markdown_row(const std::string& load, std::span<const LoadResult> results, int64_t clients) {
    const Totals t = totals_of(results);
    const double decode = batch_decode_rate(results, clients);
    return fmt::format("| {:>16} | {:>8} | {:>6} | {:>8} | {:>8} | {:>5.1f} % | {:>23} | {:>23} | {:>20} |\n",
                       load, results.size(), int64_t(results.size()) - t.ok,
                       cell(double(t.completion) / t.seconds()), decode > 0 ? cell(decode) : "–",
                       t.cached_share() * 100, cells(t.ttft_ms), cells(t.itl_ms), cells(t.e2e_s));
}

// The results of each turn of the sessions, in order.
std::vector<std::vector<LoadResult>> by_turn(std::span<const LoadResult> results) {
    std::vector<std::vector<LoadResult>> turns;
    for (const LoadResult& r : results) {
        if (size_t(r.turn) >= turns.size()) turns.resize(size_t(r.turn) + 1);
        turns[size_t(r.turn)].push_back(r);
    }
    return turns;
}

}  // namespace

double quantile(std::vector<double> samples, double q) {
    if (samples.empty()) return 0;
    std::sort(samples.begin(), samples.end());
    const double at = q * double(samples.size() - 1);
    const size_t below = size_t(at), above = std::min(below + 1, samples.size() - 1);
    return samples[below] + (samples[above] - samples[below]) * (at - double(below));
}

JsonObject serve_fields(const LoadRun& run) {
    JsonObject row{{"load", run.load}};
    if (run.clients) row["clients"] = run.clients;
    if (run.rate > 0) row["rate"] = run.rate;
    row["prompt"] = run.prompt;
    row["generate"] = run.generate;
    for (auto& [key, value] : fields_of(run.results)) row[key] = std::move(value);
    if (run.clients) row["batch_decode_tokens_per_s"] = batch_decode_rate(run.results, run.clients);
    JsonObject errors;
    for (const LoadResult& r : run.results)
        if (!r.ok()) errors[r.error] = errors.contains(r.error) ? errors[r.error].as_int64() + 1 : 1;
    row["errors"] = std::move(errors);
    const auto turns = by_turn(run.results);
    if (turns.size() < 2) return row;
    JsonArray rows;
    for (const auto& turn : turns) rows.push_back(fields_of(turn));
    row["turns"] = std::move(rows);
    return row;
}

std::string serve_head(BenchFormat format) {
    if (format == BenchFormat::json) return "[\n";
    if (format != BenchFormat::md) return "";
    return fmt::format(
        "| {:>16} | requests | failed | {:>8} | {:>8} | {:>7} | {:>23} | {:>23} | {:>20} |\n"
        "|{:->17}:|---------:|-------:|{:->9}:|{:->9}:|{:->8}:|{:->24}:|{:->24}:|{:->21}:|\n",
        "load", "tok/s", "decode", "cached", "TTFT ms p50/p90/p99", "ITL ms p50/p90/p99", "E2E s p50/p90/p99",
        "", "", "", "", "", "", "");
}

std::string serve_row(const LoadRun& run, BenchFormat format, bool first) {
    if (format == BenchFormat::json) return (first ? "" : ",\n") + to_json(serve_fields(run));
    if (format == BenchFormat::jsonl) return to_json(serve_fields(run)) + "\n";
    std::string text = markdown_row(run.load, run.results, run.clients);
    const auto turns = by_turn(run.results);
    for (size_t i = 0; turns.size() > 1 && i < turns.size(); ++i)
        text += markdown_row(fmt::format("turn {}", i + 1), turns[i], 0);
    return text;
}

std::string serve_foot(BenchFormat format) { return format == BenchFormat::json ? "\n]\n" : ""; }

}  // namespace sparkinfer
