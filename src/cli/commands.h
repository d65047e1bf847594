// commands.h — what the commands share: how to get a backend, where results go, when the program started. One
// overload of run_command a command, each in a file of its own; all answer with an exit code or an Error.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/gpu.h"
#include "cli/options.h"
#include "cli/streams.h"
#include "core/result.h"
#include "engine/engine.h"
#include "ops/backend.h"

namespace sparkinfer {

using Clock = std::chrono::steady_clock;
inline double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

// What --backend and --threads say.
struct BackendChoice {
    std::string name;       // "auto", "cuda", "cpu"
    int threads = 1;        // where a CPU computes
    bool op_by_op = false;  // on a GPU: no graphs
    StoredTypes stored = {};
    bool measure = false;  // time every op
};
// Makes the backend that computes. Errors: the one asked for is not in this build (usage), or not usable on
// this machine (resources).
using BackendFactory = std::function<Result<std::unique_ptr<Backend>>(const BackendChoice&)>;

// What a backend makes of a tape, told without its device and without weights.
struct Lowered {
    std::vector<LaunchInfo> launches;
    std::vector<std::string> notices;  // as BackendInfo's
};
// On a GPU as --gpu names it (h200, …). Errors: a backend that is not in this build (usage).
using Lowerer = std::function<Result<Lowered>(const BackendChoice&, const std::string& gpu, const Tape&)>;

// What main.cpp, the one place that names backends, lends to the commands.
struct Backends {
    BackendFactory make;
    Lowerer lower;
    std::function<CudaView()> look_at_cuda;  // may start the GPU
};

struct Session {
    Backends backends;
    StandardOutput out;
    Clock::time_point started;  // when the program did
    std::string command;        // as it was typed, quoted for a shell

    // Without --threads, one a usable core.
    Result<std::unique_ptr<Backend>> backend(const std::string& name, const std::optional<int64_t>& threads,
                                             const StoredTypes& stored) const;
    // An engine over it; what the backend has to say about the model's weights goes to stderr.
    Result<std::unique_ptr<Engine>> engine(const std::string& model, Backend& backend,
                                           const EngineOptions& options) const;
};

Result<int> run_command(const RunOptions& options, Session& session);
Result<int> run_command(const ChatOptions& options, Session& session);
Result<int> run_command(const InspectOptions& options, Session& session);
Result<int> run_command(const TokenizeOptions& options, Session& session);
Result<int> run_command(const ExplainOptions& options, Session& session);
Result<int> run_command(const DiffOptions& options, Session& session);
Result<int> run_command(const PerplexityOptions& options, Session& session);
Result<int> run_command(const QuantizeOptions& options, Session& session);
Result<int> run_command(const ConvertOptions& options, Session& session);
Result<int> run_command(const PullOptions& options, Session& session);
Result<int> run_command(const ModelsOptions& options, Session& session);
Result<int> run_command(const CompletionOptions& options, Session& session);
Result<int> run_command(const ManualOptions& options, Session& session);
Result<int> run_command(const BenchOptions& options, Session& session);
Result<int> run_command(const BenchServeOptions& options, Session& session);
Result<int> run_command(const DoctorOptions& options, Session& session);
Result<int> run_command(const ServeOptions& options, Session& session);
Result<int> run_command(const ConnectOptions& options, Session& session);

// One word of a command as a shell takes it back.
std::string shell_quoted(const std::string& word);

// The program: parses argv, runs the command, prints its error, answers with the exit code.
int cli_main(int argc, char** argv, const Backends& backends);

}  // namespace sparkinfer
