#include "cli/options.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

std::string trouble(const std::vector<std::string>& arguments) {
    const auto parsed = parse_command_line(arguments);
    if (parsed.ok()) return "nothing";
    EXPECT_EQ(parsed.error().kind, ErrorKind::usage);
    return parsed.error().message;
}
RunOptions run_options(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", "m.gguf"});
    const auto parsed = parse_command_line(arguments);
    EXPECT_TRUE(parsed.ok()) << parsed.error().message;
    return std::get<RunOptions>(std::get<Command>(parsed.value()));
}

// Risk: a number that makes no sense reaches the sampler.
TEST(Options, RefusesBadNumbersByFlag) {
    const auto run = [](const std::string& flag, const std::string& value) {
        return trouble({"run", "m", "-p", "x", flag, value});
    };
    EXPECT_EQ(run("--temp", "-1"), "--temp is '-1', expected a number of at least 0 and at most 3.4e+38");
    EXPECT_EQ(run("--temp", "nan"), "--temp is 'nan', expected a number of at least 0 and at most 3.4e+38");
    EXPECT_EQ(run("--temp", "inf"), "--temp is 'inf', expected a number of at least 0 and at most 3.4e+38");
    EXPECT_EQ(run("--temp", "0.8x"), "--temp is '0.8x', expected a number of at least 0 and at most 3.4e+38");
    EXPECT_EQ(run("--temp", ""), "--temp is '', expected a number of at least 0 and at most 3.4e+38");
    EXPECT_EQ(run("--top-p", "2"), "--top-p is '2', expected a number above 0 and at most 1");
    EXPECT_EQ(run("--top-p", "0"), "--top-p is '0', expected a number above 0 and at most 1");
    EXPECT_EQ(run("--min-p", "NaN"), "--min-p is 'NaN', expected a number of at least 0 and at most 1");
    EXPECT_EQ(run("--repeat-penalty", "0"),
              "--repeat-penalty is '0', expected a number above 0 and at most 3.4e+38");
    EXPECT_EQ(run("--presence-penalty", "2.5"),
              "--presence-penalty is '2.5', expected a number of at least -2 and at most 2");
    EXPECT_EQ(run("--top-k", "-1"), "--top-k is '-1', expected a whole number from 0 to 2147483647");
    EXPECT_EQ(run("--top-k", "1.5"), "--top-k is '1.5', expected a whole number from 0 to 2147483647");
    EXPECT_EQ(run("-n", "99999999999"),
              "-n,--predict is '99999999999', expected a whole number from -1 to 2147483647");
    EXPECT_EQ(run("-n", "0"), "-n,--predict is '0', expected -1 or a whole number from 1");
    EXPECT_EQ(run("--logprobs", "21"), "--logprobs is '21', expected a whole number from 0 to 20");
    EXPECT_EQ(run("--seed", "-1"), "--seed is '-1', expected a whole number from 0 to 18446744073709551615");
    EXPECT_EQ(run("-t", "0"), "-t,--threads is '0', expected a whole number from 1 to 512");
    EXPECT_EQ(run("--ctx", "0"), "--ctx is '0', expected a whole number from 1 to 2147483647");
    EXPECT_EQ(run("--stop", ""), "--stop is empty, expected a text");
}

// Risk: texts that look like flags, lists or nothing are changed on their way.
TEST(Options, TextsStayWhatTheyAre) {
    for (const char* text : {"-x", "--temp", "[a, b]", "{}", "[]", "", "a=b", "\"q\"", "%%", "--", "1 2"})
        EXPECT_EQ(run_options({"-p", text}).prompt.text, text) << text;
    EXPECT_EQ(run_options({"-p", "x", "--stop", "[a,b]", "--stop", "-c"}).stop,
              (std::vector<std::string>{"[a,b]", "-c"}));
    EXPECT_EQ(run_options({"--prompt=a b"}).prompt.text, "a b");
}

// Risk: a flag lands in the wrong field.
TEST(Options, FillsTheStruct) {
    const RunOptions o = run_options({"-f",
                                      "file",
                                      "-n",
                                      "7",
                                      "--temp",
                                      "0.5",
                                      "--top-k",
                                      "3",
                                      "--top-p",
                                      "0.9",
                                      "--min-p",
                                      "0.1",
                                      "--repeat-penalty",
                                      "1.1",
                                      "--repeat-last-n",
                                      "-1",
                                      "--presence-penalty",
                                      "-0.5",
                                      "--frequency-penalty",
                                      "0.25",
                                      "--seed",
                                      "18446744073709551615",
                                      "--logprobs",
                                      "0",
                                      "--ctx",
                                      "99",
                                      "-t",
                                      "2",
                                      "--raw",
                                      "--json",
                                      "--logit-bias",
                                      "5+1.5",
                                      "--logit-bias",
                                      "6-2"});
    EXPECT_EQ(o.model, "m.gguf");
    EXPECT_EQ(o.prompt.file, "file");
    EXPECT_FALSE(o.prompt.text);
    EXPECT_EQ(o.max_tokens, 7);
    EXPECT_EQ(o.sampling.temperature, 0.5);
    EXPECT_EQ(o.sampling.top_k, 3);
    EXPECT_EQ(o.sampling.top_p, 0.9);
    EXPECT_EQ(o.sampling.min_p, 0.1);
    EXPECT_EQ(o.sampling.repeat_penalty, 1.1);
    EXPECT_EQ(o.sampling.repeat_last_n, -1);
    EXPECT_EQ(o.sampling.presence_penalty, -0.5);
    EXPECT_EQ(o.sampling.frequency_penalty, 0.25);
    EXPECT_EQ(o.sampling.seed, UINT64_MAX);
    EXPECT_EQ(o.logprobs, 0);
    EXPECT_EQ(o.context, 99);
    EXPECT_EQ(o.threads, 2);
    EXPECT_TRUE(o.raw && o.json);
    EXPECT_EQ(o.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, 1.5f}, {6, -2.0f}}));
}

