#include "core/json.h"

#include <fmt/format.h>

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>
#include <cmath>
#include <new>
#include <string>
#include <unordered_set>
#include <vector>

namespace sparkinfer {

namespace {

namespace json = boost::json;

// Builds the value and watches for duplicate keys. The function names are Boost's.
class Handler {
  public:
    static constexpr std::size_t max_object_size = json::object::max_size();
    static constexpr std::size_t max_array_size = json::array::max_size();
    static constexpr std::size_t max_key_size = json::string::max_size();
    static constexpr std::size_t max_string_size = json::string::max_size();

    explicit Handler(bool refuse_duplicates) : refuse_duplicates_(refuse_duplicates) { stack_.reset(); }
    Json release() { return stack_.release(); }
    const std::string& duplicate() const { return duplicate_; }

    bool on_document_begin(json::error_code&) { return true; }
    bool on_document_end(json::error_code&) { return true; }
    bool on_object_begin(json::error_code&) {
        keys_.emplace_back();
        return true;
    }
    bool on_object_end(std::size_t n, json::error_code&) {
        stack_.push_object(n);
        keys_.pop_back();
        return true;
    }
    bool on_array_begin(json::error_code&) { return true; }
    bool on_array_end(std::size_t n, json::error_code&) {
        stack_.push_array(n);
        return true;
    }
    bool on_key_part(json::string_view s, std::size_t, json::error_code&) {
        if (refuse_duplicates_) key_.append(s.data(), s.size());
        stack_.push_chars(s);
        return true;
    }
    bool on_key(json::string_view s, std::size_t, json::error_code& ec) {
        stack_.push_key(s);
        if (!refuse_duplicates_) return true;
        key_.append(s.data(), s.size());
        if (!keys_.back().insert(key_).second) {
            duplicate_ = key_;
            ec = json::error::syntax;
            return false;
        }
        key_.clear();
        return true;
    }
    bool on_string_part(json::string_view s, std::size_t, json::error_code&) {
        stack_.push_chars(s);
        return true;
    }
    bool on_string(json::string_view s, std::size_t, json::error_code&) {
        stack_.push_string(s);
        return true;
    }
    bool on_number_part(json::string_view s, json::error_code&) {
        number_.append(s.data(), s.size());
        return true;
    }
    bool on_int64(std::int64_t i, json::string_view, json::error_code&) {
        number_.clear();
        stack_.push_int64(i);
        return true;
    }
    bool on_uint64(std::uint64_t u, json::string_view, json::error_code&) {
        number_.clear();
        stack_.push_uint64(u);
        return true;
    }
    // Boost's own value may be off by a last place.
    bool on_double(double d, json::string_view s, json::error_code&) {
        number_.append(s.data(), s.size());
        double exact = 0;
        const auto read = std::from_chars(number_.data(), number_.data() + number_.size(), exact);
        stack_.push_double(read.ec == std::errc() ? exact : d);
        number_.clear();
        return true;
    }
    bool on_bool(bool b, json::error_code&) {
        stack_.push_bool(b);
        return true;
    }
    bool on_null(json::error_code&) {
        stack_.push_null();
        return true;
    }
    bool on_comment_part(json::string_view, json::error_code&) { return true; }
    bool on_comment(json::string_view, json::error_code&) { return true; }

  private:
    json::value_stack stack_;
    bool refuse_duplicates_;
    std::vector<std::unordered_set<std::string>> keys_;
    std::string key_, duplicate_;
    std::string number_;  // its text so far
};

Error wrong_type(std::string_view source, std::string_view what, const Json& found, const char* expected) {
    return bad_input("{}: {} is {}, expected {}", source, what, json_type_name(found), expected);
}

std::string quoted_key(std::string_view key) { return fmt::format("'{}'", key.substr(0, 100)); }

// Length of the proper UTF-8 sequence at the start of `text`, 0 if there is none.
size_t utf8_length(std::string_view text) {
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    const uint8_t lead = p[0];
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
    for (size_t k = 1; k < length; k++)
        if ((p[k] & 0xc0) != 0x80) return 0;
    const bool bad = (lead == 0xe0 && p[1] < 0xa0) || (lead == 0xed && p[1] > 0x9f) ||
                     (lead == 0xf0 && p[1] < 0x90) || (lead == 0xf4 && p[1] > 0x8f);
    return bad ? 0 : length;
}

void write_quoted(std::string_view text, std::string* out) {
    *out += '"';
    for (size_t i = 0; i < text.size();) {
        const char c = text[i];
        const size_t length = utf8_length(text.substr(i));
        if (length == 0) {
            *out += "\xef\xbf\xbd";
        } else if (length > 1) {
            *out += text.substr(i, length);
        } else if (c == '"' || c == '\\') {
            *out += '\\';
            *out += c;
        } else if (c == '\n') {
            *out += "\\n";
        } else if (uint8_t(c) < 0x20 || c == 0x7f) {
            *out += fmt::format("\\u{:04x}", uint8_t(c));
        } else {
            *out += c;
        }
        i += length == 0 ? 1 : length;
    }
    *out += '"';
}

// Writes a value; `indent` -1 is compact, else the current level.
class Writer {
  public:
    explicit Writer(bool pretty) : pretty_(pretty) {}
    std::string text;

