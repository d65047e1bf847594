// json_fields.h — reading the fields of a request's JSON: typed, range-checked, and each error with the whole
// path of its field ("messages[2].content[0].text") in `param` and in the sentence.
//
//     TRY(const Fields body, Fields::of(json, ""));
//     TRY(params.temperature, body.number("temperature", {0, 2}));
//     TRY(const JsonArray* messages, body.required_array("messages"));
//     TRY(const Fields first, Fields::element(*messages, "messages", 0));
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/api_error.h"

namespace sparkinfer {

struct IntRange {
    int64_t low = INT64_MIN, high = INT64_MAX;  // both allowed
};

struct FieldRange {
    double low, high;  // both allowed, unless
    bool open_low = false;
};

// "messages" + "content" → "messages.content"; "" + "model" → "model".
std::string field_path(std::string_view parent, std::string_view key);
std::string item_path(std::string_view array, size_t index);  // "messages[2]"

// Why `value` at `path` cannot be used: "messages[0].role is a number, expected a string".
ApiError wrong_field(std::string path, const Json& value, std::string_view expected);
ApiError missing_field(std::string path, std::string_view expected);

// One value that is not the field of an object (an array's element).
ApiResult<std::string> string_value(const Json& value, std::string path);
ApiResult<bool> bool_value(const Json& value, std::string path);
// Whole numbers, also written as 3.0.
ApiResult<int64_t> int_value(const Json& value, std::string path, IntRange range = {});
ApiResult<double> number_value(const Json& value, std::string path, FieldRange range);
ApiResult<const JsonArray*> array_value(const Json& value, std::string path);

// An object of a request and where it lies in it. A view. A field that is null counts as missing.
class Fields {
  public:
    Fields(const JsonObject& object, std::string path) : object_(&object), path_(std::move(path)) {}
    static ApiResult<Fields> of(const Json& value, std::string path);

    const JsonObject& object() const { return *object_; }
    const std::string& path() const { return path_; }
    std::string at(std::string_view key) const { return field_path(path_, key); }
    const Json* find(std::string_view key) const;  // null: missing
    bool has(std::string_view key) const { return find(key) != nullptr; }

    ApiResult<std::optional<std::string>> string(std::string_view key) const;
    ApiResult<std::optional<bool>> boolean(std::string_view key) const;
    ApiResult<std::optional<int64_t>> integer(std::string_view key, IntRange range = {}) const;
    ApiResult<std::optional<double>> number(std::string_view key, FieldRange range) const;
    ApiResult<const JsonArray*> array(std::string_view key) const;  // null: missing
    ApiResult<std::optional<Fields>> fields(std::string_view key) const;
    // A list of strings, or one string; empty: missing.
    ApiResult<std::vector<std::string>> strings(std::string_view key) const;

    ApiResult<std::string> required_string(std::string_view key) const;
    ApiResult<const JsonArray*> required_array(std::string_view key) const;
    ApiResult<Fields> required_fields(std::string_view key) const;

    // Element `i` of the array at `path`.
    static ApiResult<Fields> element(const JsonArray& array, const std::string& path, size_t i) {
        return of(array[i], item_path(path, i));
    }
    // The string must be one of `known`: names the one found and all that are.
    ApiError unknown_value(std::string_view key, std::string_view found, std::string_view known) const;

  private:
    const JsonObject* object_;
    std::string path_;
};

}  // namespace sparkinfer
