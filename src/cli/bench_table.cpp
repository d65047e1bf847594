#include "cli/bench_table.h"

#include <cmath>

namespace sparkinfer {

namespace {

constexpr double kGib = 1024.0 * 1024 * 1024, kMib = 1024.0 * 1024;

// The fields of a row in order, for csv, json and jsonl alike.
JsonObject fields(const BenchRow& row) {
    const std::vector<double> speeds = row.samples_ts();
    std::vector<double> times;
    JsonArray samples_ns, samples_ts;
    const bool known = row.bandwidth > 0;
    for (const int64_t sample : row.samples_ns) {
        times.push_back(double(sample));
        samples_ns.emplace_back(sample);
    }
    for (const double speed : speeds) samples_ts.emplace_back(speed);
    return JsonObject{{"cpu_info", row.cpu_info},
                      {"backends", row.backend},
                      {"model_filename", row.model_filename},
                      {"model_type", row.model_type},
                      {"model_size", row.model_size},
                      {"model_n_params", row.model_n_params},
                      {"n_batch", row.n_batch},
                      {"n_threads", row.n_threads},
                      {"n_prompt", row.n_prompt},
                      {"n_gen", row.n_gen},
                      {"n_depth", row.n_depth},
                      {"test_time", row.test_time},
                      {"avg_ns", int64_t(mean_of(times))},
                      {"stddev_ns", int64_t(deviation_of(times))},
                      {"avg_ts", mean_of(speeds)},
                      {"stddev_ts", deviation_of(speeds)},
                      {"bytes", int64_t(row.bytes)},
                      {"read_bandwidth", known ? Json(int64_t(row.bandwidth)) : Json()},
                      {"floor_percent", known ? Json(100 * row.floor_share()) : Json()},
                      {"samples_ns", std::move(samples_ns)},
                      {"samples_ts", std::move(samples_ts)}};
}

std::string csv_cell(const Json& value) {
    if (value.is_null()) return "";
    std::string text = value.is_string() ? std::string(value.get_string()) : to_json(value);
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    return quoted + "\"";
}

std::string csv_line(const BenchRow& row, bool names) {
    std::string line;
    for (const auto& field : fields(row)) {
        if (field.value().is_array()) continue;
        const std::string cell = names ? std::string(field.key()) : csv_cell(field.value());
        line += (line.empty() ? "" : ",") + cell;
    }
    return line + "\n";
}

std::string size_text(double bytes) {
    return bytes >= kGib ? fmt::format("{:.2f} GiB", bytes / kGib) : fmt::format("{:.2f} MiB", bytes / kMib);
}
std::string params_text(double count) {
    return count >= 1e9 ? fmt::format("{:.2f} B", count * 1e-9) : fmt::format("{:.2f} M", count * 1e-6);
}

constexpr const char* kMarkdownRow =
    "| {:<30} | {:>10} | {:>10} | {:<10} | {:>7} | {:>16} | {:>20} | {:>12} | {:>9} | {:>7} |\n";

std::string markdown_line(const BenchRow& row) {
    const std::vector<double> speeds = row.samples_ts();
    const bool known = row.bandwidth > 0;
    return fmt::format(kMarkdownRow, row.model_type, size_text(double(row.model_size)),
                       params_text(double(row.model_n_params)), row.backend, row.n_threads, row.test(),
                       fmt::format("{:.2f} ± {:.2f}", mean_of(speeds), deviation_of(speeds)),
                       size_text(row.bytes / double(row.tokens())),
                       known ? fmt::format("{:.2f}", row.bandwidth * 1e-9) : "",
                       known ? fmt::format("{:.1f}", 100 * row.floor_share()) : "");
}

}  // namespace

double mean_of(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return values.empty() ? 0 : sum / double(values.size());
}

double deviation_of(const std::vector<double>& values) {
    if (values.size() < 2) return 0;
    const double mean = mean_of(values);
    double sum = 0;
    for (const double value : values) sum += (value - mean) * (value - mean);
    return std::sqrt(sum / double(values.size() - 1));
}

std::vector<double> BenchRow::samples_ts() const {
    std::vector<double> speeds;
    speeds.reserve(samples_ns.size());
    for (const int64_t sample : samples_ns) speeds.push_back(1e9 * double(tokens()) / double(sample));
    return speeds;
}

std::string BenchRow::test() const {
    const std::string name = n_prompt > 0 ? fmt::format("pp{}", n_prompt) : fmt::format("tg{}", n_gen);
    return n_depth > 0 ? fmt::format("{} @ d{}", name, n_depth) : name;
}

double BenchRow::floor_share() const {
    std::vector<double> seconds;
    seconds.reserve(samples_ns.size());
    for (const int64_t sample : samples_ns) seconds.push_back(1e-9 * double(sample));
    const double mean = mean_of(seconds);
    return mean > 0 && bandwidth > 0 ? bytes / bandwidth / mean : 0;
}

std::string bench_head(BenchFormat format) {
    if (format == BenchFormat::json) return "[\n";
    if (format != BenchFormat::md) return "";
    return fmt::format(kMarkdownRow, "model", "size", "params", "backend", "threads", "test", "t/s",
                       "bytes/token", "read GB/s", "% floor") +
           fmt::format(
               "| {:-<30} | {:->9}: | {:->9}: | {:-<10} | {:->6}: | {:->15}: | {:->19}: | {:->11}: | {:->8}: "
               "| {:->6}: |\n",
               "", "", "", "", "", "", "", "", "", "");
}

std::string bench_line(const BenchRow& row, BenchFormat format, bool first) {
    switch (format) {
        case BenchFormat::md: return markdown_line(row);
        case BenchFormat::csv: return (first ? csv_line(row, true) : "") + csv_line(row, false);
        case BenchFormat::json: return (first ? "" : ",\n") + to_json(fields(row));
        case BenchFormat::jsonl: return to_json(fields(row)) + "\n";
    }
    return "";
}

std::string bench_foot(BenchFormat format) { return format == BenchFormat::json ? "\n]\n" : ""; }

}  // namespace sparkinfer
