// bench_serve.cpp — `sparkinfer bench serve`: loads a server as clients do and says how long they wait.
//
// Closed loop: N clients, each with its next request when the last is answered. Open loop: requests that come
// at random times whatever the server does, so that its delays do not thin the load out. Sessions: clients
// whose prompts grow by a turn each, as an agent's do.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>

#include "cli/commands.h"
#include "cli/serve_load.h"
#include "cli/serve_stats.h"
#include "cli/serve_trace.h"
#include "core/file.h"
#include "core/log.h"

namespace sparkinfer {
namespace {

constexpr int64_t kOpenRequestsMax = 1024;  // under way at once in an open loop
constexpr int64_t kRequestsPerClient = 4;
constexpr uint64_t kSeedStep = 1 << 20;  // between the random texts of two runs

// The results of threads.
class ResultList {
  public:
    void add(LoadResult result) {
        const std::lock_guard lock(mutex_);
        results_.push_back(std::move(result));
    }
    std::vector<LoadResult> take() {
        std::sort(results_.begin(), results_.end(),
                  [](const LoadResult& a, const LoadResult& b) { return a.due_s < b.due_s; });
        return std::move(results_);
    }

  private:
    std::mutex mutex_;
    std::vector<LoadResult> results_;
};

class ServeBench {
  public:
    ServeBench(const BenchServeOptions& options, Url url, LoadTarget target)
        : options_(options), url_(std::move(url)), target_(std::move(target)) {}

    HttpClient client() const {
        return HttpClient(url_, {std::chrono::seconds(options_.timeout_s), interrupted});
    }

    // A first request that is not measured: the server's caches, the model's pages.
    Result<void> warm_up() {
        HttpClient first = client();
        AnswerStream answer;
        const LoadRequest request = completion_request(target_, 16, 2, seed_);
        const LoadResult result = run_request(first, request, target_.key, Clock::now(), 0, answer);
        if (!result.ok()) return out_of_resources("{}: {}", options_.url, result.error);
        return {};
    }

    LoadRun closed_loop(int64_t clients) {
        const int64_t requests = options_.requests.value_or(clients * kRequestsPerClient);
        LoadRun run{count_text(clients, "client"), clients, 0, options_.prompt, options_.generate, {}};
        ResultList results;
        std::atomic<int64_t> next = 0;
        const Clock::time_point began = Clock::now();
        parallel(std::min(clients, requests), [&](int64_t) {
            HttpClient own = client();
            for (int64_t i = next++; i < requests && !interrupted(); i = next++) {
                AnswerStream answer;
                const double due = seconds_between(began, Clock::now());
                results.add(run_request(own, load(i), target_.key, began, due, answer));
            }
        });
        return finished(std::move(run), results);
    }

    LoadRun open_loop(double rate) {
        const int64_t requests = options_.requests.value_or(32);
        LoadRun run{fmt::format("{} requests/s", rate), 0, rate, options_.prompt, options_.generate, {}};
        ResultList results;
        std::mt19937_64 random{uint64_t(options_.seed)};
        std::exponential_distribution<double> gap(rate);
        std::vector<std::thread> threads;
        std::atomic<int64_t> under_way = 0;
        const Clock::time_point began = Clock::now();
        double due = 0;
        for (int64_t i = 0; i < requests && !interrupted(); ++i) {
            std::this_thread::sleep_until(
                began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due)));
            const auto work = [&, i, due] {
                HttpClient own = client();
                AnswerStream answer;
                results.add(run_request(own, load(i), target_.key, began, due, answer));
                --under_way;
            };
            if (++under_way > kOpenRequestsMax || !start(threads, work)) {
                --under_way;
                results.add({.due_s = due,
                             .first_s = due,
                             .end_s = due,
                             .error = "not sent: too many are under way"});
            }
            due += gap(random);
        }
        for (std::thread& thread : threads) thread.join();
        return finished(std::move(run), results);
    }

    LoadRun sessions(int64_t clients, const std::optional<SessionTrace>& read) {
        LoadRun run{count_text(clients, "session"), clients, 0, options_.prompt, options_.generate, {}};
        ResultList results;
        const Clock::time_point began = Clock::now();
        parallel(clients, [&](int64_t i) {
            const SessionTrace made = read ? SessionTrace{}
                                           : made_trace(options_.prompt, *options_.turns, options_.turn_words,
                                                        seed_ + uint64_t(i) * kRequestsPerClient * 1000);
            replay(read ? *read : made, began, results);
        });
        return finished(std::move(run), results);
    }

