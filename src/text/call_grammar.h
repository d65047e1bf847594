// call_grammar.h — the part of an answer's grammar that is tool calls.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "text/lark_builder.h"
#include "text/tool_format.h"
#include "text/tools.h"

namespace sparkinfer {

// Adds the rules `call_here` (white space and a call) and `call_in_text` (free text, then a call) for any of
// the tools. What is not enforced goes to `notices`. Errors: bad_input that names the tool.
Result<void> add_call_rules(ToolFormat format, std::span<const ToolSpec> tools,
                            const GrammarCompiler& compiler, LarkBuilder& lark,
                            std::vector<std::string>& notices);

// The schema of a tool's arguments, which are an object. For add_call_rules().
Result<std::shared_ptr<const PreparedSchema>> arguments_schema(const ToolSpec& tool,
                                                               const GrammarCompiler& compiler);

// The rule `call` of one tool: what follows "<function=". Its rules and terminals begin with `prefix`.
Result<std::string> add_qwen_xml_call(const ToolSpec& tool, const Json& arguments, std::string_view prefix,
                                      LarkBuilder& lark, std::vector<std::string>& notices);

}  // namespace sparkinfer