// Risk: a typing mistake runs something else, or leaves the reader without a hint.
TEST(Options, NamesWhatIsUnknown) {
    EXPECT_EQ(trouble({}), "no command is given; `sparkinfer --help` lists them");
    EXPECT_EQ(trouble({"rnu"}), "'rnu' is no command, did you mean 'run'?");
    EXPECT_EQ(trouble({"tokenise", "m"}), "'tokenise' is no command, did you mean 'tokenize'?");
    EXPECT_EQ(trouble({"frobnicate"}), "'frobnicate' is no command; `sparkinfer --help` lists them");
    EXPECT_EQ(trouble({"run", "m", "--tmp", "1"}), "run: '--tmp' is not expected, did you mean '--temp'?");
    EXPECT_EQ(trouble({"run", "m", "extra"}),
              "run: 'extra' is not expected; `sparkinfer run --help` lists what is");
    EXPECT_NE(trouble({"run"}).find("MODEL is required"), std::string::npos);
    EXPECT_NE(trouble({"run", "m", "-p", "x", "-f", "y"}).find("excludes"), std::string::npos);
    EXPECT_NE(trouble({"run", "m", "-p", "x", "-p", "y"}), "nothing");
    EXPECT_EQ(trouble({"perplexity", "m"}),
              "perplexity: nothing to rate: give -f FILE, --tokens IDS.npy or --kl-base FILE");
    EXPECT_EQ(trouble({"explain", "m", "--gpu", "a100"}),
              "--gpu is 'a100', expected h200, rtx5090, pro6000 or spark");
    EXPECT_EQ(trouble({"bench", "m", "-o", "xml"}), "-o is 'xml', expected md, csv, json or jsonl");
}

// Risk: a backend's name is not understood, or understood by one command alone.
TEST(Options, BackendIsOneOfThree) {
    EXPECT_EQ(run_options({"-p", "x"}).backend, "auto");
    for (const char* name : {"auto", "cuda", "cpu"}) {
        EXPECT_EQ(run_options({"-p", "x", "--backend", name}).backend, name);
        auto parsed = parse_command_line({"perplexity", "m", "-f", "t", "--backend", name});
        ASSERT_TRUE(parsed.ok()) << parsed.error().message;
        EXPECT_EQ(std::get<PerplexityOptions>(std::get<Command>(parsed.value())).backend, name);
        parsed = parse_command_line({"bench", "m", "--backend", name});
        ASSERT_TRUE(parsed.ok()) << parsed.error().message;
        EXPECT_EQ(std::get<BenchOptions>(std::get<Command>(parsed.value())).backend, name);
    }
    EXPECT_EQ(trouble({"run", "m", "--backend", "gpu"}), "--backend is 'gpu', expected auto, cuda or cpu");
    EXPECT_EQ(trouble({"bench", "m", "--backend", ""}), "--backend is '', expected auto, cuda or cpu");
    EXPECT_NE(trouble({"inspect", "m", "--backend", "cpu"}), "nothing");
    EXPECT_EQ(trouble({"explain", "m", "--backend", "auto"}), "--backend is 'auto', expected cuda or cpu");
}

// Risk: the two backends are swapped, or an executor is lost.
TEST(Options, DiffHasTwoBackends) {
    const auto parsed = parse_command_line({"diff", "m", "cuda", "cuda:op", "-p", "x", "--tolerance", "0"});
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    const DiffOptions o = std::get<DiffOptions>(std::get<Command>(parsed.value()));
    EXPECT_EQ(o.backend[0], "cuda:graph");
    EXPECT_EQ(o.backend[1], "cuda:op");
    EXPECT_EQ(o.tolerance, 0.0);
    EXPECT_EQ(o.prompt.text, "x");
    EXPECT_EQ(trouble({"diff", "m", "cpu", "gpu"}), "B is 'gpu', expected cpu, cuda, cuda:op or cuda:graph");
    EXPECT_EQ(trouble({"diff", "m", "auto", "cpu"}),
              "A is 'auto', expected cpu, cuda, cuda:op or cuda:graph");
    EXPECT_EQ(trouble({"diff", "m", "cpu", "cpu", "--kv", "f16"}),
              "--kv is 'f16', expected f32, bf16 or fp8");
    EXPECT_NE(trouble({"diff", "m", "cpu"}).find("B is required"), std::string::npos);
}

