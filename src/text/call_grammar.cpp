#include "text/call_grammar.h"

#include "text/call_reader.h"

namespace sparkinfer {
namespace {

// A name that can stand in markup: one line, no tag's characters.
Result<void> check_name(const ToolSpec& tool) {
    const auto off = [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == '<' || c == '>' || c == '"' || c == '\\';
    };
    if (tool.name.empty() || tool.name.size() > kCallNameMax ||
        std::any_of(tool.name.begin(), tool.name.end(), off) || !is_utf8(tool.name))
        return bad_input(
            "the tool's name {} cannot be used, expected 1 to {} characters without <, >, \" and \\",
            json_quote(tool.name.substr(0, 80)), kCallNameMax);
    return {};
}

// {"name": "f", "arguments": ARGUMENTS}, without the brace that the rule before has read.
std::string add_hermes_call(const ToolSpec& tool, const Json& arguments, std::string_view prefix,
                            LarkBuilder& lark) {
    lark.rule(
        R"({0}: /{1}{{0,16}}"name"{1}{{0,4}}:{1}{{0,4}}"{2}"{1}{{0,4}},{1}{{0,16}}"arguments"{1}{{0,4}}:{1}{{0,16}}/ )"
        R"({3} /{1}{{0,16}}\}}{1}{{0,16}}<\/tool_call>/)",
        prefix, kSpace, LarkBuilder::literal(tool.name), lark.schema(arguments));
    return std::string(prefix);
}

}  // namespace

Result<std::shared_ptr<const PreparedSchema>> arguments_schema(const ToolSpec& tool,
                                                               const GrammarCompiler& compiler) {
    // A tool without a schema takes no arguments.
    static const JsonObject kNone{
        {"type", "object"}, {"properties", JsonObject()}, {"additionalProperties", false}};
    const JsonObject* given = tool.parameters.if_object();
    if (!given && !tool.parameters.is_null())
        return bad_input("the tool '{}': its parameters are {}, expected a JSON Schema object", tool.name,
                         json_type_name(tool.parameters));
    JsonObject schema = given && !given->empty() ? *given : kNone;
    const Json* type = json_find(schema, "type");
    if (type && type->is_string() && type->get_string() != "object")
        return bad_input("the tool '{}': the schema at /type: found {}, expected \"object\"", tool.name,
                         to_json(*type));
    schema["type"] = "object";
    auto prepared = compiler.prepare(schema, tool.strict);
    if (!prepared.ok()) {
        Error error = prepared.error();
        error.message = "the tool '" + tool.name + "': " + error.message;
        return error;
    }
    return prepared;
}

Result<void> add_call_rules(ToolFormat format, std::span<const ToolSpec> tools,
                            const GrammarCompiler& compiler, LarkBuilder& lark,
                            std::vector<std::string>& notices) {
    const std::string begin = format == ToolFormat::hermes_json ? R"(\{)" : R"(<function=)";
    std::string any;
    for (size_t i = 0; i < tools.size(); ++i) {
        const ToolSpec& tool = tools[i];
        TRY_VOID(check_name(tool));
        TRY(const auto prepared, arguments_schema(tool, compiler));
        std::vector<std::string> told = prepared->notices;
        const std::string prefix = fmt::format("t{}", i);
        std::string call;
        if (format == ToolFormat::hermes_json) {
            call = add_hermes_call(tool, prepared->schema, prefix, lark);
        } else {
            TRY(call, add_qwen_xml_call(tool, prepared->schema, prefix, lark, told));
        }
        for (const std::string& notice : told) notices.push_back("the tool '" + tool.name + "' " + notice);
        (any += any.empty() ? "" : " | ") += call;
    }
    lark.rule("any_call: {}", any);
    lark.rule("CALL_BEGIN: /<tool_call>{}*{}/", kSpace, begin);
    lark.rules("call_begun[lazy]: /(?s:.*)/ CALL_BEGIN\ncall_in_text: call_begun any_call");
    lark.rule("call_here: /{0}{{0,16}}<tool_call>{0}{{0,16}}{1}/ any_call", kSpace, begin);
    if (format != ToolFormat::qwen_xml) return {};
    // The end of an argument, with what has to follow it; a text in between holds neither (call_reader.h).
    lark.rules(R"(
TEXT_NEXT: /((?s:\n.*))?\n<\/parameter>[ \t\r\n]*<parameter=/ & ~/(?s:.*)\n<\/parameter>[ \t\r\n]*<\/function>[ \t\r\n]*<\/tool_call>(?s:.*)/
TEXT_LAST: /((?s:\n.*))?\n<\/parameter>[ \t\r\n]*<\/function>[ \t\r\n]*<\/tool_call>/ & ~/(?s:.*)\n<\/parameter>[ \t\r\n]*<parameter=(?s:.*)/
text_next[lazy]: TEXT_NEXT
text_last[lazy]: TEXT_LAST
NEXT: /\n<\/parameter>[ \t\r\n]{0,16}<parameter=/
LAST: /\n<\/parameter>[ \t\r\n]{0,16}<\/function>[ \t\r\n]{0,16}<\/tool_call>/
NO_END: ~/(?s:.*)\n<\/parameter>(?s:.*)/)");
    return {};
}

}  // namespace sparkinfer
