#include "text/parameter_types.h"

#include <charconv>
#include <optional>

#include "text/json_stream.h"

namespace sparkinfer {
namespace {

constexpr int kSchemaDepthMax = 16;
constexpr int64_t kExactIntegerMax = int64_t(1) << 53;  // beyond it readers that use doubles lose digits

uint8_t type_named(std::string_view name) {
    if (name == "null") return TypeSet::null;
    if (name == "boolean") return TypeSet::boolean;
    if (name == "integer") return TypeSet::integer;
    if (name == "number") return TypeSet::number | TypeSet::integer;
    if (name == "string") return TypeSet::string;
    if (name == "array") return TypeSet::array;
    if (name == "object") return TypeSet::object;
    return TypeSet::kAll;
}

uint8_t type_of(const Json& value) {
    if (value.is_null()) return TypeSet::null;
    if (value.is_bool()) return TypeSet::boolean;
    if (value.is_int64() || value.is_uint64()) return TypeSet::integer;
    if (value.is_double()) return TypeSet::number | TypeSet::integer;
    if (value.is_string()) return TypeSet::string;
    return value.is_array() ? TypeSet::array : TypeSet::object;
}

std::string_view text_of(const boost::json::string& s) { return {s.data(), s.size()}; }

// Follows "#/a/b" from the root of the tool's parameters; null when it leads nowhere.
const Json* resolve(const Json& root, std::string_view ref) {
    if (!ref.starts_with('#')) return nullptr;
    ref.remove_prefix(1);
    const Json* at = &root;
    while (!ref.empty()) {
        if (ref.front() != '/' || !at->is_object()) return nullptr;
        ref.remove_prefix(1);
        std::string key;
        while (!ref.empty() && ref.front() != '/') {
            const bool escaped = ref.starts_with("~0") || ref.starts_with("~1");
            key += escaped ? (ref[1] == '0' ? '~' : '/') : ref.front();
            ref.remove_prefix(escaped ? 2 : 1);
        }
        at = json_find(at->as_object(), key);
        if (!at) return nullptr;
    }
    return at;
}

uint8_t schema_types(const Json& schema, const Json& root, int depth);

// The union of what the schemas of `list` admit.
uint8_t union_types(const Json& list, const Json& root, int depth) {
    if (!list.is_array() || list.as_array().empty()) return TypeSet::kAll;
    uint8_t types = 0;
    for (const Json& one : list.as_array()) types |= schema_types(one, root, depth);
    return types;
}

uint8_t declared_types(const Json& type) {
    if (type.is_string()) return type_named(text_of(type.as_string()));
    if (!type.is_array() || type.as_array().empty()) return TypeSet::kAll;
    uint8_t types = 0;
    for (const Json& one : type.as_array())
        types |= one.is_string() ? type_named(text_of(one.as_string())) : TypeSet::kAll;
    return types;
}

uint8_t value_types(const Json& values) {
    if (!values.is_array() || values.as_array().empty()) return TypeSet::kAll;
    uint8_t types = 0;
    for (const Json& value : values.as_array()) types |= type_of(value);
    return types;
}

uint8_t schema_types(const Json& schema, const Json& root, int depth) {
    if (depth > kSchemaDepthMax || !schema.is_object()) return TypeSet::kAll;
    const JsonObject& object = schema.as_object();
    uint8_t types = TypeSet::kAll;
    if (const Json* type = json_find(object, "type")) types &= declared_types(*type);
    if (const Json* values = json_find(object, "enum")) types &= value_types(*values);
    if (const Json* value = json_find(object, "const")) types &= type_of(*value);
    for (const char* key : {"anyOf", "oneOf"})
        if (const Json* list = json_find(object, key)) types &= union_types(*list, root, depth + 1);
    if (const Json* list = json_find(object, "allOf"); list && list->is_array())
        for (const Json& one : list->as_array()) types &= schema_types(one, root, depth + 1);
    if (const Json* ref = json_find(object, "$ref"); ref && ref->is_string())
        if (const Json* target = resolve(root, text_of(ref->as_string())))
            types &= schema_types(*target, root, depth + 1);
    if (types == 0) return TypeSet::kAll;
    if (const Json* nullable = json_find(object, "nullable");
        nullable && nullable->is_bool() && nullable->as_bool())
        types |= TypeSet::null;
    return types;
}

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

std::string quoted(std::string_view text) {
    std::string out = "\"";
    append_json_escaped(text, out);
    return out + '"';
}

bool is_json_number(std::string_view text) {
    JsonReader reader;
    std::string out;
    size_t at = 0;
    if (text.empty() || text.front() == '"' || reader.read(text, at, out) != JsonReader::State::reading)
        return false;
    return reader.finish(out);
}

// "12", and "12.0" as 12.
std::optional<std::string> integer_json(std::string_view text) {
    if (!is_json_number(text) || text.find_first_of("eE") != text.npos) return std::nullopt;
    const size_t point = text.find('.');
    if (point != text.npos && text.find_first_not_of('0', point + 1) != text.npos) return std::nullopt;
    return std::string(text.substr(0, point));
}

// Whether a reader that takes the text for a number and prints it gets the same characters.
bool survives_as_number(std::string_view text) {
    const char* end = text.data() + text.size();
    int64_t integer = 0;
    if (const auto [last, error] = std::from_chars(text.data(), end, integer);
        error == std::errc() && last == end)
        return fmt::format("{}", integer) == text && integer <= kExactIntegerMax &&
               integer >= -kExactIntegerMax;
    double number = 0;
    const auto [last, error] = std::from_chars(text.data(), end, number);
    return error == std::errc() && last == end && text.find('.') != text.npos &&
           fmt::format("{}", number) == text;
}

// The text as a scalar of an admitted type other than string.
std::optional<std::string> scalar_json(TypeSet types, std::string_view text) {
    const bool exact = types.has(TypeSet::string);
    if (types.has(TypeSet::null) && (text == "null" || (!exact && text == "None"))) return "null";
    if (types.has(TypeSet::boolean)) {
        if (text == "true" || (!exact && text == "True")) return "true";
        if (text == "false" || (!exact && text == "False")) return "false";
    }
    if (exact && !survives_as_number(text)) return std::nullopt;
    if (types.has(TypeSet::number) && is_json_number(text)) return std::string(text);
    if (types.has(TypeSet::integer)) return integer_json(text);
    return std::nullopt;
}

}  // namespace

TypeSet parameter_types(const ToolSpec& tool, std::string_view name) {
    const TypeSet undeclared{TypeSet::string};
    if (!tool.parameters.is_object()) return undeclared;
    const JsonObject& schema = tool.parameters.as_object();
    if (const Json* properties = json_find(schema, "properties"); properties && properties->is_object())
        if (const Json* property = json_find(properties->as_object(), name))
            return {schema_types(*property, tool.parameters, 0)};
    if (const Json* other = json_find(schema, "additionalProperties"); other && other->is_object())
        return {schema_types(*other, tool.parameters, 0)};
    return undeclared;
}

bool may_be_other_than_string(TypeSet types, std::string_view text) {
    const auto may_become = [&](std::string_view word) { return word.starts_with(text); };
    if (types.has(TypeSet::null) && may_become("null")) return true;
    if (types.has(TypeSet::boolean) && (may_become("true") || may_become("false"))) return true;
    if (types.has(TypeSet::integer | TypeSet::number) &&
        text.find_first_not_of("0123456789+-.eE") == text.npos)
        return true;
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos) return types.has(TypeSet::array | TypeSet::object);
    return (types.has(TypeSet::array) && text[begin] == '[') ||
           (types.has(TypeSet::object) && text[begin] == '{');
}

std::string parameter_json(TypeSet types, std::string_view text) {
    if (types.only(TypeSet::string)) return quoted(text);
    const std::string_view bare = types.has(TypeSet::string) ? text : trimmed(text);
    if (std::optional<std::string> scalar = scalar_json(types, bare)) return *scalar;
    if (types.has(TypeSet::array | TypeSet::object)) {
        const std::string_view value = trimmed(text);
        const Result<Json> parsed = parse_json(value, "the argument");
        if (parsed.ok() && ((parsed.value().is_array() && types.has(TypeSet::array)) ||
                            (parsed.value().is_object() && types.has(TypeSet::object))))
            return std::string(value);
    }
    return quoted(text);
}

}  // namespace sparkinfer
