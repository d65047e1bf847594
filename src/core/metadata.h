// metadata.h — plain key → value facts about a model, as its files state them. Filled by load, returned by
// the engine, read by text. Keys have the GGUF spelling ("tokenizer.ggml.model"); a folder of safetensors has
// its config.json under "config.<path>" (nested objects joined by dots) and its text files whole.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

using MetadataValue = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<bool>,
                                   std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

// Words for a sentence: "a string", "an array of integers".
const char* metadata_type_name(const MetadataValue& value);

class Metadata {
  public:
    explicit Metadata(std::string source = "") : source_(std::move(source)) {}

    // The file or folder the facts came from, for error messages.
    const std::string& source() const { return source_; }
    bool contains(std::string_view key) const { return find(key) != nullptr; }
    const MetadataValue* find(std::string_view key) const;
    // False when the key exists already; the old value stays.
    bool insert(std::string key, MetadataValue value);
    const std::map<std::string, MetadataValue, std::less<>>& entries() const { return entries_; }

    // Typed access. `require_*` fails on a missing key; `*_or` returns the fallback then. Both fail when the
    // key has another type or the value does not fit; the message names source, key, found and expected.
    Result<int64_t> require_int(std::string_view key, int64_t min, int64_t max) const;
    Result<int64_t> int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
    Result<double> require_number(std::string_view key) const;
    Result<double> number_or(std::string_view key, double fallback) const;
    Result<bool> bool_or(std::string_view key, bool fallback) const;
    Result<std::string> require_string(std::string_view key) const;
    Result<std::string> string_or(std::string_view key, std::string fallback) const;
    // Views into the metadata; nullptr when the key is missing.
    Result<const std::vector<std::string>*> strings(std::string_view key) const;
    Result<const std::vector<int64_t>*> ints(std::string_view key) const;
    Result<const std::vector<double>*> numbers(std::string_view key) const;
    Result<const std::vector<bool>*> bools(std::string_view key) const;

  private:
    std::string source_;
    std::map<std::string, MetadataValue, std::less<>> entries_;
};

}  // namespace sparkinfer
