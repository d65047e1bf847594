// scripted_serve.cpp — the product's `serve` with a model that says what a script has. For tests of clients:
// the task succeeds while scheduler, caches, grammar and server are the product's.
//
//     scripted_serve SCRIPT.json REPORT.jsonl MODEL [options of `sparkinfer serve`]
//
// Ends with code 3 when a prompt fitted no rule or a scripted token was not allowed; the report says which.
#include <cstdio>
#include <vector>

#include "cli/commands.h"
#include "cli/model_facts.h"
#include "core/log.h"
#include "scripted_backend.h"

namespace sparkinfer::test {
namespace {

constexpr int kNotSaid = 3;

Result<std::shared_ptr<const Speaker>> make_speaker(const std::string& script_path,
                                                    const std::string& model) {
    TRY(Script script, Script::read(script_path));
    TRY(const Metadata metadata, model_metadata(model));
    TRY(Tokenizer tokenizer, Tokenizer::from_metadata(metadata));
    return std::shared_ptr<const Speaker>(std::make_shared<Speaker>(std::move(script), std::move(tokenizer)));
}

Result<int> scripted_serve(int argc, char** argv) {
    if (argc < 4) return usage_error("usage: scripted_serve SCRIPT.json REPORT.jsonl MODEL [serve options]");
    TRY(const std::shared_ptr<const Speaker> speaker, make_speaker(argv[1], argv[3]));
    const auto report = std::make_shared<ScriptReport>();
    TRY_VOID(report->write_to(argv[2]));
    Backends backends;
    backends.make = [&](const BackendChoice& choice) -> Result<std::unique_ptr<Backend>> {
        CpuOptions options;
        options.threads = choice.threads;
        TRY(std::unique_ptr<Backend> cpu, make_cpu_backend(options));
        return std::unique_ptr<Backend>(std::make_unique<ScriptedBackend>(std::move(cpu), speaker, report));
    };
    backends.look_at_cuda = [] { return CudaView{}; };
    std::vector<char*> arguments{argv[0], const_cast<char*>("serve")};
    arguments.insert(arguments.end(), argv + 3, argv + argc);
    const int code = cli_main(int(arguments.size()), arguments.data(), backends);
    if (report->failures() == 0) return code;
    std::fprintf(stderr, "scripted_serve: %d times the script could not be said, see %s\n",
                 report->failures(), argv[2]);
    return kNotSaid;
}

}  // namespace
}  // namespace sparkinfer::test

int main(int argc, char** argv) {
    auto code = sparkinfer::test::scripted_serve(argc, argv);
    if (code.ok()) return code.value();
    std::fprintf(stderr, "scripted_serve: error: %s\n", code.error().message.c_str());
    return 2;
}
