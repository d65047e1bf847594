// answer_grammar.h — the grammar of a whole answer: reasoning, then content of the asked-for form, and calls
// of the offered tools in the model's own syntax with arguments that follow their schemas.
//
// Reasoning   free text up to its end tag, before anything else. Where calls inside it count, one ends it
// too; one
//             that holds the end tag itself is read as reasoning (answer_splitter.h).
// Calls       automatic: free text, in which a call that has begun (<tool_call> and what begins a call in the
//             format) is finished as one; a tag without that is prose. required, named: nothing but calls.
//             Without parallel calls the first one ends the answer.
// Content     json_object, json_schema, regex, choice, lark: nothing but that, or calls if tools are offered.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/result.h"
#include "text/grammar.h"
#include "text/tool_format.h"
#include "text/tools.h"

namespace sparkinfer {

struct AnswerShape {
    enum class Content { free, json_object, json_schema, regex, choice, lark };

    AnswerFormat format = {};  // `reasoning` false where the request turned it off
    bool starts_in_reasoning = false;
    bool calls_in_reasoning = true;  // as in SplitOptions

    std::span<const ToolSpec> tools = {};
    ToolChoice tool_choice = {};
    bool parallel_calls = true;

    Content content = Content::free;
    Json schema = {};                       // json_schema
    bool strict = false;                    // json_schema: what cannot be enforced is an error
    std::string pattern = {};               // regex, lark
    std::vector<std::string> choices = {};  // choice
};

struct AnswerGrammar {
    std::optional<Grammar> grammar;    // none: the answer is free, its rows need no masks
    std::vector<std::string> notices;  // what of the schemas is not enforced
};

constexpr size_t kToolsMax = 512;
constexpr size_t kChoicesMax = 10000;

// Errors: bad_input that names the tool or the schema, with a JSON pointer where there is one.
Result<AnswerGrammar> answer_grammar(const AnswerShape& shape, const GrammarCompiler& compiler);

}  // namespace sparkinfer
