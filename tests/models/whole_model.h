// whole_model.h — what tests of whole models share: an engine opened or a failure, and logits of given
// tokens, computed as a prompt or as the steps of decoding.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/live_engine.h"

namespace sparkinfer::test {

using Tokens = std::vector<TokenId>;
// Hears of the logits [V] after token i, for ascending i.
using OnLogits = std::function<void(int i, std::span<const float> logits)>;

// Null, and the test has failed, when the model cannot be opened.
std::unique_ptr<LiveEngine> open_engine(const std::string& path, Backend& backend,
                                        const EngineOptions& options, const EngineTuning& tuning = {});

// As prompt chunks of `chunk` rows, from token 0 on.
void score_prompt(const std::string& path, Backend& backend, const Tokens& tokens, int chunk,
                  const OnLogits& on_logits);
// As decoding does, `rows` (1 … 8) tokens of the sequence a step, drafted and accepted; from token 1 on.
void score_decoding(const std::string& path, Backend& backend, const Tokens& tokens, int rows,
                    const OnLogits& on_logits);

// What a request answers with.
struct Spoken {
    Tokens tokens;
    std::vector<float> logprobs;  // of the tokens
};
// Answers requests side by side, so that each step has a row of each; every request asks for
// log-probabilities.
std::vector<Spoken> answer(const std::string& path, Backend& backend, const EngineOptions& options,
                           std::vector<Request> requests);

}  // namespace sparkinfer::test
