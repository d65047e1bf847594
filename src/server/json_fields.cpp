#include "server/json_fields.h"

#include <cmath>

namespace sparkinfer {
namespace {

// The number as a client wrote it, for messages; nullopt: it is none.
std::optional<double> to_number(const Json& value) {
    if (const double* d = value.if_double()) return *d;
    if (const int64_t* i = value.if_int64()) return double(*i);
    if (const uint64_t* u = value.if_uint64()) return double(*u);
    return std::nullopt;
}

// Integers as such; 3.0 as 3.
std::optional<int64_t> to_int(const Json& value) {
    int64_t i = 0;
    if (json_is_int(value, &i)) return i;
    constexpr double kExact = 9007199254740992;  // 2^53: above it a double is no certain integer
    const double* d = value.if_double();
    if (d && std::trunc(*d) == *d && std::fabs(*d) <= kExact) return int64_t(*d);
    return std::nullopt;
}

std::string in_words(IntRange r) {
    if (r.low == INT64_MIN && r.high == INT64_MAX) return "an integer";
    if (r.high == INT64_MAX) return fmt::format("an integer of at least {}", r.low);
    return fmt::format("an integer from {} to {}", r.low, r.high);
}

std::string in_words(FieldRange r) {
    if (r.open_low) return fmt::format("a number above {} and up to {}", r.low, r.high);
    return fmt::format("a number from {} to {}", r.low, r.high);
}

ApiError out_of_range(std::string path, const Json& value, const std::string& expected) {
    std::string message = fmt::format("{} is {}, expected {}", path, to_json(value), expected);
    return {400, "", std::move(path), std::move(message)};
}

// Calls `read` with the field and its path; nullopt when it is missing.
template <class T, class Read>
ApiResult<std::optional<T>> if_there(const Fields& fields, std::string_view key, Read read) {
    const Json* value = fields.find(key);
    if (!value) return std::optional<T>();
    TRY(T read_value, read(*value, fields.at(key)));
    return std::optional<T>(std::move(read_value));
}

}  // namespace

std::string field_path(std::string_view parent, std::string_view key) {
    return parent.empty() ? std::string(key) : fmt::format("{}.{}", parent, key);
}

std::string item_path(std::string_view array, size_t index) { return fmt::format("{}[{}]", array, index); }

ApiError wrong_field(std::string path, const Json& value, std::string_view expected) {
    std::string message = fmt::format("{} is {}, expected {}", path.empty() ? "the body" : path.c_str(),
                                      json_type_name(value), expected);
    return {400, "", std::move(path), std::move(message)};
}

ApiError missing_field(std::string path, std::string_view expected) {
    std::string message = fmt::format("{} is missing, expected {}", path, expected);
    return {400, "", std::move(path), std::move(message)};
}

ApiResult<std::string> string_value(const Json& value, std::string path) {
    const auto* s = value.if_string();
    if (!s) return wrong_field(std::move(path), value, "a string");
    return std::string(s->data(), s->size());
}

ApiResult<bool> bool_value(const Json& value, std::string path) {
    if (const bool* b = value.if_bool()) return *b;
    return wrong_field(std::move(path), value, "true or false");
}

ApiResult<int64_t> int_value(const Json& value, std::string path, IntRange range) {
    if (!to_number(value)) return wrong_field(std::move(path), value, in_words(range));
    const std::optional<int64_t> i = to_int(value);
    if (!i || *i < range.low || *i > range.high) return out_of_range(std::move(path), value, in_words(range));
    return *i;
}

ApiResult<double> number_value(const Json& value, std::string path, FieldRange range) {
    const std::optional<double> d = to_number(value);
    if (!d) return wrong_field(std::move(path), value, in_words(range));
    // Written so that NaN fails.
    const bool above = range.open_low ? *d > range.low : *d >= range.low;
    if (!above || !(*d <= range.high)) return out_of_range(std::move(path), value, in_words(range));
    return *d;
}

ApiResult<const JsonArray*> array_value(const Json& value, std::string path) {
    if (const JsonArray* array = value.if_array()) return array;
    return wrong_field(std::move(path), value, "an array");
}

ApiResult<Fields> Fields::of(const Json& value, std::string path) {
    if (const JsonObject* object = value.if_object()) return Fields(*object, std::move(path));
    return wrong_field(std::move(path), value, "an object");
}

const Json* Fields::find(std::string_view key) const {
    const Json* value = json_find(*object_, key);
    return value && !value->is_null() ? value : nullptr;
}

ApiResult<std::optional<std::string>> Fields::string(std::string_view key) const {
    return if_there<std::string>(*this, key, string_value);
}

ApiResult<std::optional<bool>> Fields::boolean(std::string_view key) const {
    return if_there<bool>(*this, key, bool_value);
}

ApiResult<std::optional<int64_t>> Fields::integer(std::string_view key, IntRange range) const {
    return if_there<int64_t>(*this, key, [&](const Json& value, std::string path) {
        return int_value(value, std::move(path), range);
    });
}

ApiResult<std::optional<double>> Fields::number(std::string_view key, FieldRange range) const {
    return if_there<double>(*this, key, [&](const Json& value, std::string path) {
        return number_value(value, std::move(path), range);
    });
}

ApiResult<const JsonArray*> Fields::array(std::string_view key) const {
    const Json* value = find(key);
    if (!value) return static_cast<const JsonArray*>(nullptr);
    return array_value(*value, at(key));
}

ApiResult<std::optional<Fields>> Fields::fields(std::string_view key) const {
    return if_there<Fields>(*this, key, Fields::of);
}

ApiResult<std::vector<std::string>> Fields::strings(std::string_view key) const {
    std::vector<std::string> out;
    const Json* value = find(key);
    if (!value) return out;
    if (value->is_string()) {
        out.emplace_back(value->get_string().data(), value->get_string().size());
        return out;
    }
    const JsonArray* array = value->if_array();
    if (!array) return wrong_field(at(key), *value, "a string or an array of strings");
    for (size_t i = 0; i < array->size(); ++i) {
        TRY(std::string text, string_value((*array)[i], item_path(at(key), i)));
        out.push_back(std::move(text));
    }
    return out;
}

ApiResult<std::string> Fields::required_string(std::string_view key) const {
    const Json* value = find(key);
    if (!value) return missing_field(at(key), "a string");
    return string_value(*value, at(key));
}

ApiResult<const JsonArray*> Fields::required_array(std::string_view key) const {
    const Json* value = find(key);
    if (!value) return missing_field(at(key), "an array");
    return array_value(*value, at(key));
}

ApiResult<Fields> Fields::required_fields(std::string_view key) const {
    const Json* value = find(key);
    if (!value) return missing_field(at(key), "an object");
    return of(*value, at(key));
}

ApiError Fields::unknown_value(std::string_view key, std::string_view found, std::string_view known) const {
    return bad_request(at(key), "{} is {}, expected {}", at(key), json_quote(found.substr(0, 100)), known);
}

}  // namespace sparkinfer
