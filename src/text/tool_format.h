// tool_format.h — how a model writes reasoning and tool calls into its answer, read off its chat template.
#pragma once
#include <string>
#include <string_view>

namespace sparkinfer {

enum class ToolFormat {
    none,         // the template knows no tools
    hermes_json,  // <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>
    qwen_xml      // <tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>
};

// What is markup in an answer. The default has none: the answer is content, byte for byte.
struct AnswerFormat {
    ToolFormat tools = ToolFormat::none;
    std::string think_open = {};   // "<think>"; empty without reasoning
    std::string think_close = {};  // "</think>"
    bool reasoning = false;        // an answer may begin with think_open … think_close
};

// From the template's source text. Formats that are not known give ToolFormat::none.
AnswerFormat answer_format(std::string_view template_source);

// Whether the template opened the reasoning: the rendered prompt ends in think_open and white space.
bool starts_in_reasoning(const AnswerFormat& format, std::string_view prompt);

// "none", "hermes_json", "qwen_xml"
const char* tool_format_name(ToolFormat format);

}  // namespace sparkinfer
