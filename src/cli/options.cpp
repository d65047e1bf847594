#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "cli/gpu.h"
#include "cli/nearest.h"
#include "cli/option_binder.h"
#include "cli/option_values.h"
#include "cli/version.h"
#include "ops/step.h"

namespace sparkinfer {

namespace {

void bind(Binder b, RunOptions& o) {
    b.model(o.model);
    CLI::Option* text = b.text("-p,--prompt", "TEXT", "the prompt (default: read from stdin)", o.prompt.text);
    b.text("-f,--file", "FILE", "read the prompt from a file", o.prompt.file)->excludes(text);
    b.integer("-n,--predict", "most tokens to generate; -1: to the end token (default)", -1, kMaxTokens,
              o.max_tokens);
    b.sampling(o.sampling);
    b.texts("--stop", "TEXT", "end the answer before this text; may be given several times", o.stop);
    b.integer("--logprobs", "report log-probabilities, with N alternatives a token (in --json)", 0,
              kMaxTopLogprobs, o.logprobs);
    b.integer("--ctx", "tokens of context (default: what prompt and -n need, at most the file's)", 1,
              kMaxTokens, o.context);
    b.threads(o.threads);
    b.backend(o.backend);
    b.stored(o.stored, kKvDefault);
    b.flag("--raw", "no chat template: continue the prompt itself", o.raw);
    b.flag("--json", "print one JSON object instead of the streamed answer", o.json);
}

void bind(Binder b, ChatOptions& o) { bind_chat(b, o); }

void bind(Binder b, InspectOptions& o) {
    b.app
        .add_option("FILE", o.file, "a GGUF file, the first piece of a split one, or a folder of safetensors")
        ->required()
        ->type_name("");
    b.flag("--json", "print one JSON object", o.json);
    b.flag("--strict", "read the weights too, list what is suspicious instead; exit code 1 if anything is",
           o.strict);
}

void bind(Binder b, TokenizeOptions& o) {
    b.model(o.model);
    CLI::Option* text = b.text("-p,--prompt", "TEXT", "the text (default: read from stdin)", o.text);
    b.value("--decode", "IDS", "turn these ids (1,2,3) into text instead",
            [&o](const std::string& ids) -> Result<void> {
                std::vector<int32_t>& to = o.decode.emplace();
                if (ids.empty()) return {};
                TRY(const auto list, parse_int_list("--decode", ids, 0, INT32_MAX));
                to.assign(list.begin(), list.end());
                return {};
            })
        ->excludes(text);
    b.flag("--no-special",
           "no tokens that the model's file adds at start or end, and control tokens in the text are text",
           o.no_special);
    b.flag("--json", "print one JSON object", o.json);
}

void bind(Binder b, ExplainOptions& o) { bind_explain(b, o); }

void bind(Binder b, DiffOptions& o) {
    b.model(o.model);
    for (const bool second : {false, true}) {
        CLI::Option* option =
            b.app
                .add_option_function<std::string>(
                    second ? "B" : "A",
                    [&o, &wrong = b.wrong, second](const std::string& name) {
                        if (name != "cpu" && name != "cuda" && name != "cuda:op" && name != "cuda:graph" &&
                            !wrong)
                            wrong = usage_error("{} is '{}', expected cpu, cuda, cuda:op or cuda:graph",
                                                second ? "B" : "A", name);
                        o.backend[second] = name == "cuda" ? "cuda:graph" : name;
                    },
                    second ? "the backend compared with it"
                           : "the backend that is believed: cpu, cuda:op, cuda:graph (cuda is the same)")
                ->required()
                ->type_name("");
        b.known(option, {"cpu", "cuda:op", "cuda:graph"});
    }
    CLI::Option* text =
        b.text("-p,--prompt", "TEXT", "the prompt, as it is (default: read from stdin)", o.prompt.text);
    b.text("-f,--file", "FILE", "read the prompt from a file", o.prompt.file)->excludes(text);
    b.integer("-n,--predict", "steps of one token behind the prompt (default 4)", 0, kMaxTokens, o.decode);
    b.integer("--chunk", "prompt tokens of a step (default 64)", 1, 4096, o.chunk);
    b.number("--tolerance",
             "most relative L2 error of a row of an op's output (default 0.002; 0 for two executors of one "
             "backend)",
             {0, kMaxNumber}, o.tolerance);
    b.stored(o.stored, "f32 beside cpu, else bf16");
    b.threads(o.threads);
}

void bind(Binder b, PerplexityOptions& o) {
    b.model(o.model);
    CLI::Option* file = b.text(
        "-f,--file", "FILE", "a text: perplexity of the second half of each window of --ctx tokens", o.file);
    b.text("--tokens", "IDS.npy",
           "token ids instead (1-D int32 or int64), used as given; every one but a window's first is rated",
           o.tokens)
        ->excludes(file);
    b.text("--save-kl-base", "FILE",
           "with -f: save the log-probabilities, as llama-perplexity does, for another model's --kl-base",
           o.save_kl_base);
    b.text("--kl-base", "FILE",
           "compare with such a file, made by the model before it was quantised; tokens come from it",
           o.kl_base);
    b.integer("--ctx", "tokens of a window (default: 512 with -f, all with --tokens)", 1, kMaxTokens,
              o.context);
    b.text("--logits-out", "OUT.npy", "write float32 [tokens, vocabulary], row i = logits after token i",
           o.logits_out);
    b.threads(o.threads);
    b.backend(o.backend);
    b.stored(o.stored, kKvDefault);
}

void bind(Binder b, QuantizeOptions& o) { bind_quantize(b, o); }

void bind(Binder b, ConvertOptions& o) {
    b.word("DIR", "a folder with config.json, tokenizer.json and safetensors", o.folder);
    b.word("OUT", "the GGUF file to write, replaced if it exists", o.out);
}

void bind(Binder b, BenchOptions& o) { bind_bench(b, o); }

void bind(Binder b, DoctorOptions& o) { b.backend(o.backend); }

void bind(Binder b, ServeOptions& o) { bind_serve(b, o); }

void bind(Binder b, ConnectOptions& o) {
    b.known(b.word("CLIENT", "claude, codex, opencode, qwen or aider", o.client),
            {"claude", "codex", "opencode", "qwen", "aider"});
    const auto text = [&](const char* flag, const char* type, const char* help, std::string& to) {
        b.value(flag, type, help, [flag, &to](const std::string& text) -> Result<void> {
            if (text.empty()) return usage_error("{} is empty, expected a text", flag);
            to = text;
            return {};
        });
    };
    text("--url", "URL", "where the server is (default: http://127.0.0.1:8080)", o.url);
    text("--model", "NAME", "a name of its model (default: sparkinfer, which every server knows)", o.model);
    b.text("--key-file", "FILE", "the server's --api-key-file, or another with a key of it in a line",
           o.key_file);
    b.integer("--ctx", "the server's --ctx, for clients that would guess", 1, kMaxTokens, o.context);
    b.flag("--write", "write the client's own file: the rest of it stays, what it was is kept beside it",
           o.write);
}

void bind(Binder b, BenchServeOptions& o) { bind_bench_serve(b, o); }
void bind(Binder b, PullOptions& o) { bind_pull(b, o); }
void bind(Binder b, ModelsOptions& o) { bind_models(b, o); }

void bind(Binder b, CompletionOptions& o) {
    b.known(b.word("SHELL", "bash, zsh or fish", o.shell), {"bash", "zsh", "fish"});
}

void bind(Binder b, ManualOptions& o) {
    b.known(b.word("FORMAT", "man or markdown", o.format), {"man", "markdown"});
}

// The commands. Help, dispatch and suggestions all read this table.
struct CommandRow {
    const char* name;
    const char* summary;
    const char* examples;
    Command (*empty)();
};
template <class Options>
Command make() {
    return Options{};
}
constexpr CommandRow kCommands[] = {
    {"run", "answer a prompt",
     "  sparkinfer run model.gguf -p 'Why is the sky blue?'\n"
     "  sparkinfer run model.gguf -f question.txt -n 200 --temp 0\n"
     "  echo 'Once upon a time' | sparkinfer run model.gguf --raw --json --logprobs 3\n",
     make<RunOptions>},
    {"chat", "talk with a model: several turns, line editing, commands",
     "  sparkinfer chat model.gguf\n"
     "  sparkinfer chat model.gguf --system 'Answer in one sentence.' --temp 0.3\n"
     "  sparkinfer chat model.gguf --load talk.json\n"
     "  printf 'Hello\\nWhat did I say?\\n' | sparkinfer chat model.gguf\n",
     make<ChatOptions>},
    {"inspect", "show what is in a model's files, without reading the weights",
     "  sparkinfer inspect model.gguf\n"
     "  sparkinfer inspect folder/ --json\n",
     make<InspectOptions>},
    {"tokenize", "turn text into token ids, or back",
     "  sparkinfer tokenize model.gguf -p 'Hello world'\n"
     "  sparkinfer tokenize model.gguf --decode 19556,905\n",
     make<TokenizeOptions>},
    {"explain", "show the model's forward pass as a table: ops, shapes, bytes, floor",
     "  sparkinfer explain model.gguf\n"
     "  sparkinfer explain model.gguf --gpu rtx5090 --depth 8192\n"
     "  sparkinfer explain model.gguf --backend cuda --measured\n",
     make<ExplainOptions>},
    {"diff", "run a prompt on two backends, op by op, up to the first output that differs",
     "  sparkinfer diff model.gguf cpu cuda:op -p 'Once upon a time'\n"
     "  sparkinfer diff model.gguf cuda:op cuda:graph -f question.txt -n 16\n",
     make<DiffOptions>},
    {"perplexity", "rate a text or token ids, write logits, compare with another model's",
     "  sparkinfer perplexity model.gguf -f wiki.txt\n"
     "  sparkinfer perplexity model.gguf --tokens ids.npy --logits-out logits.npy\n"
     "  sparkinfer perplexity f16.gguf -f wiki.txt --save-kl-base base.kld\n"
     "  sparkinfer perplexity q4.gguf --kl-base base.kld\n",
     make<PerplexityOptions>},
    {"convert", "make a GGUF file of a Hugging Face checkpoint",
     "  sparkinfer convert Qwen3-0.6B/ qwen3-0.6b.gguf\n", make<ConvertOptions>},
    {"quantize", "write a GGUF file with smaller weights",
     "  sparkinfer quantize model-f16.gguf model-q4.gguf Q4_K_M\n"
     "  sparkinfer quantize model-f16.gguf model-q4.gguf Q4_K_M --imatrix imatrix.gguf\n"
     "  sparkinfer quantize model-f16.gguf model-q4.gguf Q4_K_M --dry-run    (sizes alone)\n",
     make<QuantizeOptions>},
    {"bench", "measure tokens per second and the share of the memory-bandwidth floor",
     "  sparkinfer bench model.gguf\n"
     "  sparkinfer bench model.gguf -p 512 -n 128 -d 0,4096 -r 3 -o json\n",
     make<BenchOptions>},
    {"serve", "serve the APIs of OpenAI and Anthropic and a web page over HTTP",
     "  sparkinfer serve model.gguf\n"
     "  sparkinfer serve model.gguf --port 8000 --ctx 32768 --slots 4 --alias my-model\n"
     "  sparkinfer serve model.gguf --host 0.0.0.0 --api-key-file keys.txt --tls-cert c.pem --tls-key "
     "k.pem\n",
     make<ServeOptions>},
    {"connect", "tell a coding agent where the server is: print or write its configuration",
     "  sparkinfer connect claude\n"
     "  sparkinfer connect codex --write\n"
     "  sparkinfer connect opencode --url https://gpu.example:8080 --key-file key.txt --write\n",
     make<ConnectOptions>},
    {"bench serve", "load a server and measure how long its clients wait",
     "  sparkinfer bench serve http://127.0.0.1:8080 --clients 1,8\n"
     "  sparkinfer bench serve http://127.0.0.1:8080 --rate 0.5,2 -r 100 -o json\n"
     "  sparkinfer bench serve http://127.0.0.1:8080 --turns 10 -p 4000 -n 64    (sessions of an agent)\n",
     make<BenchServeOptions>},
    {"pull", "obtain a model's files from a mirror or a folder, checked by their sha256",
     "  sparkinfer pull    (what is known)\n"
     "  sparkinfer pull smollm2-135m --from https://mirror.example/models\n"
     "  sparkinfer pull smollm2-135m --from /media/usb --to models\n"
     "  sparkinfer pull my-model --manifest files.json --from http://mirror.example/models\n",
     make<PullOptions>},
    {"models", "list the models on disk, and whether this program runs them",
     "  sparkinfer models\n"
     "  sparkinfer models /data/gguf --json\n",
     make<ModelsOptions>},
    {"doctor", "say what this machine is, what will run on it, and what is missing",
     "  sparkinfer doctor\n"
     "  sparkinfer doctor --backend cuda    (exit code 4 where no GPU can be used)\n",
     make<DoctorOptions>},
    {"completion", "print what makes a shell complete this program's words",
     "  source <(sparkinfer completion bash)\n"
     "  sparkinfer completion zsh > ~/.zfunc/_sparkinfer    (a folder of fpath)\n"
     "  sparkinfer completion fish > ~/.config/fish/completions/sparkinfer.fish\n",
     make<CompletionOptions>},
    {"manual", "print this help of all commands as a man page or as Markdown",
     "  sparkinfer manual man > sparkinfer.1 && man ./sparkinfer.1\n"
     "  sparkinfer manual markdown > docs/cli.md\n",
     make<ManualOptions>},
};

Error unknown_command(const std::string& word) {
    std::vector<std::string> known;
    for (const CommandRow& row : kCommands) known.emplace_back(row.name);
    const std::string nearest = nearest_word(word, known);
    if (!nearest.empty()) return usage_error("'{}' is no command, did you mean '{}'?", word, nearest);
    return usage_error("'{}' is no command; `sparkinfer --help` lists them", word);
}

Error unknown_argument(const CLI::App& app, const std::string& name, const std::string& word) {
    std::string nearest;
    size_t distance = 3;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& known : option->get_lnames()) {
            const size_t found = word.rfind("--", 0) == 0 ? edit_distance(word.substr(2), known) : distance;
            if (found >= distance) continue;
            distance = found;
            nearest = "--" + known;
        }
    if (!nearest.empty())
        return usage_error("{}: '{}' is not expected, did you mean '{}'?", name, word, nearest);
    return usage_error("{}: '{}' is not expected; `sparkinfer {} --help` lists what is", name, word, name);
}

// A command with CLI11's view of it, which points into the options.
struct Bound {
    explicit Bound(const CommandRow& row)
        : command(row.empty()), app(row.summary, fmt::format("sparkinfer {}", row.name)) {
        app.set_help_flag("-h,--help", "this help");
        app.footer(fmt::format("Examples:\n{}", row.examples));
        app.get_formatter()->column_width(34);
        std::visit([&](auto& options) { bind(Binder{app, wrong, words}, options); }, command);
    }
    Bound(const Bound&) = delete;
    Bound& operator=(const Bound&) = delete;

