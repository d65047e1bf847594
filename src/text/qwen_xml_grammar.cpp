// The grammar of one call in the form that qwen_xml_reader.cpp reads. Arguments come in any order, each at
// most once, the required ones always: a bit of the rules' parameter remembers each that was written.
#include <algorithm>

#include "text/call_grammar.h"
#include "text/call_reader.h"
#include "text/parameter_types.h"

namespace sparkinfer {
namespace {

constexpr size_t kBits = 64;        // of a rule's parameter
constexpr int64_t kLengthMax = 64;  // of a bare string: each place costs a walk through the vocabulary
constexpr int kHops = 8;            // of references, and of what lies in each other

struct Argument {
    std::string name;
    Json schema;
    bool required = false;
};

// What follows an argument's tag up to the next one, or up to the call's end.
struct Value {
    std::string next, last;
};

int64_t length(const JsonObject& schema, const char* key, int64_t fallback) {
    const Json* value = json_find(schema, key);
    int64_t out = fallback;
    return value && json_is_int(*value, &out) ? out : fallback;
}

class QwenXmlGrammar {
  public:
    QwenXmlGrammar(const ToolSpec& tool, const Json& root, std::string_view prefix, LarkBuilder& lark,
                   std::vector<std::string>& notices)
        : tool_(tool), root_(root), prefix_(prefix), lark_(lark), notices_(notices) {
        terminal_ = prefix_;
        std::transform(terminal_.begin(), terminal_.end(), terminal_.begin(), ::toupper);
    }

    Result<std::string> add();

  private:
    const Json& followed(const Json& schema) const;
    Result<void> collect(const Json& schema, bool may_require, int depth);
    Result<void> relax(std::string_view where, std::string_view what);
    Result<Value> value_of(const Argument& argument, size_t index);
    Result<Value> text_value(const Argument& argument, size_t index);
    std::optional<std::vector<Json>> enumeration(const Json& schema, int depth) const;
    Value terminal_value(size_t index, const std::string& expression);
    Json document(const Json& schema) const;
    void add_order(const std::vector<Value>& values);
    void add_others(std::string& alternatives, bool counted);