  private:
    static std::string count_text(int64_t n, const char* what) {
        return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
    }

    // False where the system gives no further thread.
    static bool start(std::vector<std::thread>& threads, std::function<void()> work) {
        try {
            threads.emplace_back(std::move(work));
            return true;
        } catch (const std::system_error& e) {
            log_info("only {} clients run: {}", threads.size(), e.what());
            return false;
        }
    }

    static void parallel(int64_t n, const std::function<void(int64_t)>& work) {
        std::vector<std::thread> threads;
        for (int64_t i = 0; i < n; ++i)
            if (!start(threads, [&work, i] { work(i); })) break;
        for (std::thread& thread : threads) thread.join();
    }

    // No two requests share a prompt.
    LoadRequest load(int64_t i) const {
        return completion_request(target_, options_.prompt, options_.generate, seed_ + uint64_t(i) + 1);
    }

    void replay(const SessionTrace& trace, Clock::time_point began, ResultList& results) const {
        HttpClient own = client();
        ReplayedSession session(trace, target_, options_.generate);
        for (int turn = 0; !session.ended() && !interrupted(); ++turn) {
            AnswerStream answer;
            const LoadRequest request = session.request();
            const double due = seconds_between(began, Clock::now());
            LoadResult result = run_request(own, request, target_.key, began, due, answer);
            result.turn = turn;
            const bool ok = result.ok();
            results.add(std::move(result));
            if (!ok) return;
            session.answered(answer.message());
        }
    }

    LoadRun finished(LoadRun run, ResultList& results) {
        run.results = results.take();
        seed_ += kSeedStep;
        return run;
    }

    const BenchServeOptions& options_;
    Url url_;
    LoadTarget target_;
    uint64_t seed_ = uint64_t(options_.seed) * kSeedStep * 1000;
};

Result<std::string> read_key(const std::optional<std::string>& path) {
    if (!path) return std::string();
    TRY(const std::string text, read_text_file(*path, 64 << 10));
    const std::string key = text.substr(0, text.find_first_of("\r\n"));
    if (key.empty() || key.rfind("sha256:", 0) == 0)
        return bad_input("{}: its first line is '{}', expected an API key", *path, key.substr(0, 16));
    return key;
}

// Writes a run's row; failures also to stderr, one line each kind.
Result<void> report(const LoadRun& run, BenchFormat format, bool first, Session& session) {
    TRY_VOID(session.out.write(serve_row(run, format, first)));
    std::map<std::string, int> errors;
    for (const LoadResult& r : run.results)
        if (!r.ok()) errors[r.error]++;
    for (const auto& [error, count] : errors)
        log_info("{}: {} of {} failed: {}", run.load, count, run.results.size(), error);
    return {};
}

}  // namespace

Result<int> run_command(const BenchServeOptions& o, Session& session) {
    TRY(Url url, parse_url(o.url));
    TRY(const std::string key, read_key(o.api_key_file));
    std::optional<SessionTrace> trace;
    if (o.trace) {
        TRY(trace, read_trace(*o.trace));
    }
    const Deferred deferred;
    HttpClient first(url, {std::chrono::seconds(o.timeout_s), interrupted});
    TRY(LoadTarget target, look_at_server(first, o.model.value_or(""), key));
    if (target.words.empty()) log_info("the server has no /tokenize: prompts are words, not counted tokens");
    ServeBench bench(o, url, std::move(target));
    TRY_VOID(bench.warm_up());
    TRY_VOID(session.out.write(serve_head(o.format)));
    bool is_first = true;
    const auto runs = [&](const auto& loads, const auto& make) -> Result<void> {
        for (const auto load : loads) {
            if (interrupted() || session.out.closed()) break;
            TRY_VOID(report(make(load), o.format, std::exchange(is_first, false), session));
        }
        return {};
    };
    if (trace || o.turns)
        TRY_VOID(runs(o.clients, [&](int64_t n) { return bench.sessions(n, trace); }));
    else if (!o.rates.empty())
        TRY_VOID(runs(o.rates, [&](double rate) { return bench.open_loop(rate); }));
    else
        TRY_VOID(runs(o.clients, [&](int64_t n) { return bench.closed_loop(n); }));
    TRY_VOID(session.out.write(serve_foot(o.format)));
    return interrupted() ? kExitInterrupted : 0;
}

}  // namespace sparkinfer
