#include "cli/commands.h"

#include <new>

#include "cli/machine.h"
#include "core/log.h"

namespace sparkinfer {

Result<std::unique_ptr<Backend>> Session::backend(const std::string& name,
                                                  const std::optional<int64_t>& threads) const {
    return make_backend({name, threads ? int(*threads) : usable_cores()});
}

Result<std::unique_ptr<Engine>> Session::engine(const std::string& model, Backend& backend,
                                                const EngineOptions& options) const {
    TRY(std::unique_ptr<Engine> engine, Engine::open(model, backend, options));
    for (const std::string& notice : backend.info().notices) log_line(LogLevel::info, notice);
    return engine;
}

static int finish(const Error& error) {
    log_line(LogLevel::error, error.message);
    return int(error.kind);
}

int cli_main(int argc, char** argv, const BackendFactory& make_backend) {
    Session session{make_backend, {}, Clock::now()};
    occupy_standard_descriptors();
    watch_interrupts();
    try {
        auto parsed = parse_command_line({argv + std::min(argc, 1), argv + argc});
        if (!parsed.ok()) return finish(parsed.error());
        if (const auto* printout = std::get_if<Printout>(&parsed.value())) {
            const auto written = session.out.write(printout->text);
            return written.ok() ? 0 : finish(written.error());
        }
        const Command& command = std::get<Command>(parsed.value());
        const Result<int> ran =
            std::visit([&](const auto& options) { return run_command(options, session); }, command);
        return ran.ok() ? ran.value() : finish(ran.error());
    } catch (const std::bad_alloc&) {
        return finish(out_of_resources("out of memory"));
    }
}

}  // namespace sparkinfer
