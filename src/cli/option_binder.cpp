#include "cli/option_binder.h"

#include <CLI/CLI.hpp>

namespace sparkinfer {

CLI::Option* Binder::value(const char* names, const char* type, const char* help, Take take) {
    CLI::Option* option = app.add_option_function<std::vector<std::string>>(
        names,
        [this_wrong = &wrong, take = std::move(take)](const std::vector<std::string>& texts) {
            for (const std::string& text : texts)
                if (auto taken = take(text); !taken.ok() && !*this_wrong) *this_wrong = taken.error();
        },
        help);
    return option->type_name(type)->expected(1)->allow_extra_args(false)->multi_option_policy(
        CLI::MultiOptionPolicy::Throw);
}

CLI::Option* Binder::values(const char* names, const char* type, const char* help, Take take) {
    return value(names, type, help, std::move(take))->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

CLI::Option* Binder::text(const char* names, const char* type, const char* help,
                          std::optional<std::string>& to) {
    return value(names, type, help, [&to](const std::string& text) {
        to = text;
        return Result<void>{};
    });
}

CLI::Option* Binder::texts(const char* names, const char* type, const char* help,
                           std::vector<std::string>& to) {
    return values(names, type, help, [names, &to](const std::string& text) -> Result<void> {
        if (text.empty()) return usage_error("{} is empty, expected a text", names);
        to.push_back(text);
        return {};
    });
}

CLI::Option* Binder::number(const char* names, const char* help, NumberRange range,
                            std::optional<double>& to) {
    return value(names, "X", help, [=, &to](const std::string& text) -> Result<void> {
        TRY(to, parse_number(names, text, range));
        return {};
    });
}

CLI::Option* Binder::bytes(const char* names, const char* help, std::optional<int64_t>& to) {
    return value(names, "BYTES", help, [=, &to](const std::string& text) -> Result<void> {
        TRY(to, parse_bytes(names, text));
        return {};
    });
}

CLI::Option* Binder::list(const char* names, const char* help, int64_t min, int64_t max,
                          std::vector<int64_t>& to) {
    return value(names, "N[,N…]", help, [=, &to](const std::string& text) -> Result<void> {
        TRY(to, parse_int_list(names, text, min, max));
        return {};
    });
}

void Binder::flag(const char* names, const char* help, bool& to) { app.add_flag(names, to, help); }

CLI::Option* Binder::word(const char* name, const char* help, std::string& to) {
    return app.add_option(name, to, help)->required()->type_name("");
}

CLI::Option* Binder::optional_word(const char* name, const char* help, std::optional<std::string>& to) {
    return app.add_option(name, to, help)->type_name("");
}

void Binder::more_words(const char* name, const char* help, std::vector<std::string>& to) {
    app.add_option(name, to, help)->type_name("");
}

void Binder::model(std::string& to) {
    word("MODEL", "a GGUF file, the first piece of a split one, or a folder with config.json and safetensors",
         to);
}

void Binder::threads(std::optional<int64_t>& to) {
    integer("-t,--threads", kThreadsHelp, 1, kMaxThreads, to);
}

void Binder::backend(std::string& to) {
    known(value("--backend", "NAME",
                "what computes: auto (default: CUDA where it can be used, else cpu), cuda, cpu",
                [&to](const std::string& name) -> Result<void> {
                    if (name != "auto" && name != "cuda" && name != "cpu")
                        return usage_error("--backend is '{}', expected auto, cuda or cpu", name);
                    to = name;
                    return {};
                }),
          {"auto", "cuda", "cpu"});
}

void Binder::stored(StoredTypes& to, const char* kv_default) {
    static const std::pair<const char*, DType> kTypes[] = {
        {"f32", DType::f32}, {"bf16", DType::bf16}, {"fp8", DType::e4m3}};
    const auto type = [&](const char* flag, const std::string& help, size_t known,
                          std::optional<DType>& type) {
        CLI::Option* option =
            value(flag, "TYPE", help.c_str(), [=, &type](const std::string& name) -> Result<void> {
                for (size_t i = 0; i < known; ++i)
                    if (name == kTypes[i].first) {
                        type = kTypes[i].second;
                        return {};
                    }
                return usage_error("{} is '{}', expected {}", flag, name,
                                   known == 2 ? "f32 or bf16" : "f32, bf16 or fp8");
            });
        for (size_t i = 0; i < known; ++i) words[option].emplace_back(kTypes[i].first);
    };
    type("--kv",
         fmt::format("keep keys and values in f32, bf16 or fp8 (E4M3, clamped to ±448; costs quality); "
                     "default: {}",
                     kv_default),
         3, to.kv);
    type("--state", "keep recurrent states in f32 (default) or bf16 (costs quality)", 2, to.state);
    known(
        value(
            "--activations", "TYPE",
            "where a CPU multiplies quantised weights, activations are f32, int16 (default) or int8 (faster; "
            "costs "
            "quality)",
            [&to](const std::string& name) -> Result<void> {
                for (const Activations a : {Activations::f32, Activations::int16, Activations::int8})
                    if (name == activations_name(a)) {
                        to.activations = a;
                        return {};
                    }
                return usage_error("--activations is '{}', expected f32, int16 or int8", name);
            }),
        {"f32", "int16", "int8"});
}

void Binder::sampling(SamplingOptions& s) {
    number("--temp", "temperature; 0 is greedy (default: the file's, else 0.8)", {0, kMaxNumber},
           s.temperature);
    integer("--top-k", "keep the K most likely tokens; 0: all (default: the file's, else 40)", 0, kMaxTokens,
            s.top_k);
    number("--top-p",
           "keep the likeliest tokens of this total probability; 1: all (default: the file's, else 0.95)",
           {0, 1, true}, s.top_p);
    number("--min-p",
           "drop tokens less likely than this share of the likeliest (default: the file's, else 0.05)",
           {0, 1}, s.min_p);
    number("--repeat-penalty", "divide the logits of tokens in the last --repeat-last-n; 1: off (default)",
           {0, kMaxNumber, true}, s.repeat_penalty);
    integer("--repeat-last-n", "tokens of prompt and answer it looks at; -1: all, 0: off (default 64)", -1,
            kMaxTokens, s.repeat_last_n);
    number("--presence-penalty", "subtract from the logits of generated tokens, once; -2 to 2 (default 0)",
           {-2, 2}, s.presence_penalty);
    number("--frequency-penalty", "the same, once per occurrence; -2 to 2 (default 0)", {-2, 2},
           s.frequency_penalty);
    value("--seed", "N", "seed of the random numbers (default: a random one, reported)",
          [&s](const std::string& text) -> Result<void> {
              TRY(s.seed, parse_seed(text));
              return {};
          });
    values("--logit-bias", "ID±X",
           "add X to the logit of token ID (ID+2.5, ID-1, ID=-1); may be given several times",
           [&s](const std::string& text) -> Result<void> {
               TRY(const auto bias, parse_logit_bias(text));
               s.logit_bias.push_back(bias);
               return {};
           });
}

}  // namespace sparkinfer
