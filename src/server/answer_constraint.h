// answer_constraint.h — the grammar of a request's answers, as the engine asks it.
#pragma once
#include <functional>
#include <memory>

#include "engine/engine.h"
#include "server/chat.h"
#include "text/answer_grammar.h"
#include "text/answer_matcher.h"

namespace sparkinfer {

// What grammars are made for; both outlive what is made.
struct AnswerVocabulary {
    const Tokenizer* tokenizer = nullptr;
    const GrammarCompiler* compiler = nullptr;
};

// Makes the constraint of one choice; every choice gets its own.
using ConstraintMaker = std::function<Result<std::shared_ptr<Constraint>>()>;

// What answers to a request may say: its response format, calls of its tools in `format`, how long they may
// reason. Empty where they are free. Appends to `notices` what of the schemas is not enforced. Errors: 400
// with the field, also for a schema that cannot be enforced where it must be.
ApiResult<ConstraintMaker> answer_constraint(const ChatRequest& request, const AnswerFormat& format,
                                             bool starts_in_reasoning, const AnswerVocabulary& vocabulary,
                                             std::vector<std::string>& notices);
// The same for a text to go on with: the response format alone.
ApiResult<ConstraintMaker> answer_constraint(const ResponseFormat& format, const AnswerVocabulary& vocabulary,
                                             std::vector<std::string>& notices);

}  // namespace sparkinfer
