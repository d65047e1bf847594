// bench.cpp — `sparkinfer bench`: tokens per second of prompts (pp) and of generation (tg), as llama-bench
// has them: a warm-up run, random tokens, no sampling, end tokens ignored. At a depth, the tokens before are
// run and not timed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "cli/bench_table.h"
#include "cli/bench_time.h"
#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/machine.h"
#include "cli/model_facts.h"
#include "cli/nvml.h"
#include "cli/sha256.h"
#include "cli/version.h"
#include "core/log.h"
#include "ops/step.h"

namespace sparkinfer {

namespace {

// llama-bench's order: every depth, of each first the prompts, then the generations.
std::vector<BenchTest> tests_of(const BenchOptions& o, int32_t chunk = kBenchChunk) {
    std::vector<BenchTest> tests;
    for (const int64_t depth : o.depth) {
        for (const int64_t n : o.prompt)
            if (n > 0) tests.push_back({n, 0, depth, 1, chunk});
        for (const int64_t n : o.generate)
            for (const int64_t parallel : o.parallel)
                if (n > 0) tests.push_back({0, n, depth, parallel, chunk});
    }
    return tests;
}

// Before anything is measured or printed.
Result<void> check_tests(const std::vector<BenchTest>& tests, const ModelFacts& facts) {
    if (tests.empty()) return usage_error("-p is 0 and -n is 0: no test is left, expected one above 0");
    for (const BenchTest& test : tests)
        if (test.context() > facts.shape.context)
            return usage_error("-p {} -n {} -d {} takes {} tokens of context, {} was made for {}",
                               test.prompt, test.generate, test.depth, test.context(),
                               facts.metadata.source(), facts.shape.context);
    return {};
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    char text[32];
    return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

// "llama 135M Q4_1": architecture, size, the type that most bytes have.
std::string model_type(const ModelFacts& facts) {
    const double n = double(facts.tensor_elements);
    const std::string size = n >= 1e9 ? fmt::format("{:.1f}B", n * 1e-9) : fmt::format("{:.0f}M", n * 1e-6);
    return fmt::format("{} {} {}", facts.shape.architecture, size, facts.main_type);
}

// A results file: whole lines are appended, each with one write.
class ResultsFile {
  public:
    static Result<ResultsFile> open(const std::string& path) {
        ResultsFile file;
        file.path_ = path;
        file.fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        if (file.fd_ < 0) return file.trouble("open");
        return file;
    }
    ResultsFile(ResultsFile&& other) noexcept
        : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
    ResultsFile& operator=(ResultsFile&&) = delete;
    ~ResultsFile() {
        if (fd_ >= 0) ::close(fd_);
    }
    Result<void> append(const std::string& line) const {
        if (::write(fd_, line.data(), line.size()) != ssize_t(line.size()))
            return trouble("write all of a row");
        return {};
    }

  private:
    ResultsFile() = default;
    Error trouble(const char* what) const {
        return out_of_resources("{}: cannot {}: {}", path_, what, std::generic_category().message(errno));
    }
    std::string path_;
    int fd_ = -1;
};

// All tests with one number of threads.
struct BenchRun {
    const BenchOptions& options;
    const ModelFacts& facts;
    Session& session;
    const ResultsFile* results = nullptr;  // of --jsonl
    ResultNotes notes = {};
    bool headed = false, first = true;  // what was written: the head, no row

    Result<void> run(int threads) {
        TRY(const std::unique_ptr<Backend> backend,
            session.backend(options.backend, threads, options.stored));
        const BackendInfo& info = backend->info();
        const int32_t chunk = info.host_memory ? kBenchChunk : info.chunk;
        const std::vector<BenchTest> tests = tests_of(options, chunk);
        EngineOptions engine_options;
        engine_options.chunk = chunk;
        engine_options.context = 2;
        for (const BenchTest& test : tests) {
            engine_options.context = std::max(engine_options.context, int32_t(test.context()));
            engine_options.slots = std::max(engine_options.slots, int32_t(test.parallel));
        }
        // A sequence is let in only where each that lives has a page to grow into.
        engine_options.kv_tokens = int64_t(engine_options.slots) * (engine_options.context + 2 * kPageTokens);
        const GpuBandwidth* gpu = find_gpu_bandwidth(info.device);
        const double bandwidth = info.host_memory ? read_bandwidth(threads) : gpu ? gpu->bytes_per_s : 0;
        const std::unique_ptr<Nvml> nvml = info.host_memory ? nullptr : Nvml::open();
        TRY(const std::unique_ptr<Engine> engine, session.engine(options.model, *backend, engine_options));
        if (!std::exchange(headed, true)) TRY_VOID(session.out.write(bench_head(options.format)));
        std::mt19937 random(1);
        for (const BenchTest& test : tests) {
            BenchRow row = empty_row(test, info);
            row.n_threads = threads;
            row.bandwidth = bandwidth;
            row.bytes = bytes_of(*engine, test);
            TRY_VOID(warm_up(*engine, test, random));
            for (int64_t i = 0; i < options.repetitions && !interrupted(); ++i) {
                TRY(const int64_t sample, time_test(*engine, test, random));
                row.samples_ns.push_back(std::max<int64_t>(sample, 1));
                if (nvml) look_at_gpu(*nvml, info, row);
                if (options.compare && !interrupted()) TRY_VOID(run_peer_too(row, info));
            }
            if (interrupted() || session.out.closed()) return {};
            TRY_VOID(write(row));
        }
        return {};
    }

  private:
    BenchRow empty_row(const BenchTest& test, const BackendInfo& info) const {
        BenchRow row;
        row.model_filename = options.model;
        row.model_type = model_type(facts);
        row.backend = info.name;
        row.device = info.host_memory ? "" : info.device;
        row.kv = dtype_name(info.kv_type);
        row.state = dtype_name(info.state_type);
        for (std::string* name : {&row.kv, &row.state})
            for (char& c : *name) c = char(std::tolower(c));
        row.activations = info.activations;
        row.cpu_info = cpu_name();
        row.test_time = utc_now();
        row.model_size = facts.tensor_bytes;
        row.model_n_params = facts.tensor_elements;
        row.n_batch = test.chunk;
        row.n_prompt = test.prompt, row.n_gen = test.generate;
        row.n_depth = test.depth, row.n_parallel = test.parallel;
        return row;
    }

    // A short run of the same kind: code and weights are touched once.
    static Result<void> warm_up(Engine& engine, const BenchTest& test, std::mt19937& random) {
        const BenchTest small{std::min<int64_t>(test.prompt, test.chunk), std::min<int64_t>(test.generate, 1),
                              0, test.parallel, test.chunk};
        TRY([[maybe_unused]] const int64_t ns, time_test(engine, small, random));
        return {};
    }

    static void look_at_gpu(const Nvml& nvml, const BackendInfo& info, BenchRow& row) {
        const GpuFacts now = nvml.at(info.bus_id);
        if (now.sm_mhz >= 0) row.sm_mhz = row.sm_mhz < 0 ? now.sm_mhz : std::min(row.sm_mhz, now.sm_mhz);
        row.temp_c = std::max(row.temp_c, now.celsius);
    }

    Result<void> run_peer_too(BenchRow& row, const BackendInfo& info) const {
        const PeerTest test{*options.compare, options.model, row.n_prompt,     row.n_gen,
                            row.n_depth,      row.n_threads, !info.host_memory};
        TRY(const PeerResult result, run_peer(test));
        if (!row.peer) {
            row.peer = PeerSamples{result.backends, result.commit, result.type_k, "", {}};
            for (const std::string& word : peer_command(test))
                row.peer->command.append(row.peer->command.empty() ? "" : " ").append(shell_quoted(word));
        }
        row.peer->samples_ts.push_back(result.tokens_per_s);
        return {};
    }

    Result<void> write(const BenchRow& row) {
        TRY_VOID(session.out.write(bench_line(row, options.format, first)));
        first = false;
        if (results) TRY_VOID(results->append(result_line(row, notes)));
        if (results && row.peer) TRY_VOID(results->append(peer_result_line(row, notes)));
        return {};
    }
};

// Who the rows of a results file are about. Reads the whole model when its SHA-256 is asked for.
Result<ResultNotes> result_notes(const BenchOptions& o, const ModelFacts& facts, const Session& session) {
    ResultNotes notes;
    std::filesystem::path path(o.model);
    if (!path.has_filename()) path = path.parent_path();  // "folder/"
    notes.model = o.label                       ? *o.label
                  : path.extension() == ".gguf" ? path.stem().string()
                                                : path.filename().string();
    notes.commit = build_commit();
    notes.command = session.command;
    if (!o.sha256) return notes;
    log_info("reading {:.1f} GB for their SHA-256", double(facts.file_bytes) * 1e-9);
    uint64_t next = uint64_t(5) << 30;
    TRY(notes.sha256, sha256_of_files(facts.files, [&](uint64_t done) {
            if (done >= next)
                log_info("{:.0f} of {:.0f} GB", double(done) * 1e-9, double(facts.file_bytes) * 1e-9);
            if (done >= next) next += uint64_t(5) << 30;
            return !interrupted();
        }));
    return notes;
}

}  // namespace

Result<int> run_command(const BenchOptions& o, Session& session) {
    TRY(const ModelFacts facts, model_facts(o.model));
    TRY_VOID(check_tests(tests_of(o), facts));
    const Deferred deferred;
    BenchRun bench{o, facts, session};
    std::optional<ResultsFile> results;
    if (o.jsonl) {
        TRY(ResultsFile file, ResultsFile::open(*o.jsonl));
        bench.results = &results.emplace(std::move(file));
        TRY(bench.notes, result_notes(o, facts, session));
    }
    std::vector<int64_t> threads = o.threads;
    if (threads.empty()) threads.push_back(usable_cores());
    for (const int64_t n : threads) {
        if (interrupted()) break;
        TRY_VOID(bench.run(int(n)));
    }
    TRY_VOID(session.out.write(bench_foot(o.format)));
    return interrupted() ? kExitInterrupted : 0;
}

}  // namespace sparkinfer
