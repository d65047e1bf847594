#include "text/tool_format.h"

#include <algorithm>
#include <utility>

namespace sparkinfer {
namespace {

constexpr std::string_view kCallTag = "<tool_call>";

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Whether the template shows a call as an object that begins with its name: right after a tag but for line
// breaks and the borders of the template's own strings.
bool shows_json_calls(std::string_view source) {
    constexpr size_t kBorders = 40;  // bytes
    for (size_t at = source.find(kCallTag); at != source.npos; at = source.find(kCallTag, at + 1)) {
        std::string next(source.substr(at + kCallTag.size(), kBorders));
        next.resize(std::min(next.find('<'), next.size()));
        std::erase(next, '\\');  // the template's escapes, and those of a JSON file that holds it
        if (contains(next, R"({"name")")) return contains(source, "arguments");
    }
    return false;
}

}  // namespace

AnswerFormat answer_format(std::string_view template_source) {
    AnswerFormat format;
    if (contains(template_source, kCallTag)) {
        if (contains(template_source, "<function=") && contains(template_source, "<parameter="))
            format.tools = ToolFormat::qwen_xml;
        else if (shows_json_calls(template_source))
            format.tools = ToolFormat::hermes_json;
    }
    const std::pair<const char*, const char*> tags[] = {{"<think>", "</think>"},
                                                        {"<mm:think>", "</mm:think>"}};
    for (const auto& [open, close] : tags) {
        if (!contains(template_source, close)) continue;
        format.think_open = open;
        format.think_close = close;
        format.reasoning = true;
        break;
    }
    return format;
}

bool starts_in_reasoning(const AnswerFormat& format, std::string_view prompt) {
    if (!format.reasoning) return false;
    const size_t end = prompt.find_last_not_of(" \t\r\n");
    return end != prompt.npos && prompt.substr(0, end + 1).ends_with(format.think_open);
}

const char* tool_format_name(ToolFormat format) {
    switch (format) {
        case ToolFormat::none: return "none";
        case ToolFormat::hermes_json: return "hermes_json";
        case ToolFormat::qwen_xml: return "qwen_xml";
    }
    return "none";
}

}  // namespace sparkinfer
