// option_values.h — the values of flags: numbers from text, within a range. `flag` names it in errors, which
// are usage errors: "-t is '0', expected a whole number from 1 to 512".
#pragma once
#include <cstdint>
#include <string>

#include "core/result.h"

namespace sparkinfer {

Result<int64_t> parse_int(const std::string& flag, const std::string& text, int64_t min, int64_t max);

// A number in [min, max], or (min, max] when `open`, also as the float32 it becomes.
struct NumberRange {
    double min, max;
    bool open = false;
};
Result<double> parse_number(const std::string& flag, const std::string& text, NumberRange range);

// Bytes: "1000000", "512M", "8G" (powers of 1024).
Result<int64_t> parse_bytes(const std::string& flag, const std::string& text);

Result<uint64_t> parse_seed(const std::string& text);

}  // namespace sparkinfer
