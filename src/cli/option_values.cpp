#include "cli/option_values.h"

#include <charconv>
#include <cmath>

#include "cli/options.h"

namespace sparkinfer {

Result<int64_t> parse_int(const std::string& flag, const std::string& text, int64_t min, int64_t max) {
    int64_t value = 0;
    const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (trouble != std::errc() || end != text.data() + text.size() || value < min || value > max)
        return usage_error("{} is '{}', expected a whole number from {} to {}", flag, text, min, max);
    return value;
}

Result<double> parse_number(const std::string& flag, const std::string& text, NumberRange range) {
    double value = 0;
    const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = trouble == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    if (!number || value < range.min || value > range.max ||
        (range.open && float(value) <= float(range.min))) {
        const std::string least = fmt::format("{} {}", range.open ? "above" : "of at least", range.min);
        return usage_error("{} is '{}', expected a number {} and at most {}", flag, text, least, range.max);
    }
    return value;
}

Result<int64_t> parse_bytes(const std::string& flag, const std::string& text) {
    constexpr std::string_view kUnits = "KMGT";
    const size_t unit = text.empty() ? std::string::npos : kUnits.find(text.back());
    const int shift = unit == std::string::npos ? 0 : 10 * int(unit + 1);
    const size_t digits = text.size() - (shift ? 1 : 0);
    int64_t value = 0;
    const auto [end, trouble] = std::from_chars(text.data(), text.data() + digits, value);
    if (trouble != std::errc() || end != text.data() + digits || digits == 0 || value < 0 ||
        value > INT64_MAX >> (shift + 1))
        return usage_error("{} is '{}', expected bytes, as in 1000000, 512M or 8G", flag, text);
    return value << shift;
}

Result<uint64_t> parse_seed(const std::string& text) {
    uint64_t value = 0;
    const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (trouble != std::errc() || end != text.data() + text.size())
        return usage_error("--seed is '{}', expected a whole number from 0 to {}", text, UINT64_MAX);
    return value;
}

Result<std::pair<int32_t, float>> parse_logit_bias(const std::string& text) {
    const Error wrong =
        usage_error("--logit-bias is '{}', expected a token id, a sign and a number, as in 42+1.5", text);
    const size_t at = text.find_first_of("+-=");
    if (at == std::string::npos) return wrong;
    int32_t id = 0;
    const auto [id_end, id_trouble] = std::from_chars(text.data(), text.data() + at, id);
    if (id_trouble != std::errc() || id_end != text.data() + at) return wrong;
    float value = 0;
    const char* begin = text.data() + at + (text[at] == '-' ? 0 : 1);
    const char* end = text.data() + text.size();
    const auto [value_end, trouble] = std::from_chars(begin, end, value);
    const bool two_signs = text[at] == '+' && begin < end && *begin == '-';
    if (trouble != std::errc() || value_end != end || !std::isfinite(value) || two_signs) return wrong;
    return std::pair{id, value};
}

Result<std::vector<int64_t>> parse_int_list(const std::string& flag, const std::string& text, int64_t min,
                                            int64_t max) {
    std::vector<int64_t> values;
    for (size_t start = 0; start <= text.size();) {
        const size_t comma = std::min(text.find(',', start), text.size());
        TRY(const int64_t value, parse_int(flag, text.substr(start, comma - start), min, max));
        values.push_back(value);
        start = comma + 1;
    }
    return values;
}

}  // namespace sparkinfer
