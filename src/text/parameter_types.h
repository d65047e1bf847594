// parameter_types.h — what a tool's schema admits for an argument that the model wrote as bare text, and that
// text as JSON of an admitted type.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "text/tools.h"

namespace sparkinfer {

// A set of JSON types.
struct TypeSet {
    enum : uint8_t { null = 1, boolean = 2, integer = 4, number = 8, string = 16, array = 32, object = 64 };
    static constexpr uint8_t kAll = 127;
    uint8_t bits = kAll;

    bool has(uint8_t type) const { return (bits & type) != 0; }
    bool only(uint8_t type) const { return bits == type; }
};

// The types that `tool` declares for the argument `name`: type, enum, const, anyOf, oneOf, allOf, nullable
// and local $ref are understood. A schema that says nothing admits all; an argument that is not declared is a
// string.
TypeSet parameter_types(const ToolSpec& tool, std::string_view name);

// Whether a value that begins with `text` may yet become anything but a string.
bool may_be_other_than_string(TypeSet types, std::string_view text);

// The text as JSON of an admitted type, null and booleans first, strings last. Where strings are admitted, a
// scalar counts as another type only if it would be printed with the same characters: "007", "1.0" and "None"
// stay strings. Where they are not, Python's True, False and None are understood. A text that fits no
// admitted type is a string as it stands.
std::string parameter_json(TypeSet types, std::string_view text);

}  // namespace sparkinfer
