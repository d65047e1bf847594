#include "cli/commands.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>
#include <type_traits>

#include "cli/machine.h"
#include "cli/model_store.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/log.h"
#include "core/unfinished.h"

namespace sparkinfer {

Result<std::unique_ptr<Backend>> Session::backend(const std::string& name,
                                                  const std::optional<int64_t>& threads,
                                                  const StoredTypes& stored) const {
    BackendChoice choice;
    choice.name = name;
    choice.threads = threads ? int(*threads) : usable_cores();
    choice.stored = stored;
    TRY(std::unique_ptr<Backend> backend, backends.make(choice));
    const BackendInfo& info = backend->info();
    if (stored.kv || stored.state)
        log_info("keys and values in {}, recurrent states in {}", dtype_name(info.kv_type),
                 dtype_name(info.state_type));
    if (stored.activations) log_info("activations in {}", info.activations);
    return backend;
}

Result<std::unique_ptr<Engine>> Session::engine(const std::string& model, Backend& backend,
                                                const EngineOptions& options) const {
    ProgressBar bar(STDERR_FILENO);
    OpenObserver observer;
    // The weights of a host stay in the map of their files: nothing is planned that it would have to wait
    // for.
    if (!backend.info().host_memory)
        observer.planned = [](const MemoryPlan& plan) { log_info("memory: {}", memory_plan_text(plan)); };
    observer.placed = [&](int64_t done, int64_t total) { bar.show(done, total); };
    auto opened = Engine::open(model, backend, options, observer);
    bar.erase();
    TRY(std::unique_ptr<Engine> engine, std::move(opened));
    for (const std::string& notice : backend.info().notices) log_line(LogLevel::info, notice);
    return engine;
}

static int finish(const Error& error) {
    log_line(LogLevel::error, error.message);
    return int(error.kind);
}

std::string shell_quoted(const std::string& word) {
    const auto plain = [](char c) {
        return std::isalnum(uint8_t(c)) || std::string_view("@%_+=:,./-").find(c) != std::string_view::npos;
    };
    if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

// Names of pulled models as the paths of their files.
template <class Options>
static Result<void> find_models_of(Options& options) {
    if constexpr (std::is_same_v<Options, ConnectOptions>) return {};  // its model is a server's
    if constexpr (requires { options.model.size(); }) {
        TRY(options.model, find_model(options.model));
    }
    if constexpr (std::is_same_v<Options, InspectOptions>) {
        TRY(options.file, find_model(options.file));
    }
    return {};
}

// What an exception of a library says to an operator: memory, or something else that the system has no more
// of.
static Error error_of(std::exception_ptr exception) {
    try {
        std::rethrow_exception(std::move(exception));
    } catch (const std::bad_alloc&) {
        return out_of_resources("out of memory");
    } catch (const std::system_error& e) {
        return out_of_resources("the system refuses: {}", e.what());
    } catch (const std::exception& e) {
        return internal_error("{}", e.what());
    } catch (...) {
        return internal_error("an exception of an unknown kind");
    }
}

// On a thread that nobody watches over.
[[noreturn]] static void end_on_exception() {
    restore_terminal();
    if (const std::exception_ptr exception = std::current_exception())
        end_process(finish(error_of(exception)));
    std::abort();
}

int cli_main(int argc, char** argv, const Backends& backends) {
    Session session{backends, {}, Clock::now(), "sparkinfer"};
    for (int i = 1; i < argc; ++i) session.command.append(1, ' ').append(shell_quoted(argv[i]));
    occupy_standard_descriptors();
    watch_interrupts();
    watch_lost_pages(restore_terminal);
    std::set_terminate(end_on_exception);
    try {
        auto parsed = parse_command_line({argv + std::min(argc, 1), argv + argc});
        if (!parsed.ok()) return finish(parsed.error());
        if (const auto* printout = std::get_if<Printout>(&parsed.value())) {
            const auto written = session.out.write(printout->text);
            return written.ok() ? 0 : finish(written.error());
        }
        Command& command = std::get<Command>(parsed.value());
        const auto found = std::visit([](auto& options) { return find_models_of(options); }, command);
        if (!found.ok()) return finish(found.error());
        const Result<int> ran =
            std::visit([&](const auto& options) { return run_command(options, session); }, command);
        return ran.ok() ? ran.value() : finish(ran.error());
    } catch (...) {
        return finish(error_of(std::current_exception()));
    }
}

}  // namespace sparkinfer
