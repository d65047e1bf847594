#include "text/call_reader.h"

namespace sparkinfer {

void CallReader::add_arguments(std::string_view json, std::vector<AnswerPart>& out) {
    if (json.empty()) return;
    if (!out.empty() && out.back().kind == AnswerPart::Kind::call_arguments)
        out.back().text += json;
    else
        out.push_back({.kind = AnswerPart::Kind::call_arguments, .text = std::string(json)});
}

std::unique_ptr<CallReader> make_call_reader(ToolFormat format, std::span<const ToolSpec> tools) {
    switch (format) {
        case ToolFormat::none: return nullptr;
        case ToolFormat::hermes_json: return make_hermes_reader();
        case ToolFormat::qwen_xml: return make_qwen_xml_reader(tools);
    }
    return nullptr;
}

TextScan::Match TextScan::literal(std::string_view expected) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(expected)) {
        at += expected.size();
        return Match::yes;
    }
    return expected.starts_with(rest) ? Match::partial : Match::no;
}

void TextScan::skip_space() {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n'))
        at++;
}

}  // namespace sparkinfer