// Risk: a type that is asked for and not used, or meant for the other of the two.
TEST(Options, StoredTypes) {
    const StoredTypes none = run_options({}).stored,
                      both = run_options({"--kv", "fp8", "--state", "bf16"}).stored;
    EXPECT_FALSE(none.kv || none.state);
    EXPECT_EQ(both.kv, DType::e4m3);
    EXPECT_EQ(both.state, DType::bf16);
    EXPECT_EQ(run_options({"--kv", "bf16"}).stored.kv, DType::bf16);
    EXPECT_EQ(trouble({"perplexity", "m", "--state", "fp8"}), "--state is 'fp8', expected f32 or bf16");
    for (std::vector<std::string> command :
         {std::vector<std::string>{"explain", "m"}, {"perplexity", "m", "-f", "text"}, {"bench", "m"}}) {
        command.insert(command.end(), {"--kv", "f32", "--state", "f32"});
        EXPECT_EQ(trouble(command), "nothing") << command[0];
    }
}

// Risk: -np is read as -n with a value p, as one-letter flags are.
TEST(Options, BenchTakesWhatItsRowsNeed) {
    const auto bench = [](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {"bench", "m"});
        auto parsed = parse_command_line(arguments);
        EXPECT_TRUE(parsed.ok()) << parsed.error().message;
        return std::get<BenchOptions>(std::get<Command>(parsed.value()));
    };
    EXPECT_EQ(bench({}).parallel, std::vector<int64_t>{1});
    EXPECT_EQ(bench({"-np", "1,4"}).parallel, (std::vector<int64_t>{1, 4}));
    EXPECT_EQ(bench({"--parallel", "8"}).parallel, std::vector<int64_t>{8});
    const BenchOptions rows = bench({"--jsonl", "r.jsonl", "--label", "35b", "--sha256"});
    EXPECT_EQ(rows.jsonl, "r.jsonl");
    EXPECT_EQ(rows.label, "35b");
    EXPECT_TRUE(rows.sha256);
    EXPECT_EQ(bench({"--compare", "llama-bench"}).compare, "llama-bench");
    EXPECT_EQ(trouble({"bench", "m", "--sha256"}),
              "--label and --sha256 are for the rows of --jsonl FILE, which is not given");
    EXPECT_EQ(trouble({"bench", "m", "--compare", "l", "-np", "1,2"}),
              "--compare with -np above 1: llama-bench generates one sequence at a time");
    EXPECT_NE(trouble({"bench", "m", "-np", "65"}), "nothing");
}

TEST(Options, ReadsLogitBiases) {
    EXPECT_EQ(parse_logit_bias("42+2.5").value(), std::pair(42, 2.5f));
    EXPECT_EQ(parse_logit_bias("42-1").value(), std::pair(42, -1.0f));
    EXPECT_EQ(parse_logit_bias("42=-1e2").value(), std::pair(42, -100.0f));
    EXPECT_EQ(parse_logit_bias("42=3").value(), std::pair(42, 3.0f));
    for (const char* bad : {"", "42", "42+", "+1", "x+1", "42+x", "42+1x", "42+-1", "42--1", "42+inf",
                            "42=nan", "-1+2", "99999999999+1"})
        EXPECT_FALSE(parse_logit_bias(bad).ok()) << bad;
}

TEST(Options, ReadsLists) {
    EXPECT_EQ(parse_int_list("-d", "0,4096", 0, 5000).value(), (std::vector<int64_t>{0, 4096}));
    for (const char* bad : {"", ",", "1,", "1,,2", "a", "1;2", "-1", "6000"})
        EXPECT_FALSE(parse_int_list("-d", bad, 0, 5000).ok()) << bad;
}

// Risk: --help of some command is missing, or ends as an error.
TEST(Options, HelpIsThereOnEveryLevel) {
    for (const char* command : {"run", "inspect", "tokenize", "explain", "perplexity", "bench", "doctor"}) {
        const auto parsed = parse_command_line({command, "--help"});
        ASSERT_TRUE(parsed.ok());
        const std::string& text = std::get<Printout>(parsed.value()).text;
        EXPECT_NE(text.find("Examples:"), std::string::npos) << text;
        EXPECT_NE(overview_text().find(command), std::string::npos);
    }
    EXPECT_EQ(std::get<Printout>(parse_command_line({"help", "bench", "serve"}).value()).text,
              std::get<Printout>(parse_command_line({"bench", "serve", "--help"}).value()).text);
    EXPECT_EQ(std::get<Printout>(parse_command_line({"--version"}).value()).text.rfind("sparkinfer ", 0), 0u);
}

}  // namespace
}  // namespace sparkinfer
