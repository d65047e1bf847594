#include "cli/bench_time.h"

#include <algorithm>
#include <optional>
#include <set>

#include "cli/commands.h"
#include "model/model.h"
#include "ops/explain.h"

namespace sparkinfer {

namespace {

constexpr int64_t kPromptRowsLeast =
    kBenchChunk - 64;  // of a step: generating sequences take a row each first

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

// Nanoseconds for `generate` steps in which every sequence is live: from the step that brought the last one's
// first token.
Result<int64_t> time_generation(Engine& engine, const BenchTest& test, std::mt19937& random) {
    std::vector<RequestId> ids;
    for (int64_t i = 0; i < test.parallel; ++i) {
        const int64_t answer = test.generate + 1 + test.head_start();
        TRY(const RequestId id, engine.submit(random_request(engine, test.depth + 1, answer, random)));
        ids.push_back(id);
    }
    std::set<RequestId> begun;
    std::optional<Clock::time_point> start;
    Clock::time_point last = Clock::now();
    int64_t counted = 0;
    const int64_t wanted = test.generate * test.parallel;
    while (!engine.idle()) {
        if (interrupted() || counted >= wanted)
            for (const RequestId id : ids) engine.cancel(id);
        TRY(const std::vector<Event> events, engine.step());
        if (counted >= wanted) continue;
        const Clock::time_point now = Clock::now();
        for (const Event& event : events) {
            if (!event.token) continue;
            if (start) ++counted, last = now;
            begun.insert(event.request);
        }
        if (!start && int64_t(begun.size()) == test.parallel) start = now;
    }
    if (!interrupted() && counted != wanted)
        return internal_error("the engine gave {} tokens of {} sequences, expected {}", counted,
                              test.parallel, wanted);
    return start ? int64_t(seconds_between(*start, last) * 1e9) : 0;
}

}  // namespace

int64_t BenchTest::head_start() const {
    return parallel > 1 ? parallel * ((depth + 1) / kPromptRowsLeast + 2) : 0;
}

Result<int64_t> time_test(Engine& engine, const BenchTest& test, std::mt19937& random) {
    return test.prompt > 0 ? time_prompt(engine, test, random) : time_generation(engine, test, random);
}

double bytes_of(const Engine& engine, const BenchTest& test) {
    double bytes = 0;
    if (test.prompt == 0) {
        const int32_t n = int32_t(test.parallel);
        const Tape one = engine.record(1, OutputKind::select), all = engine.record(n, OutputKind::select);
        for (int64_t i = 0; i < test.generate; ++i) {
            const int64_t depth = test.depth + 1 + i;
            const OpCost row = tape_cost(one, {1, depth, 1});
            // Weights are shared by the sequences; keys, values and state are each one's own.
            bytes += tape_cost(all, {n, depth, n}).weight_bytes + n * (row.kv_bytes + row.state_bytes);
        }
        return bytes;
    }
    const Tape tape = engine.record(test.chunk, OutputKind::none);
    for (int64_t at = 0; at < test.prompt; at += test.chunk)
        bytes +=
            tape_cost(tape, {int32_t(std::min<int64_t>(test.chunk, test.prompt - at)), test.depth + at, 0})
                .bytes();
    const Tape last = engine.record(1, OutputKind::select);  // the head runs once
    for (const Instr& instr : last.instrs())
        if (instr.code == OpCode::output) bytes += op_cost(instr, {1, 0, 1}).bytes();
    return bytes;
}

}  // namespace sparkinfer
