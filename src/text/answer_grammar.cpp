#include "text/answer_grammar.h"

#include <algorithm>

#include "text/call_grammar.h"
#include "text/lark_builder.h"

namespace sparkinfer {
namespace {

using Content = AnswerShape::Content;
using Choice = ToolChoice::Kind;

bool must_call(const AnswerShape& shape) {
    return shape.tool_choice.kind == Choice::required || shape.tool_choice.kind == Choice::named;
}

// What may follow the first call where text may not.
const char* more_calls(const AnswerShape& shape) {
    return shape.parallel_calls ? "call_here* SPACE?" : "SPACE?";
}

// The tools that the answer may call.
Result<std::vector<ToolSpec>> callable(const AnswerShape& shape) {
    const ToolChoice& choice = shape.tool_choice;
    std::vector<ToolSpec> tools;
    if (choice.kind == Choice::none) return tools;
    if (shape.tools.size() > kToolsMax)
        return bad_input("tools: found {}, expected at most {}", shape.tools.size(), kToolsMax);
    for (const ToolSpec& tool : shape.tools)
        if (choice.kind != Choice::named || tool.name == choice.name) tools.push_back(tool);
    if (choice.kind == Choice::named && tools.empty())
        return bad_input("tool_choice: found the function '{}', expected one of tools", choice.name);
    if (choice.kind == Choice::required && tools.empty())
        return bad_input("tool_choice: found required, expected tools to choose from");
    if (!tools.empty() && shape.format.tools == ToolFormat::none)
        return bad_input("tools: the model's chat template has no syntax for tool calls");
    return tools;
}

Result<std::string> choices(const std::vector<std::string>& texts) {
    if (texts.empty() || texts.size() > kChoicesMax)
        return bad_input("the choices: found {}, expected 1 to {}", texts.size(), kChoicesMax);
    std::string any;
    for (size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].empty() || !is_utf8(texts[i]))
            return bad_input("the choices: entry {} is {}, expected a text", i,
                             texts[i].empty() ? "empty" : "not UTF-8");
        any += fmt::format("{}/{}/", i == 0 ? "" : " | ", LarkBuilder::literal(texts[i]));
    }
    return any;
}

// The rule `formatted`, if content has a form.
Result<bool> add_content(const AnswerShape& shape, const GrammarCompiler& compiler, LarkBuilder& lark,
                         std::vector<std::string>& notices) {
    switch (shape.content) {
        case Content::free: return false;
        case Content::json_object:
        case Content::json_schema: {
            const Json schema =
                shape.content == Content::json_schema ? shape.schema : JsonObject{{"type", "object"}};
            TRY(const auto prepared, compiler.prepare(schema, shape.strict));
            for (const std::string& notice : prepared->notices) notices.push_back("the schema " + notice);
            lark.rule("formatted: {}", lark.schema(prepared->schema));
            return true;
        }
        case Content::regex: lark.rule("formatted: {}", lark.regex(shape.pattern)); return true;
        case Content::lark: lark.rule("formatted: {}", lark.lark(shape.pattern)); return true;
        case Content::choice: {
            TRY(const std::string any, choices(shape.choices));
            lark.rule("formatted: {}", any);
            return true;
        }
    }
    return internal_error("no such form of content");
}

// What comes after the reasoning.
std::string body(const AnswerShape& shape, bool calls, bool formatted, bool reasoning) {
    const std::string content = reasoning ? "SPACE? formatted" : "formatted";
    if (!calls) return content;
    if (must_call(shape)) return fmt::format("call_here {}", more_calls(shape));
    if (formatted) return fmt::format("call_here {} | {}", more_calls(shape), content);
    return shape.parallel_calls ? "call_in_text* TEXT?" : "TEXT? | call_in_text SPACE?";
}

// The rule `start` where reasoning is possible. A call inside it ends it as its tag does; a free answer may
// end in the middle of it.
void add_start(const AnswerShape& shape, bool calls, bool free, LarkBuilder& lark) {
    const std::string close = LarkBuilder::literal(shape.format.think_close);
    std::string open;
    if (!shape.starts_in_reasoning)
        open = fmt::format("{}{{0,16}}{}", kSpace, LarkBuilder::literal(shape.format.think_open));
    lark.rule("reasoned[lazy]: /{}(?s:.*){}/", open, close);
    std::string start = shape.starts_in_reasoning ? "reasoned body" : "reasoned? body";
    if (calls && shape.calls_in_reasoning && free) {
        if (shape.starts_in_reasoning) start += " | body";
    } else if (calls && shape.calls_in_reasoning) {
        lark.rule("call_reasoned[lazy]: /{}(?s:.*)/ CALL_BEGIN", open);
        start += fmt::format(" | call_reasoned any_call {}", more_calls(shape));
    } else if (free && shape.starts_in_reasoning) {
        start += " | TEXT?";
    }
    lark.rule("start: {}", start);
}

}  // namespace

Result<AnswerGrammar> answer_grammar(const AnswerShape& shape, const GrammarCompiler& compiler) {
    AnswerGrammar out;
    TRY(const std::vector<ToolSpec> tools, callable(shape));
    if (tools.empty() && shape.content == Content::free) return out;
    const bool calls = !tools.empty();
    const bool reasoning = shape.format.reasoning && !shape.format.think_close.empty();

    LarkBuilder lark;
    bool formatted = false;
    if (!must_call(shape)) {
        TRY(formatted, add_content(shape, compiler, lark, out.notices));
    }
    if (calls) TRY_VOID(add_call_rules(shape.format.tools, tools, compiler, lark, out.notices));
    lark.rule(R"(TEXT: /(?s:.+)/)");
    lark.rule("SPACE: /{}{{1,16}}/", kSpace);
    lark.rule("body: {}", body(shape, calls, formatted, reasoning));
    if (!reasoning)
        lark.rules("start: body");
    else
        add_start(shape, calls, calls && !must_call(shape) && !formatted, lark);
    out.grammar = std::move(lark).build();
    return out;
}

}  // namespace sparkinfer
