#include "cli/bench_table.h"

#include <algorithm>
#include <cmath>

namespace sparkinfer {

namespace {

constexpr double kGib = 1024.0 * 1024 * 1024, kMib = 1024.0 * 1024;

// A number that -1 stands for not having, a text that "" does.
Json known_or_null(int32_t value) { return value < 0 ? Json() : Json(value); }
Json known_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
JsonArray array_of(const std::vector<double>& values) { return JsonArray(values.begin(), values.end()); }

// The peer's fields, behind ours.
void add_peer(JsonObject& o, const BenchRow& row) {
    const PeerSamples& peer = *row.peer;
    const std::vector<double> ratios = row.ratios();
    o["peer_backends"] = peer.backends;
    o["peer_commit"] = peer.commit;
    o["peer_median_ts"] = median_of(peer.samples_ts);
    o["ratio"] = median_of(ratios);
    o["ratio_min"] = *std::min_element(ratios.begin(), ratios.end());
    o["ratio_max"] = *std::max_element(ratios.begin(), ratios.end());
    o["peer_samples_ts"] = array_of(peer.samples_ts);
}

// The fields of a row in order, for csv, json and jsonl alike.
JsonObject fields(const BenchRow& row) {
    const std::vector<double> speeds = row.samples_ts();
    std::vector<double> times;
    JsonArray samples_ns;
    const bool known = row.bandwidth > 0;
    for (const int64_t sample : row.samples_ns) {
        times.push_back(double(sample));
        samples_ns.emplace_back(sample);
    }
    JsonObject object{{"cpu_info", row.cpu_info},
                      {"gpu_info", row.device},
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
                      {"n_parallel", row.n_parallel},
                      {"type_kv", row.kv},
                      {"type_state", row.state},
                      {"activations", row.activations},
                      {"test_time", row.test_time},
                      {"avg_ns", int64_t(mean_of(times))},
                      {"stddev_ns", int64_t(deviation_of(times))},
                      {"avg_ts", mean_of(speeds)},
                      {"stddev_ts", deviation_of(speeds)},
                      {"median_ts", median_of(speeds)},
                      {"min_ts", speeds.empty() ? 0 : *std::min_element(speeds.begin(), speeds.end())},
                      {"max_ts", speeds.empty() ? 0 : *std::max_element(speeds.begin(), speeds.end())},
                      {"sm_mhz", known_or_null(row.sm_mhz)},
                      {"temp_c", known_or_null(row.temp_c)},
                      {"bytes", int64_t(row.bytes)},
                      {"read_bandwidth", known ? Json(int64_t(row.bandwidth)) : Json()},
                      {"floor_percent", known ? Json(100 * row.floor_share()) : Json()},
                      {"samples_ns", std::move(samples_ns)},
                      {"samples_ts", array_of(speeds)}};
    if (row.peer) add_peer(object, row);
    return object;
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
    "| {:<30} | {:>10} | {:>10} | {:<10} | {:>7} | {:>20} | {:>20} | {:>9} | {:>19} | {:>12} | {:>9} | {:>7} "
    "| "
    "{:>9} |\n";

std::string range_text(const std::vector<double>& values, int decimals) {
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return values.empty() ? "" : fmt::format("{:.{}f} … {:.{}f}", *least, decimals, *most, decimals);
}

std::string clock_text(const BenchRow& row) {
    if (row.device.empty()) return "";
    if (row.sm_mhz < 0 && row.temp_c < 0) return "not seen";
    return fmt::format("{}, {}", row.sm_mhz < 0 ? "?" : std::to_string(row.sm_mhz),
                       row.temp_c < 0 ? "?" : std::to_string(row.temp_c));
}

std::string markdown_line(const BenchRow& row) {
    const std::vector<double> speeds = row.samples_ts();
    const bool known = row.bandwidth > 0;
    const auto line = [&](const char* backend, const std::vector<double>& ts, int decimals) {
        const bool ours = backend == row.backend;
        return fmt::format(
            kMarkdownRow, row.model_type, size_text(double(row.model_size)),
            params_text(double(row.model_n_params)), backend, row.n_threads, row.test(),
            fmt::format("{:.{}f} ± {:.{}f}", mean_of(ts), decimals, deviation_of(ts), decimals),
            fmt::format("{:.{}f}", median_of(ts), decimals), range_text(ts, decimals),
            ours ? size_text(row.bytes / double(row.tokens())) : "",
            ours && known ? fmt::format("{:.2f}", row.bandwidth * 1e-9) : "",
            ours && known ? fmt::format("{:.1f}", 100 * row.floor_share()) : "", ours ? clock_text(row) : "");
    };
    std::string text = line(row.backend.c_str(), speeds, 2);
    if (!row.peer) return text;
    return text + line("llama.cpp", row.peer->samples_ts, 2) + line("ratio", row.ratios(), 3);
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

double median_of(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> BenchRow::ratios() const {
    const std::vector<double> ours = samples_ts();
    std::vector<double> ratios;
    for (size_t i = 0; i < std::min(ours.size(), peer->samples_ts.size()); ++i)
        ratios.push_back(ours[i] / peer->samples_ts[i]);
    return ratios;
}

std::vector<double> BenchRow::samples_ts() const {
    std::vector<double> speeds;
    speeds.reserve(samples_ns.size());
    for (const int64_t sample : samples_ns) speeds.push_back(1e9 * double(tokens()) / double(sample));
    return speeds;
}

std::string BenchRow::test() const {
    std::string name = n_prompt > 0 ? fmt::format("pp{}", n_prompt) : fmt::format("tg{}", n_gen);
    if (n_depth > 0) name += fmt::format(" @ d{}", n_depth);
    return n_parallel > 1 ? fmt::format("{} x{}", name, n_parallel) : name;
}

double BenchRow::floor_share() const {
    std::vector<double> seconds;
    seconds.reserve(samples_ns.size());
    for (const int64_t sample : samples_ns) seconds.push_back(1e-9 * double(sample));
    const double mean = mean_of(seconds);
    return mean > 0 && bandwidth > 0 ? bytes / bandwidth / mean : 0;
}

std::string result_line(const BenchRow& row, const ResultNotes& notes) {
    const std::vector<double> speeds = row.samples_ts();
    return to_json(JsonObject{{"model", notes.model},
                              {"file_sha256", known_or_null(notes.sha256)},
                              {"backend", row.backend},
                              {"n_depth", row.n_depth},
                              {"n_prompt", row.n_prompt},
                              {"n_gen", row.n_gen},
                              {"n_parallel", row.n_parallel},
                              {"kv", row.kv},
                              {"state", row.state},
                              {"activations", row.activations},
                              {"tok_s", array_of(speeds)},
                              {"median", median_of(speeds)},
                              {"sm_mhz", known_or_null(row.sm_mhz)},
                              {"temp_c", known_or_null(row.temp_c)},
                              {"commit", notes.commit},
                              {"command", notes.command},
                              {"device", row.device.empty() ? row.cpu_info : row.device},
                              {"bytes_per_token", row.bytes / double(row.tokens())},
                              {"floor_percent", row.bandwidth > 0 ? Json(100 * row.floor_share()) : Json()},
                              {"time", row.test_time}}) +
           "\n";
}

std::string peer_result_line(const BenchRow& row, const ResultNotes& notes) {
    const PeerSamples& peer = *row.peer;
    return to_json(JsonObject{{"model", notes.model},
                              {"file_sha256", known_or_null(notes.sha256)},
                              {"backend", "llama.cpp " + peer.backends},
                              {"n_depth", row.n_depth},
                              {"n_prompt", row.n_prompt},
                              {"n_gen", row.n_gen},
                              {"n_parallel", 1},
                              {"kv", known_or_null(peer.type_k)},
                              {"state", Json()},
                              {"activations", Json()},
                              {"tok_s", array_of(peer.samples_ts)},
                              {"median", median_of(peer.samples_ts)},
                              {"sm_mhz", known_or_null(row.sm_mhz)},
                              {"temp_c", known_or_null(row.temp_c)},
                              {"commit", known_or_null(peer.commit)},
                              {"command", peer.command},
                              {"device", row.device.empty() ? row.cpu_info : row.device},
                              {"time", row.test_time}}) +
           "\n";
}

std::string bench_head(BenchFormat format) {
    if (format == BenchFormat::json) return "[\n";
    if (format != BenchFormat::md) return "";
    return fmt::format(kMarkdownRow, "model", "size", "params", "backend", "threads", "test", "t/s", "median",
                       "min … max", "bytes/token", "read GB/s", "% floor", "MHz, °C") +
           fmt::format(
               "| {:-<30} | {:->9}: | {:->9}: | {:-<10} | {:->6}: | {:->19}: | {:->19}: | {:->8}: | {:->18}: "
               "| "
               "{:->11}: | {:->8}: | {:->6}: | {:->8}: |\n",
               "", "", "", "", "", "", "", "", "", "", "", "", "");
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