    const ToolSpec& tool_;
    const Json& root_;
    std::string prefix_, terminal_;
    LarkBuilder& lark_;
    std::vector<std::string>& notices_;
    std::vector<Argument> arguments_;  // required ones first
    bool open_ = false;                // others may come
};

const Json& QwenXmlGrammar::followed(const Json& schema) const {
    const Json* at = &schema;
    for (int hop = 0; hop < kHops; ++hop) {
        const JsonObject* object = at->if_object();
        const Json* ref = object ? json_find(*object, "$ref") : nullptr;
        if (!ref || !ref->is_string() || !std::string_view(ref->get_string()).starts_with('#')) break;
        const std::string_view pointer = std::string_view(ref->get_string()).substr(1);
        boost::system::error_code failed;
        const Json* target = root_.find_pointer(pointer, failed);
        if (!target) break;
        at = target;
    }
    return *at;
}

Result<void> QwenXmlGrammar::relax(std::string_view where, std::string_view what) {
    const std::string text = fmt::format("at {}: {} in this model's tool syntax", where, what);
    if (tool_.strict) return bad_input("the tool '{}': the schema {}", tool_.name, text);
    notices_.push_back(text);
    return {};
}

// The arguments that a schema and what it combines list.
Result<void> QwenXmlGrammar::collect(const Json& given, bool may_require, int depth) {
    const JsonObject* schema = followed(given).if_object();
    if (!schema || depth > kHops) return {};
    const Json* required = json_find(*schema, "required");
    const auto is_required = [&](std::string_view name) {
        const JsonArray* names = may_require && required ? required->if_array() : nullptr;
        return names && std::find(names->begin(), names->end(), Json(name)) != names->end();
    };
    const Json* properties = json_find(*schema, "properties");
    if (properties && properties->is_object())
        for (const auto& [key, member] : properties->get_object()) {
            const std::string name(key);
            const auto known = std::find_if(arguments_.begin(), arguments_.end(),
                                            [&](const Argument& a) { return a.name == name; });
            if (known != arguments_.end())
                known->required |= is_required(name);
            else if (!name.empty() && name.size() <= kCallNameMax && name.find_first_of("<>\n") == name.npos)
                arguments_.push_back({name, member, is_required(name)});
            else
                TRY_VOID(relax("/properties", fmt::format("the argument {} has a name that cannot be written",
                                                          json_quote(name.substr(0, 80)))));
        }
    for (const char* key : {"allOf", "anyOf", "oneOf"}) {
        const Json* branches = json_find(*schema, key);
        if (!branches || !branches->is_array()) continue;
        const bool all = std::string_view(key) == "allOf";
        if (!all) TRY_VOID(relax(fmt::format("/{}", key), "which arguments go together is not enforced"));
        for (const Json& branch : branches->get_array())
            TRY_VOID(collect(branch, may_require && all, depth + 1));
    }
    const Json* others = json_find(*schema, "additionalProperties");
    const JsonObject* of = others ? others->if_object() : nullptr;
    const bool text =
        !of || !of->contains("type") || to_json(of->at("type")).find("\"string\"") != std::string::npos;
    if (depth == 0) open_ = !(others && others->is_bool() && !others->get_bool()) && text;
    return {};
}

// The values that a schema lists one by one.
std::optional<std::vector<Json>> QwenXmlGrammar::enumeration(const Json& given, int depth) const {
    const JsonObject* schema = followed(given).if_object();
    if (!schema || depth > kHops) return std::nullopt;
    if (const Json* values = json_find(*schema, "enum"); values && values->is_array())
        return std::vector<Json>(values->get_array().begin(), values->get_array().end());
    if (const Json* value = json_find(*schema, "const")) return std::vector<Json>{*value};
    const Json* type = json_find(*schema, "type");
    if (type && *type == "null") return std::vector<Json>{nullptr};
    if (type && *type == "boolean") return std::vector<Json>{false, true};
    for (const char* key : {"anyOf", "oneOf"}) {
        const Json* branches = json_find(*schema, key);
        if (!branches || !branches->is_array()) continue;
        std::vector<Json> all;
        for (const Json& branch : branches->get_array()) {
            const auto some = enumeration(branch, depth + 1);
            if (!some) return std::nullopt;
            all.insert(all.end(), some->begin(), some->end());
        }
        return all;
    }
    return std::nullopt;
}

// A document of its own for a part of the root: references lead into a copy of that.
Json QwenXmlGrammar::document(const Json& schema) const {
    Json out = schema;
    if (to_json(schema).find("\"$ref\"") != std::string::npos) {
        const auto redirect = [](const auto& self, Json& value) -> void {
            if (JsonArray* items = value.if_array())
                for (Json& item : *items) self(self, item);
            JsonObject* object = value.if_object();
            if (!object) return;
            for (auto&& [key, member] : *object) {
                if (key == "$ref" && member.is_string() &&
                    std::string_view(member.get_string()).starts_with('#'))
                    member = fmt::format("#/$defs/root{}", std::string_view(member.get_string()).substr(1));
                else if (key != "enum" && key != "const")
                    self(self, member);
            }
        };
        Json root = root_;
        root.get_object().erase("x-guidance");
        redirect(redirect, root);
        redirect(redirect, out);
        out.get_object()["$defs"] = JsonObject{{"root", std::move(root)}};
    }
    if (!out.is_object()) out = out == false ? JsonObject{{"enum", JsonArray()}} : JsonObject();
    if (const Json* options = json_find(root_.get_object(), "x-guidance"))
        out.get_object()["x-guidance"] = *options;
    return out;
}

Value QwenXmlGrammar::terminal_value(size_t index, const std::string& expression) {
    const std::string name = fmt::format("{}V{}", terminal_, index);
    lark_.rule("{}: {} & NO_END", name, expression);
    lark_.rule("{0}N: {0} NEXT\n{0}L: {0} LAST", name);
    return {name + "N", name + "L"};
}

// A value that is written without quotes.
Result<Value> QwenXmlGrammar::text_value(const Argument& argument, size_t index) {
    if (const auto values = enumeration(argument.schema, 0)) {
        std::string any;
        for (const Json& value : *values) {
            const std::string text = value.is_string() ? std::string(value.get_string()) : to_json(value);
            (any += any.empty() ? "" : "|") += LarkBuilder::literal(text);
        }
        return terminal_value(index, fmt::format("/\\n({})/", any));
    }
    const Value free{"text_next", "text_last"};
    const JsonObject* schema = followed(argument.schema).if_object();
    if (!schema || !parameter_types(tool_, argument.name).only(TypeSet::string)) return free;
    const std::string where = fmt::format("/properties/{}", argument.name);
    std::string expression;
    if (const Json* text = json_find(*schema, "x-text"); text && text->is_string())
        expression = fmt::format("/\\n({})/", std::string_view(text->get_string()));
    else if (schema->contains("pattern"))
        TRY_VOID(relax(where + "/pattern", "it cannot be enforced"));
    for (const char* key : {"format", "anyOf", "oneOf", "allOf"})
        if (schema->contains(key)) TRY_VOID(relax(fmt::format("{}/{}", where, key), "it cannot be enforced"));
    const int64_t least = length(*schema, "minLength", 0), most = length(*schema, "maxLength", -1);
    if (least > kLengthMax || most > kLengthMax) {
        TRY_VOID(relax(where, fmt::format("lengths above {} cannot be enforced", kLengthMax)));
    } else if (least > 0 || most >= 0) {
        if (!expression.empty()) expression += " & ";
        expression += fmt::format("/\\n(?s:.{{{},{}}})/", least, most < 0 ? "" : std::to_string(most));
    }
    return expression.empty() ? free : terminal_value(index, expression);
}

Result<Value> QwenXmlGrammar::value_of(const Argument& argument, size_t index) {
    if (parameter_types(tool_, argument.name).has(TypeSet::string)) return text_value(argument, index);
    const std::string json = lark_.schema(document(argument.schema));
    return Value{fmt::format("\"\\n\" {} NEXT", json), fmt::format("\"\\n\" {} LAST", json)};
}

// Arguments that are not declared, as text.
void QwenXmlGrammar::add_others(std::string& alternatives, bool counted) {
    std::string names;
    for (const Argument& argument : arguments_)
        (names += names.empty() ? "" : "|") += LarkBuilder::literal(argument.name);
    lark_.rule(R"({}X: /[^<>"\\\x00-\x1F]{{1,64}}>/{})", terminal_,
               names.empty() ? std::string() : fmt::format(" & ~/({})>/", names));
    const std::string list = fmt::format("{}p{}", prefix_, counted ? "::_" : "");
    const auto required = static_cast<size_t>(
        std::count_if(arguments_.begin(), arguments_.end(), [](const Argument& a) { return a.required; }));
    alternatives += fmt::format("{0} {1}X text_next {2}", alternatives.empty() ? "" : " |", terminal_, list);
    alternatives += fmt::format(" | {}X text_last", terminal_);
    if (counted && required > 0) alternatives += fmt::format(" %if is_ones([0:{}])", required);
}

