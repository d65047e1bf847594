#include "cli/bench_table.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

BenchRow sample_row() {
    BenchRow row;
    row.model_filename = "a \"b\".gguf";
    row.model_type = "llama 135M Q4_1";
    row.backend = "cpu";
    row.cpu_info = "cpu";
    row.test_time = "2000-01-01T00:00:00Z";
    row.model_size = int64_t(3) << 29;
    row.model_n_params = 134515008;
    row.n_threads = 2;
    row.n_gen = 100;
    row.samples_ns = {1'000'000'000, 2'000'000'000};
    row.bytes = 3e9;
    row.bandwidth = 10e9;
    return row;
}

// Risk: speeds are averaged the wrong way round: the mean of speeds is not tokens over the mean time.
TEST(BenchTable, MeanAndDeviationAreThoseOfTheSamples) {
    const BenchRow row = sample_row();
    EXPECT_EQ(row.samples_ts(), (std::vector<double>{100, 50}));
    EXPECT_DOUBLE_EQ(mean_of(row.samples_ts()), 75);
    EXPECT_DOUBLE_EQ(deviation_of({100, 50}), std::sqrt(2 * 25.0 * 25.0));
    EXPECT_DOUBLE_EQ(deviation_of({5}), 0);
    EXPECT_DOUBLE_EQ(row.floor_share(), 3e9 / 10e9 / 1.5);
    EXPECT_EQ(row.test(), "tg100");
    BenchRow deep = row;
    deep.n_gen = 0, deep.n_prompt = 512, deep.n_depth = 4096;
    EXPECT_EQ(deep.test(), "pp512 @ d4096");
    BenchRow wide = row;
    wide.n_parallel = 4;
    EXPECT_EQ(wide.test(), "tg100 x4");
    EXPECT_EQ(wide.samples_ts(), (std::vector<double>{400, 200}));
    EXPECT_DOUBLE_EQ(median_of({3, 1, 2}), 2);
    EXPECT_DOUBLE_EQ(median_of({4, 1, 2, 3}), 2.5);
    EXPECT_DOUBLE_EQ(median_of({}), 0);
}

// Risk: a result row lacks what its readers look for, or says 0 or -1 where nothing was seen.
TEST(BenchTable, ResultRowsSayWhatIsKnown) {
    BenchRow row = sample_row();
    row.kv = "bf16", row.state = "f32", row.activations = "16-bit";
    const ResultNotes notes{"35b", "", "abc123", "sparkinfer bench 35b.gguf"};
    const std::string text = result_line(row, notes);
    EXPECT_EQ(
        text.find(
            "{\"model\":\"35b\",\"file_sha256\":null,\"backend\":\"cpu\",\"n_depth\":0,\"n_prompt\":0,\"n_"
            "gen\":100,"
            "\"n_parallel\":1,\"kv\":\"bf16\",\"state\":\"f32\",\"activations\":\"16-bit\",\"tok_s\":[100,50]"
            ",\"median\":75,"
            "\"sm_mhz\":null,\"temp_c\":null,\"commit\":\"abc123\",\"command\":\"sparkinfer bench "
            "35b.gguf\","),
        0u)
        << text;
    row.sm_mhz = 1980, row.temp_c = 39;
    EXPECT_NE(result_line(row, notes).find("\"sm_mhz\":1980,\"temp_c\":39"), std::string::npos);
}

// Risk: ratios of means, or of runs that were not each other's neighbours.
TEST(BenchTable, RatiosAreTurnByTurn) {
    BenchRow row = sample_row();
    row.samples_ns = {1'000'000'000, 2'000'000'000, 1'000'000'000};  // 100, 50, 100 tok/s
    row.peer = PeerSamples{"CPU", "abc", "f16", "llama-bench -m m", {50, 50, 25}};
    EXPECT_EQ(row.ratios(), (std::vector<double>{2, 1, 4}));
    const std::string json = bench_line(row, BenchFormat::jsonl, true),
                      line = bench_line(row, BenchFormat::md, true);
    EXPECT_NE(json.find("\"peer_median_ts\":50,\"ratio\":2,\"ratio_min\":1,\"ratio_max\":4,\"peer_samples_"
                        "ts\":[50,50,25]"),
              std::string::npos)
        << json;
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 3) << line;
    EXPECT_NE(line.find("1.000 … 4.000"), std::string::npos) << line;
    const std::string peer = peer_result_line(row, {"m", "", "ours", "our command"});
    EXPECT_NE(peer.find("\"backend\":\"llama.cpp CPU\""), std::string::npos) << peer;
    EXPECT_NE(peer.find("\"commit\":\"abc\",\"command\":\"llama-bench -m m\""), std::string::npos) << peer;
}

// Risk: a clock is claimed that nobody read.
TEST(BenchTable, ClockAndTemperatureAreShownOfAGpuAlone) {
    BenchRow row = sample_row();
    EXPECT_EQ(bench_line(row, BenchFormat::md, true).find("seen"), std::string::npos);
    row.device = "NVIDIA H200";
    EXPECT_NE(bench_line(row, BenchFormat::md, true).find(" not seen |"), std::string::npos);
    row.sm_mhz = 1980, row.temp_c = 39;
    EXPECT_NE(bench_line(row, BenchFormat::md, true).find(" 1980, 39 |"), std::string::npos);
}

// Risk: a form is not what its readers parse.
TEST(BenchTable, EachFormIsItself) {
    const BenchRow row = sample_row();
    const std::string json = bench_head(BenchFormat::json) + bench_line(row, BenchFormat::json, true) +
                             bench_line(row, BenchFormat::json, false) + bench_foot(BenchFormat::json);
    const auto parsed = parse_json(json, "bench");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed.value().as_array().size(), 2u);
    EXPECT_EQ(json_number(parsed.value().as_array()[0].as_object(), "avg_ts", "bench").value(), 75);
    const std::string csv = bench_line(row, BenchFormat::csv, true);
    EXPECT_EQ(csv.rfind("cpu_info,gpu_info,backends,model_filename,", 0), 0u);
    EXPECT_NE(csv.find("\"a \"\"b\"\".gguf\""), std::string::npos);
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 2);
    EXPECT_EQ(bench_line(row, BenchFormat::jsonl, true), bench_line(row, BenchFormat::jsonl, false));
    const std::string head = bench_head(BenchFormat::md), line = bench_line(row, BenchFormat::md, true);
    EXPECT_EQ(std::count(head.begin(), head.end(), '|'), 2 * std::count(line.begin(), line.end(), '|'));
    EXPECT_NE(line.find("75.00 ± 35.36"), std::string::npos);
    EXPECT_NE(line.find("1.50 GiB"), std::string::npos);
}

// Risk: where the bandwidth is not known, a share of 0 % is claimed.
TEST(BenchTable, UnknownBandwidthIsLeftOut) {
    BenchRow row = sample_row();
    row.bandwidth = 0;
    const std::string json = bench_line(row, BenchFormat::jsonl, true);
    EXPECT_NE(json.find("\"read_bandwidth\":null,\"floor_percent\":null"), std::string::npos) << json;
    const std::string csv = bench_line(row, BenchFormat::csv, false),
                      line = bench_line(row, BenchFormat::md, true);
    EXPECT_TRUE(csv.ends_with(",,\n")) << csv;
    EXPECT_TRUE(line.ends_with("|           |         |           |\n")) << line;
}

}  // namespace
}  // namespace sparkinfer
