// option_binder.h — flags of a command, bound to the fields of its options struct.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/option_values.h"
#include "cli/options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): theirs
class App;
class Option;
}  // namespace CLI

namespace sparkinfer {

constexpr int64_t kMaxTokens = INT32_MAX;  // of a context, a prompt, an answer
constexpr int64_t kMaxThreads = 512;
constexpr double kMaxNumber = 3.4e38;  // still a float32
constexpr const char* kThreadsHelp = "threads that compute on the CPU (default: the physical cores at hand)";
constexpr const char* kKvDefault = "bf16 on cuda, f32 on cpu";

// The words that a flag or an argument knows, for completion.
using KnownWords = std::map<const CLI::Option*, std::vector<std::string>>;

// What a command's flags are bound to: CLI11's command, and the first thing that is wrong with a value.
struct Binder {
    CLI::App& app;
    std::optional<Error>& wrong;
    KnownWords& words;
    using Take = std::function<Result<void>(const std::string&)>;

    // One value; `take` answers with an Error when it is off.
    CLI::Option* value(const char* names, const char* type, const char* help, Take take);
    // The same, and the flag may be given several times.
    CLI::Option* values(const char* names, const char* type, const char* help, Take take);
    CLI::Option* text(const char* names, const char* type, const char* help, std::optional<std::string>& to);
    // Any number of texts, none of them empty.
    CLI::Option* texts(const char* names, const char* type, const char* help, std::vector<std::string>& to);
    template <class T>
    CLI::Option* integer(const char* names, const char* help, int64_t min, int64_t max, T& to) {
        return value(names, "N", help, [=, &to](const std::string& text) -> Result<void> {
            TRY(to, parse_int(names, text, min, max));
            return {};
        });
    }
    CLI::Option* number(const char* names, const char* help, NumberRange range, std::optional<double>& to);
    CLI::Option* bytes(const char* names, const char* help, std::optional<int64_t>& to);
    CLI::Option* list(const char* names, const char* help, int64_t min, int64_t max,
                      std::vector<int64_t>& to);
    void flag(const char* names, const char* help, bool& to);
    // A word without a flag, which must be given.
    CLI::Option* word(const char* name, const char* help, std::string& to);
    CLI::Option* optional_word(const char* name, const char* help, std::optional<std::string>& to);
    // Any number of such words.
    void more_words(const char* name, const char* help, std::vector<std::string>& to);
    void known(const CLI::Option* option, std::vector<std::string> known) {
        words[option] = std::move(known);
    }
    void model(std::string& to);
    void threads(std::optional<int64_t>& to);
    void backend(std::string& to);
    void stored(StoredTypes& to, const char* kv_default);
    void sampling(SamplingOptions& to);
};

// measure_options.cpp
void bind_explain(Binder b, ExplainOptions& o);
void bind_bench(Binder b, BenchOptions& o);
// file_options.cpp
void bind_pull(Binder b, PullOptions& o);
void bind_models(Binder b, ModelsOptions& o);
// chat_options.cpp
void bind_chat(Binder b, ChatOptions& o);
Result<void> check_chat(const ChatOptions& o);
// serve_options.cpp
void bind_serve(Binder b, ServeOptions& o);
Result<void> check_serve(const ServeOptions& o);
// bench_serve_options.cpp
void bind_bench_serve(Binder b, BenchServeOptions& o);
Result<void> check_bench_serve(const BenchServeOptions& o);

// quantize_options.cpp
void bind_quantize(Binder b, QuantizeOptions& o);

}  // namespace sparkinfer
