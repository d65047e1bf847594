// json.h — JSON texts of the world to values and back: a thin face of Boost.JSON that throws nothing.
//
//     TRY(Json config, parse_json(text, "model/config.json"));
//     TRY(const JsonObject* map, json_object(config, "model/config.json"));
//
// Objects keep the order of their keys. Lookups that can fail name the source and what was found.
#pragma once
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"

namespace sparkinfer {

using Json = boost::json::value;
using JsonObject = boost::json::object;
using JsonArray = boost::json::array;

struct JsonLimits {
    int depth = 64;                      // nested arrays and objects
    bool refuse_duplicate_keys = false;  // else the last one wins, as in Python
};

// Parses one JSON text (RFC 8259, UTF-8, no comments, no NaN). `source` names it in messages, which give the
// byte position of the trouble.
Result<Json> parse_json(std::string_view text, std::string_view source, JsonLimits limits = {});

// "null", "a boolean", "a number", "a string", "an array", "an object"
const char* json_type_name(const Json& value);

// The value as an object, or an error that says what `what` is instead ("weight_map").
Result<const JsonObject*> json_object(const Json& value, std::string_view source,
                                      std::string_view what = "the text");
Result<const JsonArray*> json_array(const Json& value, std::string_view source, std::string_view what);

// Fields of an object. `find` gives null when the key is missing; the others fail then, and on another type.
const Json* json_find(const JsonObject& object, std::string_view key);
Result<std::string_view> json_string(const JsonObject& object, std::string_view key, std::string_view source);
Result<int64_t> json_int(const JsonObject& object, std::string_view key, std::string_view source);
Result<double> json_number(const JsonObject& object, std::string_view key, std::string_view source);

// The value as an integer when it is one (integers only: 3, not 3.0) and fits.
bool json_is_int(const Json& value, int64_t* out);

// Compact text. Numbers with a fraction in the shortest form that reads back the same; NaN and infinities,
// which JSON lacks, as null; bytes that are not UTF-8 as U+FFFD.
std::string to_json(const Json& value);
// The same with line breaks and two spaces of indentation a level.
std::string to_json_pretty(const Json& value);
// A string literal with quotes.
std::string json_quote(std::string_view text);

// Proper UTF-8 by RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace sparkinfer