// The rules p (an argument and what follows it) and v0, v1, … (an argument's value and what follows it).
void QwenXmlGrammar::add_order(const std::vector<Value>& values) {
    const size_t count = values.size();
    const bool counted = count > 0 && count <= kBits;
    const auto required = static_cast<size_t>(
        std::count_if(arguments_.begin(), arguments_.end(), [](const Argument& a) { return a.required; }));
    std::string any;
    for (size_t i = 0; i < count; ++i) {
        const std::string tag = fmt::format("/{}>/", LarkBuilder::literal(arguments_[i].name));
        const std::string value = fmt::format("{}v{}", prefix_, i);
        if (!counted) {
            any += fmt::format("{0} {1} {2} {3}p | {1} {4}", any.empty() ? "" : " |", tag, values[i].next,
                               prefix_, values[i].last);
            continue;
        }
        any +=
            fmt::format("{} {} {}::set_bit({}) %if bit_clear({})", any.empty() ? "" : " |", tag, value, i, i);
        const std::string more = open_ ? "" : fmt::format(" %if bit_count_lt(_, {})", count);
        const std::string end = required > 0 ? fmt::format(" %if is_ones([0:{}])", required) : "";
        lark_.rule("{}::_: {} {}p::_{} | {}{}", value, values[i].next, prefix_, more, values[i].last, end);
    }
    if (open_) add_others(any, counted);
    if (!any.empty()) lark_.rule("{}p{}:{}", prefix_, counted ? "::_" : "", any);
}

Result<std::string> QwenXmlGrammar::add() {
    TRY_VOID(collect(root_, true, 0));
    std::vector<Argument> required_first;
    for (const bool required : {true, false})
        for (Argument& argument : arguments_)
            if (argument.required == required) required_first.push_back(std::move(argument));
    arguments_ = std::move(required_first);
    if (arguments_.size() > kBits)
        TRY_VOID(relax("/properties",
                       fmt::format("of more than {} arguments it is not enforced which come", kBits)));
    std::vector<Value> values;
    for (size_t i = 0; i < arguments_.size(); ++i) {
        TRY(values.emplace_back(), value_of(arguments_[i], i));
    }
    add_order(values);
    const std::string name = LarkBuilder::literal(tool_.name);
    const bool counted = !values.empty() && values.size() <= kBits;
    const bool none = arguments_.empty() || arguments_.size() > kBits || !arguments_[0].required;
    std::string call;
    if (!arguments_.empty() || open_)
        call = fmt::format("/{}>{}{{0,8}}<parameter=/ {}p{}", name, kSpace, prefix_, counted ? "::0x0" : "");
    if (none)
        call += fmt::format(R"({0}/{1}>{2}{{0,8}}<\/function>{2}{{0,8}}<\/tool_call>/)",
                            call.empty() ? "" : " | ", name, kSpace);
    lark_.rule("{}: {}", prefix_, call);
    return prefix_;
}

}  // namespace

Result<std::string> add_qwen_xml_call(const ToolSpec& tool, const Json& arguments, std::string_view prefix,
                                      LarkBuilder& lark, std::vector<std::string>& notices) {
    return QwenXmlGrammar(tool, arguments, prefix, lark, notices).add();
}

}  // namespace sparkinfer
