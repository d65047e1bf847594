// options.h — the command line as plain structs: one a command, filled and checked by parse_command_line.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/result.h"
#include "core/tensor.h"
#include "ops/backend.h"

namespace sparkinfer {

// Where a text comes from: -p TEXT, -f FILE, or stdin when neither is given.
struct TextSource {
    std::optional<std::string> text;
    std::optional<std::string> file;
};

// How tokens are chosen. What is not given comes from the model's file, else from SamplingParams' defaults.
struct SamplingOptions {
    std::optional<double> temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    std::optional<int64_t> top_k, repeat_last_n;
    std::optional<uint64_t> seed;
    std::vector<std::pair<int32_t, float>> logit_bias;  // token id, added to its logit
};

// What a sequence's memory is kept in, and what activations become in products; unset: as the backend does.
struct StoredTypes {
    std::optional<DType> kv;     // keys and values: f32, bf16, e4m3
    std::optional<DType> state;  // recurrent states: f32, bf16
    std::optional<Activations> activations;
};

struct RunOptions {
    std::string model;
    TextSource prompt;
    int64_t max_tokens = -1;  // -1: to an end token
    SamplingOptions sampling;
    std::vector<std::string> stop;
    std::optional<int64_t> logprobs;  // alternatives a token, 0 … kMaxTopLogprobs
    std::optional<int64_t> context;   // tokens
    std::optional<int64_t> threads;
    std::string backend = "auto";  // or "cuda", "cpu"
    StoredTypes stored;
    bool raw = false, json = false;
};

struct ChatOptions {
    std::string model;
    std::optional<std::string> system, load;
    std::optional<std::string> thinking;  // as parse_thinking takes it
    int64_t max_tokens = -1;              // of an answer; -1: to an end token
    SamplingOptions sampling;
    std::vector<std::string> stop;
    std::optional<int64_t> context, threads;
    std::string backend = "auto";
    StoredTypes stored;
    bool no_history = false;
};

struct InspectOptions {
    std::string file;
    bool json = false, strict = false;
};

struct TokenizeOptions {
    std::string model;
    std::optional<std::string> text;
    std::optional<std::vector<int32_t>> decode;  // ids to turn into text instead
    bool no_special = false, json = false;
};

struct ExplainOptions {
    std::string model;
    std::optional<std::string> gpu;  // whose bandwidth makes the floor; none: the one measured, or the H200
    std::optional<std::string> backend;  // whose kernels are shown
    std::optional<int64_t> threads;
    int64_t rows = 1, depth = 0;
    StoredTypes stored;
    bool measured = false;
};

struct DiffOptions {
    std::string model;
    std::string backend[2];  // "cpu", "cuda:op", "cuda:graph"
    TextSource prompt;
    int64_t decode = 4, chunk = 64;
    std::optional<double> tolerance;
    StoredTypes stored;
    std::optional<int64_t> threads;
};

struct QuantizeOptions {
    std::string in, out, type;  // files; a name of load/quantize_plan.h
    std::optional<std::string> imatrix;
    bool dry_run = false, requantize = false;
    std::optional<int64_t> threads;
};

struct ConvertOptions {
    std::string folder, out;
};

struct PerplexityOptions {
    std::string model;
    std::optional<std::string> file, tokens, logits_out, save_kl_base, kl_base;
    std::optional<int64_t> context, threads;
    std::string backend = "auto";
    StoredTypes stored;
};

enum class BenchFormat { md, csv, json, jsonl };
struct BenchOptions {
    std::string model;
    std::vector<int64_t> prompt = {512}, generate = {128}, depth = {0}, threads;  // every combination is run
    int64_t repetitions = 5;
    BenchFormat format = BenchFormat::md;
    std::string backend = "auto";
    StoredTypes stored;
    std::vector<int64_t> parallel = {1};  // sequences that generate side by side
    std::optional<std::string> jsonl,
        label;                           // a file that result rows are appended to; the model's name in it
    bool sha256 = false;                 // of the model's files, in the rows
    std::optional<std::string> compare;  // llama-bench, run in turns
};

struct BenchServeOptions {
    std::string url;
    std::optional<std::string> model, api_key_file, trace;
    std::vector<int64_t> clients = {1};  // each count is a run, closed loop; of sessions too
    std::vector<double> rates;           // requests a second, each a run, open loop; instead of clients
    std::optional<int64_t> requests;     // of a run
    int64_t prompt = 512, generate = 128;
    std::optional<int64_t> turns;  // of a session that is made up
    int64_t turn_words = 200;
    int64_t seed = 1, timeout_s = 600;
    BenchFormat format = BenchFormat::md;
};

struct DoctorOptions {
    std::string backend = "auto";
};

enum class LogFormat { text, json };
struct ServeOptions {
    std::string model;
    std::vector<std::string> hosts;  // empty: 127.0.0.1, or none where a unix socket is given
    int64_t port = 8080;             // 0: any free one
    std::optional<std::string> unix_path, api_key_file, tls_cert, tls_key;
    std::vector<std::string> aliases, allowed_hosts, cors_origins;
    bool any_model = false, insecure = false;
    std::optional<int64_t> context, slots, chunk;
    std::optional<int64_t> kv_memory, checkpoint_memory, host_cache, replay_memory;  // bytes
    bool no_prefix_cache = false, deterministic = false;
    std::optional<std::string> cache_file;
    std::string backend = "auto";
    std::optional<int64_t> threads;
    StoredTypes stored;
    int64_t queue = 256;   // requests that wait for a slot
    int64_t grace_s = 30;  // for requests under way when the server is told to end
    int64_t max_body = 32 << 20;
    int64_t max_connections = 8192, max_connections_per_address = 4096;
    LogFormat log_format = LogFormat::text;
};

struct ConnectOptions {
    std::string client;  // "claude", "codex", "opencode", "qwen", "aider"
    std::string url = "http://127.0.0.1:8080";
    std::string model = "sparkinfer";  // every server's model goes by this name too
    std::optional<std::string> key_file;
    std::optional<int64_t> context;
    bool write = false;
};

// Obtains the files of a model that a manifest knows; without a name, the manifest is listed.
struct PullOptions {
    std::optional<std::string> name, from, to, manifest, tls_ca;
};

struct ModelsOptions {
    std::vector<std::string> folders;  // empty: where models usually lie
    bool json = false;
};

struct CompletionOptions {
    std::string shell;  // "bash", "zsh", "fish"
};

struct ManualOptions {
    std::string format;  // "man", "markdown"
};

using Command = std::variant<RunOptions, ChatOptions, InspectOptions, TokenizeOptions, ExplainOptions,
                             DiffOptions, PerplexityOptions, BenchOptions, BenchServeOptions, DoctorOptions,
                             ServeOptions, ConnectOptions, QuantizeOptions, ConvertOptions, PullOptions,
                             ModelsOptions, CompletionOptions, ManualOptions>;

// Text to print instead of running a command: help or the version.
struct Printout {
    std::string text;
};

// argv[1…] as a command. Errors are usage errors: unknown words (with the nearest known one), missing or
// malformed values, numbers out of range; each names the flag, what was found and what was expected.
Result<std::variant<Command, Printout>> parse_command_line(const std::vector<std::string>& arguments);

// The commands and their options as --help has them, for what is made from it: completion, man page,
// Markdown.
struct OptionFacts {
    std::vector<std::string> names;  // "-p", "--prompt"; of an argument its name, "MODEL"
    std::string value;               // what it takes, "TEXT"; empty: nothing
    std::string help;
    std::vector<std::string> words;  // the only values, where they are few
    bool argument = false;           // a word without a flag
    bool required = false;
};
struct CommandFacts {
    std::string name, summary;
    std::string examples;  // a line each, indented
    std::vector<OptionFacts> options;
};
std::vector<CommandFacts> command_table();

// The overview of `sparkinfer --help`.
std::string overview_text();

// "42+3", "42-1.5", "42=-1": an id and a finite value to add to its logit.
Result<std::pair<int32_t, float>> parse_logit_bias(const std::string& text);

// "512", "0,1024": a comma list of whole numbers in [min, max]. `flag` names it in errors.
Result<std::vector<int64_t>> parse_int_list(const std::string& flag, const std::string& text, int64_t min,
                                            int64_t max);

}  // namespace sparkinfer
