#include "text/tool_format.h"

#include <utility>

namespace sparkinfer {
namespace {

constexpr std::string_view kCallTag = "<tool_call>";

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// What a template prints after position `at`: white space, escaped line breaks and the quotes of its own
// strings are skipped.
std::string_view printed_after(std::string_view source, size_t at) {
    while (at < source.size()) {
        if (source.substr(at).starts_with("\\n")) {
            at += 2;
        } else if (source[at] == ' ' || source[at] == '\n' || source[at] == '\r') {
            at++;
        } else {
            break;
        }
    }
    return source.substr(at);
}

// Whether the template shows a call as an object that begins with its name.
bool shows_json_calls(std::string_view source) {
    for (size_t at = source.find(kCallTag); at != source.npos; at = source.find(kCallTag, at + 1)) {
        const std::string_view next = printed_after(source, at + kCallTag.size());
        for (const char* begin : {R"({"name")", R"({\"name\")", R"({'name')", R"({\'name\')"})
            if (next.starts_with(begin)) return contains(source, "arguments");
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