    void write(const Json& v) {
        switch (v.kind()) {
            case json::kind::null: text += "null"; return;
            case json::kind::bool_: text += v.get_bool() ? "true" : "false"; return;
            case json::kind::int64: text += fmt::format("{}", v.get_int64()); return;
            case json::kind::uint64: text += fmt::format("{}", v.get_uint64()); return;
            case json::kind::double_: write_double(v.get_double()); return;
            case json::kind::string:
                write_quoted({v.get_string().data(), v.get_string().size()}, &text);
                return;
            case json::kind::array: write_array(v.get_array()); return;
            case json::kind::object: write_object(v.get_object()); return;
        }
    }

  private:
    void write_double(double d) {
        if (d == 0 && std::signbit(d))
            text += "-0.0";  // "-0" would be an integer, which has one zero
        else
            text += std::isfinite(d) ? fmt::format("{}", d) : "null";
    }
    void write_array(const JsonArray& array) {
        text += '[';
        level_++;
        for (size_t i = 0; i < array.size(); i++) {
            separate(i == 0);
            write(array[i]);
        }
        close(array.empty(), ']');
    }
    void write_object(const JsonObject& object) {
        text += '{';
        level_++;
        bool first = true;
        for (const auto& [key, value] : object) {
            separate(first);
            first = false;
            write_quoted({key.data(), key.size()}, &text);
            text += pretty_ ? ": " : ":";
            write(value);
        }
        close(object.empty(), '}');
    }
    void separate(bool first) {
        if (!first) text += ',';
        if (pretty_) break_line();
    }
    void close(bool empty, char bracket) {
        level_--;
        if (pretty_ && !empty) break_line();
        text += bracket;
    }
    void break_line() {
        text += '\n';
        text.append(size_t(level_) * 2, ' ');
    }
    bool pretty_;
    int level_ = 0;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view source, JsonLimits limits) {
    try {
        json::parse_options options;
        options.max_depth = size_t(limits.depth);
        json::basic_parser<Handler> parser(options, limits.refuse_duplicate_keys);
        json::error_code trouble;
        const size_t used = parser.write_some(false, text.data(), text.size(), trouble);
        if (!parser.handler().duplicate().empty())
            return bad_input("{}: the key {} occurs twice, the second time at byte {}", source,
                             quoted_key(parser.handler().duplicate()), used);
        if (!trouble && used < text.size()) trouble = json::error::extra_data;
        if (trouble) return bad_input("{}: is not JSON: {} at byte {}", source, trouble.message(), used);
        return parser.handler().release();
    } catch (const std::bad_alloc&) {
        return out_of_resources("{}: no memory to parse {} bytes of JSON", source, text.size());
    } catch (const std::exception& e) {
        return bad_input("{}: cannot be parsed as JSON: {}", source, e.what());
    }
}

const char* json_type_name(const Json& value) {
    switch (value.kind()) {
        case json::kind::null: return "null";
        case json::kind::bool_: return "a boolean";
        case json::kind::string: return "a string";
        case json::kind::array: return "an array";
        case json::kind::object: return "an object";
        default: return "a number";
    }
}

Result<const JsonObject*> json_object(const Json& value, std::string_view source, std::string_view what) {
    if (const JsonObject* object = value.if_object()) return object;
    return wrong_type(source, what, value, "an object");
}

Result<const JsonArray*> json_array(const Json& value, std::string_view source, std::string_view what) {
    if (const JsonArray* array = value.if_array()) return array;
    return wrong_type(source, what, value, "an array");
}

const Json* json_find(const JsonObject& object, std::string_view key) {
    return object.if_contains(json::string_view(key.data(), key.size()));
}

static Result<const Json*> require(const JsonObject& object, std::string_view key, std::string_view source) {
    if (const Json* value = json_find(object, key)) return value;
    return bad_input("{}: the key {} is missing", source, quoted_key(key));
}

Result<std::string_view> json_string(const JsonObject& object, std::string_view key,
                                     std::string_view source) {
    TRY(const Json* value, require(object, key, source));
    if (const json::string* s = value->if_string()) return std::string_view(s->data(), s->size());
    return wrong_type(source, quoted_key(key), *value, "a string");
}

bool json_is_int(const Json& value, int64_t* out) {
    if (const int64_t* i = value.if_int64()) {
        *out = *i;
        return true;
    }
    if (const uint64_t* u = value.if_uint64(); u && *u <= uint64_t(INT64_MAX)) {
        *out = int64_t(*u);
        return true;
    }
    return false;
}

Result<int64_t> json_int(const JsonObject& object, std::string_view key, std::string_view source) {
    TRY(const Json* value, require(object, key, source));
    int64_t number = 0;
    if (json_is_int(*value, &number)) return number;
    return wrong_type(source, quoted_key(key), *value, "an integer");
}

Result<double> json_number(const JsonObject& object, std::string_view key, std::string_view source) {
    TRY(const Json* value, require(object, key, source));
    if (const double* d = value->if_double()) return *d;
    if (const int64_t* i = value->if_int64()) return double(*i);
    if (const uint64_t* u = value->if_uint64()) return double(*u);
    return wrong_type(source, quoted_key(key), *value, "a number");
}

std::string to_json(const Json& value) {
    Writer writer(false);
    writer.write(value);
    return std::move(writer.text);
}

std::string to_json_pretty(const Json& value) {
    Writer writer(true);
    writer.write(value);
    return std::move(writer.text);
}

std::string json_quote(std::string_view text) {
    std::string out;
    write_quoted(text, &out);
    return out;
}

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const size_t length = utf8_length(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

}  // namespace sparkinfer