    Command command;
    std::optional<Error> wrong;
    KnownWords words;
    CLI::App app;
};

Result<std::variant<Command, Printout>> parse_command(const CommandRow& row,
                                                      std::vector<std::string> arguments) {
    Bound bound(row);
    CLI::App& app = bound.app;
    std::replace(arguments.begin(), arguments.end(), std::string("-np"), std::string("--parallel"));
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    try {
        app.parse(arguments);
    } catch (const CLI::CallForHelp&) {
        return std::variant<Command, Printout>(Printout{app.help()});
    } catch (const CLI::ExtrasError&) {
        return unknown_argument(app, row.name, app.remaining().front());
    } catch (const CLI::RequiredError& e) {
        return usage_error("{}: {}; `sparkinfer {} --help` shows how", row.name, e.what(), row.name);
    } catch (const CLI::Error& e) {
        return usage_error("{}: {}", row.name, e.what());
    }
    if (bound.wrong) return *bound.wrong;
    return std::variant<Command, Printout>(std::move(bound.command));
}

Result<void> check_perplexity(const PerplexityOptions& o) {
    if (!o.file && !o.tokens && !o.kl_base)
        return usage_error("perplexity: nothing to rate: give -f FILE, --tokens IDS.npy or --kl-base FILE");
    if (o.kl_base && (o.file || o.tokens || o.context || o.save_kl_base))
        return usage_error(
            "--kl-base brings its own tokens and windows: -f, --tokens, --ctx and --save-kl-base cannot be "
            "given with it");
    if (o.save_kl_base && !o.file)
        return usage_error("--save-kl-base is for the text of -f FILE, which is not given");
    return {};
}

// What cannot be said of one flag alone.
Result<void> check_command(const Command& command) {
    if (const auto* perplexity = std::get_if<PerplexityOptions>(&command))
        TRY_VOID(check_perplexity(*perplexity));
    const auto* bench = std::get_if<BenchOptions>(&command);
    if (bench && !bench->jsonl && (bench->label || bench->sha256))
        return usage_error("--label and --sha256 are for the rows of --jsonl FILE, which is not given");
    if (bench && bench->compare && *std::max_element(bench->parallel.begin(), bench->parallel.end()) > 1)
        return usage_error("--compare with -np above 1: llama-bench generates one sequence at a time");
    if (const auto* serve = std::get_if<ServeOptions>(&command)) TRY_VOID(check_serve(*serve));
    if (const auto* load = std::get_if<BenchServeOptions>(&command)) TRY_VOID(check_bench_serve(*load));
    const auto* completion = std::get_if<CompletionOptions>(&command);
    if (completion && completion->shell != "bash" && completion->shell != "zsh" &&
        completion->shell != "fish")
        return usage_error("SHELL is '{}', expected bash, zsh or fish", completion->shell);
    const auto* manual = std::get_if<ManualOptions>(&command);
    if (manual && manual->format != "man" && manual->format != "markdown")
        return usage_error("FORMAT is '{}', expected man or markdown", manual->format);
    if (const auto* chat = std::get_if<ChatOptions>(&command)) TRY_VOID(check_chat(*chat));
    const auto* run = std::get_if<RunOptions>(&command);
    if (run && run->max_tokens == 0)
        return usage_error("-n,--predict is '0', expected -1 or a whole number from 1");
    if (run && run->sampling.logit_bias.size() > size_t(kMaxBias))
        return usage_error("--logit-bias is given {} times, at most {} are possible",
                           run->sampling.logit_bias.size(), kMaxBias);
    return {};
}

}  // namespace

