#include "core/metadata.h"

namespace sparkinfer {

const char* metadata_type_name(const MetadataValue& value) {
    static constexpr const char* kNames[] = {
        "a boolean",          "an integer",           "an integer",           "a number",
        "a string",           "an array of booleans", "an array of integers", "an array of numbers",
        "an array of strings"};
    return kNames[value.index()];
}

const MetadataValue* Metadata::find(std::string_view key) const {
    auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : &it->second;
}

bool Metadata::insert(std::string key, MetadataValue value) {
    return entries_.emplace(std::move(key), std::move(value)).second;
}

static Error wrong_type(const Metadata& m, std::string_view key, const MetadataValue& v,
                        const char* expected) {
    return bad_input("{}: metadata key '{}' is {}, expected {}", m.source(), key, metadata_type_name(v),
                     expected);
}

static Result<int64_t> to_int(const Metadata& m, std::string_view key, const MetadataValue& v, int64_t min,
                              int64_t max) {
    int64_t found = 0;
    if (auto* i = std::get_if<int64_t>(&v)) {
        found = *i;
    } else if (auto* u = std::get_if<uint64_t>(&v)) {
        if (*u > uint64_t(INT64_MAX))
            return bad_input("{}: metadata key '{}' is {}, expected {} to {}", m.source(), key, *u, min, max);
        found = int64_t(*u);
    } else {
        return wrong_type(m, key, v, "an integer");
    }
    if (found < min || found > max)
        return bad_input("{}: metadata key '{}' is {}, expected {} to {}", m.source(), key, found, min, max);
    return found;
}

static Error missing(const Metadata& m, std::string_view key) {
    return bad_input("{}: metadata key '{}' is missing", m.source(), key);
}

Result<int64_t> Metadata::require_int(std::string_view key, int64_t min, int64_t max) const {
    const MetadataValue* v = find(key);
    if (!v) return missing(*this, key);
    return to_int(*this, key, *v, min, max);
}

Result<int64_t> Metadata::int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
    const MetadataValue* v = find(key);
    if (!v) return fallback;
    return to_int(*this, key, *v, min, max);
}

Result<double> Metadata::require_number(std::string_view key) const {
    if (!contains(key)) return missing(*this, key);
    return number_or(key, 0);
}

Result<double> Metadata::number_or(std::string_view key, double fallback) const {
    const MetadataValue* v = find(key);
    if (!v) return fallback;
    if (auto* d = std::get_if<double>(v)) return *d;
    if (auto* i = std::get_if<int64_t>(v)) return double(*i);
    if (auto* u = std::get_if<uint64_t>(v)) return double(*u);
    return wrong_type(*this, key, *v, "a number");
}

Result<bool> Metadata::bool_or(std::string_view key, bool fallback) const {
    const MetadataValue* v = find(key);
    if (!v) return fallback;
    if (auto* b = std::get_if<bool>(v)) return *b;
    return wrong_type(*this, key, *v, "a boolean");
}

Result<std::string> Metadata::require_string(std::string_view key) const {
    if (!contains(key)) return missing(*this, key);
    return string_or(key, "");
}

Result<std::string> Metadata::string_or(std::string_view key, std::string fallback) const {
    const MetadataValue* v = find(key);
    if (!v) return fallback;
    if (auto* s = std::get_if<std::string>(v)) return *s;
    return wrong_type(*this, key, *v, "a string");
}

template <class T>
static Result<const std::vector<T>*> array_of(const Metadata& m, std::string_view key, const char* expected) {
    const MetadataValue* v = m.find(key);
    if (!v) return static_cast<const std::vector<T>*>(nullptr);
    if (auto* a = std::get_if<std::vector<T>>(v)) return a;
    return wrong_type(m, key, *v, expected);
}

Result<const std::vector<std::string>*> Metadata::strings(std::string_view key) const {
    return array_of<std::string>(*this, key, "an array of strings");
}
Result<const std::vector<int64_t>*> Metadata::ints(std::string_view key) const {
    return array_of<int64_t>(*this, key, "an array of integers");
}
Result<const std::vector<double>*> Metadata::numbers(std::string_view key) const {
    return array_of<double>(*this, key, "an array of numbers");
}
Result<const std::vector<bool>*> Metadata::bools(std::string_view key) const {
    return array_of<bool>(*this, key, "an array of booleans");
}

}  // namespace sparkinfer
