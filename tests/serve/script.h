// script.h — what a scripted model says: rules over the text of the prompt.
//
//     {"step_ms": 0, "rules": [{"turn": 2, "contains": ["calc.py"], "think": "It is wrong.", "say": "…"}, …]}
//
// The first rule that fits counts. `turn` is which answer of the conversation this is (1: the first),
// `contains` what must be in the prompt, `lacks` what must not, `tail` what must be in its last 2,000 bytes;
// what is not given fits always. `say` is text in the model's own syntax, tool calls included; `think` comes
// before it where the template has opened a reasoning block. The end token follows by itself.
#pragma once
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "text/tokenizer.h"

namespace sparkinfer::test {

struct Rule {
    int turn = 0;  // 0: any
    std::vector<std::string> contains, lacks, tail;
    std::string think = "I look at it step by step.";
    std::string say;
};

struct Script {
    double step_ms = 0;  // a step of the engine takes this long at least
    std::vector<Rule> rules;
    static Result<Script> read(const std::string& path);
    static Result<Script> parse(std::string_view text, std::string_view source);
};

// What was said, one JSON object a line, and whether all of it could be said.
class ScriptReport {
  public:
    Result<void> write_to(const std::string& path);
    void answer(int rule, int prompt_tokens);
    void unmatched(std::string_view tail);
    void refused(std::string_view token, std::string_view after);
    int answers() const;
    int failures() const;

  private:
    void line(const std::string& text);
    mutable std::mutex mutex_;
    std::string path_;
    int answers_ = 0, failures_ = 0;
};

// The tokens of the answer to a prompt, the end token last. Empty when no rule fits.
class Speaker {
  public:
    Speaker(Script script, Tokenizer tokenizer)
        : script_(std::move(script)), tokenizer_(std::move(tokenizer)) {}
    std::vector<TokenId> answer(std::span<const TokenId> prompt, ScriptReport& report) const;
    const Script& script() const { return script_; }
    const Tokenizer& tokenizer() const { return tokenizer_; }
    TokenId end() const;

  private:
    Script script_;
    Tokenizer tokenizer_;
};

}  // namespace sparkinfer::test