std::vector<CommandFacts> command_table() {
    std::vector<CommandFacts> table;
    for (const CommandRow& row : kCommands) {
        const Bound bound(row);
        CommandFacts command{row.name, row.summary, row.examples, {}};
        for (const CLI::Option* option : bound.app.get_options()) {
            OptionFacts facts;
            for (const std::string& name : option->get_snames()) facts.names.push_back("-" + name);
            for (const std::string& name : option->get_lnames()) facts.names.push_back("--" + name);
            facts.argument = facts.names.empty();
            if (facts.argument) facts.names.push_back(option->get_name());
            facts.required = option->get_required();
            if (!facts.argument && option->get_items_expected_max() > 0)
                facts.value = option->get_type_name();
            facts.help = option->get_description();
            if (const auto known = bound.words.find(option); known != bound.words.end())
                facts.words = known->second;
            command.options.push_back(std::move(facts));
        }
        std::stable_partition(command.options.begin(), command.options.end(),
                              [](const OptionFacts& option) { return option.argument; });
        table.push_back(std::move(command));
    }
    return table;
}

std::string overview_text() {
    std::string text =
        "sparkinfer: runs language models from their files\n\nUsage: sparkinfer COMMAND "
        "[arguments]\n\nCommands:\n";
    for (const CommandRow& row : kCommands) text += fmt::format("  {:<14}{}\n", row.name, row.summary);
    text +=
        "\nOptions:\n  -h,--help   this help; `sparkinfer COMMAND --help` or `help COMMAND` explains a "
        "command\n  --version   "
        "the version, and how it was built\n";
    text += "\nExamples:\n";
    for (const CommandRow& row : kCommands) {
        const std::string examples = row.examples;
        text += examples.substr(0, examples.find('\n') + 1);
    }
    text +=
        "\nExit codes: 0 done, 1 diff or inspect --strict found something, 2 usage, 3 bad file or input, 4 "
        "out of resources, "
        "5 device or internal, 130 "
        "interrupted\n";
    return text;
}

Result<std::variant<Command, Printout>> parse_command_line(const std::vector<std::string>& arguments) {
    if (arguments.empty()) return usage_error("no command is given; `sparkinfer --help` lists them");
    const std::string& first = arguments[0];
    if (first == "--version") return std::variant<Command, Printout>(Printout{build_text()});
    if (first == "help" && arguments.size() > 1) {
        std::vector<std::string> asked(arguments.begin() + 1, arguments.end());
        asked.emplace_back("--help");
        return parse_command_line(asked);
    }
    if (first == "--help" || first == "-h" || first == "help")
        return std::variant<Command, Printout>(Printout{overview_text()});
    const bool load = arguments.size() > 1 && first == "bench" && arguments[1] == "serve";
    for (const CommandRow& row : kCommands) {
        if ((load ? "bench serve" : first) != row.name) continue;
        TRY(auto parsed, parse_command(row, {arguments.begin() + (load ? 2 : 1), arguments.end()}));
        if (const Command* command = std::get_if<Command>(&parsed)) TRY_VOID(check_command(*command));
        return parsed;
    }
    return unknown_command(first);
}

}  // namespace sparkinfer
