// answer.h — one answer as it comes out of the engine: tokens to streamed text, stop strings, timings, JSON.
#pragma once
#include <string>
#include <vector>

#include "cli/commands.h"
#include "core/json.h"
#include "engine/engine.h"
#include "text/decoder.h"

namespace sparkinfer {

struct AnswerToken {
    TokenId id;
    TokenLogprobs logprobs;
};

struct Answer {
    std::string text;
    std::vector<AnswerToken> tokens;  // without the end token
    FinishReason finish = FinishReason::none;
    bool has_logprobs = false;
    int32_t decode_steps = 0;  // tokens chosen after the first, the end token included
    double load_s = 0, prompt_s = 0, gen_s = 0, first_token_s = 0;
};

// Runs `request` to its end on an idle engine. Whole characters go to `emit` as they are complete, up to a
// stop string. The reader going away (session.out.closed()) and Ctrl-C end it as `cancelled`.
struct AnswerPlan {
    Request request;
    std::vector<std::string> stop;
    bool stream = true;  // to stdout, as it comes
};
Result<Answer> answer_prompt(Engine& engine, const Tokenizer& tokenizer, AnswerPlan plan, Session& session);

// The object that `run --json` prints.
Json answer_json(const Answer& answer, const std::vector<TokenId>& prompt, const Tokenizer& tokenizer);

// "load 0.31 s · prompt 34 tokens, 118.2 tok/s · generated 64 tokens, 45.1 tok/s · peak memory 182 MB"
std::string answer_figures(const Answer& answer, size_t prompt_tokens);

}  // namespace sparkinfer
