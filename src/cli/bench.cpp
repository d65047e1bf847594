// bench.cpp — `sparkinfer bench`: tokens per second of prompts (pp) and of generation (tg), as llama-bench
// has them: a warm-up run, random tokens, no sampling, end tokens ignored. At a depth, the tokens before are
// run and not timed.
#include <algorithm>
#include <ctime>
#include <random>

#include "cli/bench_table.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/model_facts.h"
#include "core/log.h"
#include "ops/explain.h"

namespace sparkinfer {

namespace {

constexpr int32_t kChunk = 512;  // most prompt rows in one step

struct BenchTest {
    int64_t prompt = 0, generate = 0, depth = 0;  // tokens
    // In the context at the end: tg feeds one token before it can generate.
    int64_t context() const { return depth + (prompt ? prompt + 1 : generate + 2); }
};

// llama-bench's order: every depth, of each first the prompts, then the generations.
std::vector<BenchTest> tests_of(const BenchOptions& o) {
    std::vector<BenchTest> tests;
    for (const int64_t depth : o.depth) {
        for (const int64_t n : o.prompt)
            if (n > 0) tests.push_back({n, 0, depth});
        for (const int64_t n : o.generate)
            if (n > 0) tests.push_back({0, n, depth});
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

Request random_request(const Engine& engine, int64_t prompt, int64_t answer, std::mt19937& random) {
    Request request;
    std::uniform_int_distribution<int32_t> token(0, engine.shape().vocab - 1);
    for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(TokenId(token(random)));
    request.max_tokens = int32_t(answer);
    request.sampling.temperature = 0;
    return request;
}

// Nanoseconds for the last `n` rows of a prompt. Steps before are not counted; of a step that straddles the
// border, the share of its rows.
Result<int64_t> time_prompt(Engine& engine, const BenchTest& test, std::mt19937& random) {
    TRY(const RequestId id, engine.submit(random_request(engine, test.depth + test.prompt, 1, random)));
    double seconds = 0;
    int64_t fed = 0;
    while (!engine.idle()) {
        if (interrupted()) engine.cancel(id);
        const auto start = Clock::now();
        TRY(const std::vector<Event> events, engine.step());
        const double spent = seconds_between(start, Clock::now());
        const PrefillProgress progress = engine.prefill_progress(id);
        const int64_t done = progress.total > 0 ? progress.done : test.depth + test.prompt;
        const int64_t timed = done - std::max(fed, test.depth);
        if (done > fed)
            seconds += timed > 0 ? spent * double(timed) / double(done - fed) : 0;
        else
            seconds += spent;  // the prompt is fed, its last rows are still being computed
        fed = done;
    }
    return int64_t(seconds * 1e9);
}

// Nanoseconds for `n` tokens, each one forward pass of one row, after `depth` tokens and a first one.
Result<int64_t> time_generation(Engine& engine, const BenchTest& test, std::mt19937& random) {
    TRY(const RequestId id, engine.submit(random_request(engine, test.depth + 1, test.generate + 1, random)));
    std::optional<Clock::time_point> first;
    Clock::time_point last = Clock::now();
    while (!engine.idle()) {
        if (interrupted()) engine.cancel(id);
        TRY(const std::vector<Event> events, engine.step());
        for (const Event& event : events) {
            if (!event.token) continue;
            last = Clock::now();
            if (!first) first = last;
        }
    }
    return first ? int64_t(seconds_between(*first, last) * 1e9) : 0;
}

Result<int64_t> time_test(Engine& engine, const BenchTest& test, std::mt19937& random) {
    return test.prompt > 0 ? time_prompt(engine, test, random) : time_generation(engine, test, random);
}

// What one run of the test must read and write at least.
double bytes_of(const Engine& engine, const BenchTest& test) {
    double bytes = 0;
    if (test.prompt == 0) {
        const Tape tape = engine.record(1, OutputKind::select);
        for (int64_t i = 0; i < test.generate; ++i)
            bytes += tape_cost(tape, {1, test.depth + 1 + i, 1}).bytes();
        return bytes;
    }
    const Tape tape = engine.record(kChunk, OutputKind::none);
    for (int64_t at = 0; at < test.prompt; at += kChunk)
        bytes += tape_cost(tape, {int32_t(std::min<int64_t>(kChunk, test.prompt - at)), test.depth + at, 0})
                     .bytes();
    const Tape last = engine.record(1, OutputKind::select);  // the head runs once
    for (const Instr& instr : last.instrs())
        if (instr.code == OpCode::output) bytes += op_cost(instr, {1, 0, 1}).bytes();
    return bytes;
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

// All tests with one number of threads.
struct BenchRun {
    const BenchOptions& options;
    const ModelFacts& facts;
    Session& session;
    bool headed = false, first = true;  // what was written: the head, no row

    Result<void> run(int threads) {
        const std::vector<BenchTest> tests = tests_of(options);
        EngineOptions engine_options;
        engine_options.chunk = kChunk;
        engine_options.context = 2;
        for (const BenchTest& test : tests)
            engine_options.context = std::max(engine_options.context, int32_t(test.context()));
        TRY(const std::unique_ptr<Backend> backend, session.backend(options.backend, threads));
        const double bandwidth = backend->info().host_memory ? read_bandwidth(threads) : 0;
        TRY(const std::unique_ptr<Engine> engine, session.engine(options.model, *backend, engine_options));
        if (!std::exchange(headed, true)) TRY_VOID(session.out.write(bench_head(options.format)));
        std::mt19937 random(1);
        for (const BenchTest& test : tests) {
            BenchRow row;
            row.model_filename = options.model;
            row.model_type = model_type(facts);
            row.backend = backend->info().name;
            row.cpu_info = cpu_name();
            row.test_time = utc_now();
            row.model_size = facts.tensor_bytes;
            row.model_n_params = facts.tensor_elements;
            row.n_batch = kChunk;
            row.n_threads = threads;
            row.n_prompt = test.prompt, row.n_gen = test.generate, row.n_depth = test.depth;
            row.bytes = bytes_of(*engine, test);
            row.bandwidth = bandwidth;
            TRY_VOID(warm_up(*engine, test, random));
            for (int64_t i = 0; i < options.repetitions && !interrupted(); ++i) {
                TRY(const int64_t sample, time_test(*engine, test, random));
                row.samples_ns.push_back(std::max<int64_t>(sample, 1));
            }
            if (interrupted() || session.out.closed()) return {};
            TRY_VOID(session.out.write(bench_line(row, options.format, first)));
            first = false;
        }
        return {};
    }

    // A short run of the same kind: code and weights are touched once.
    static Result<void> warm_up(Engine& engine, const BenchTest& test, std::mt19937& random) {
        const BenchTest small{std::min<int64_t>(test.prompt, kChunk), std::min<int64_t>(test.generate, 1), 0};
        TRY([[maybe_unused]] const int64_t ns, time_test(engine, small, random));
        return {};
    }
};

}  // namespace

Result<int> run_command(const BenchOptions& o, Session& session) {
    TRY(const ModelFacts facts, model_facts(o.model));
    TRY_VOID(check_tests(tests_of(o), facts));
    const Deferred deferred;
    std::vector<int64_t> threads = o.threads;
    if (threads.empty()) threads.push_back(usable_cores());
    BenchRun bench{o, facts, session};
    for (const int64_t n : threads) {
        TRY_VOID(bench.run(int(n)));
        if (interrupted()) break;
    }
    TRY_VOID(session.out.write(bench_foot(o.format)));
    return interrupted() ? kExitInterrupted : 0;
}

}  // namespace sparkinfer
