#include "server/http_head.h"

#include <algorithm>

#include "core/json.h"

namespace sparkinfer {

namespace {

bool is_token_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
bool is_token(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}
bool is_field_value(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return c == '\t' || (uint8_t(c) >= 0x20 && uint8_t(c) != 0x7f); });
}
bool is_target(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return uint8_t(c) > 0x20 && uint8_t(c) < 0x7f && c != '#';
    });
}
bool is_digits(std::string_view text) {
    return !text.empty() && text.size() <= 18 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

ApiError malformed(std::string message) { return {400, "", "", std::move(message)}; }

// What the fields of one head say about its length and its host.
struct FieldFacts {
    int hosts = 0, lengths = 0, codings = 0;
    size_t fields = 0;
};

std::optional<ApiError> check_request_line(std::string_view line, bool& http11) {
    const size_t first = line.find(' '), last = line.rfind(' ');
    if (first == std::string_view::npos || first == last)
        return malformed("the request line is not METHOD TARGET VERSION");
    const std::string_view method = line.substr(0, first), version = line.substr(last + 1),
                           target = line.substr(first + 1, last - first - 1);
    if (!is_token(method) || method.size() > 32) return malformed("the request's method is no word");
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
        if (version.substr(0, 5) == "HTTP/")
            return ApiError{505, "", "", "the version of HTTP is not 1.0 or 1.1"};
        return malformed("the request line does not end in a version of HTTP");
    }
    http11 = version == "HTTP/1.1";
    if (!is_target(target)) return malformed("the request's target has characters that must be escaped");
    if (target[0] != '/' && !(target == "*" && method == "OPTIONS"))
        return malformed("the request's target does not begin with '/'");
    return std::nullopt;
}

std::optional<ApiError> check_field(std::string_view line, bool http11, FieldFacts& facts) {
    if (line[0] == ' ' || line[0] == '\t') return malformed("a header is folded over several lines");
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
        return malformed("a header line is not NAME: VALUE");
    const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
    if (!is_field_value(value)) return malformed("a header's value has control characters");
    if (++facts.fields > kMaxFields)
        return ApiError{431, "", "", fmt::format("the request has more than {} headers", kMaxFields)};
    if (equals_ignoring_case(name, "host")) {
        ++facts.hosts;
    } else if (equals_ignoring_case(name, "content-length")) {
        if (++facts.lengths > 1) return malformed("content-length is given more than once");
        if (!is_digits(value)) return malformed("content-length is no whole number");
    } else if (equals_ignoring_case(name, "transfer-encoding")) {
        if (++facts.codings > 1) return malformed("transfer-encoding is given more than once");
        if (!http11) return malformed("transfer-encoding in a request of HTTP/1.0");
        if (!equals_ignoring_case(value, "chunked"))
            return ApiError{501, "", "", "transfer-encoding is not 'chunked'"};
    }
    return std::nullopt;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

ApiResult<std::string> unescaped(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1,
                  low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) return malformed("the path has a '%' without two hexadecimal digits");
        const int byte = high * 16 + low;
        if (byte < 0x20 || byte == 0x7f) return malformed("the path has an escaped control character");
        out += char(byte);
        i += 2;
    }
    if (!is_utf8(out)) return malformed("the path is not UTF-8");
    return out;
}

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; };
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<ApiError> check_head(std::string_view head) {
    FieldFacts facts;
    bool http11 = true, first = true;
    for (;;) {
        const size_t end = head.find("\r\n");
        if (end == std::string_view::npos) return malformed("the request's head does not end");
        const std::string_view line = head.substr(0, end);
        head.remove_prefix(end + 2);
        if (line.empty()) break;
        if (line.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos)
            return malformed("the request's head has a line that does not end in CR LF");
        if (auto wrong = first ? check_request_line(line, http11) : check_field(line, http11, facts))
            return wrong;
        first = false;
    }
    if (first || !head.empty()) return malformed("the request's head is not one head");
    if (facts.hosts > 1 || (facts.hosts == 0 && http11))
        return malformed("the request has not exactly one host header");
    if (facts.lengths && facts.codings)
        return malformed("the request has both content-length and transfer-encoding");
    return std::nullopt;
}

ApiResult<Target> parse_target(std::string_view target) {
    Target parsed;
    const size_t question = target.find('?');
    if (question != std::string_view::npos) parsed.query = target.substr(question + 1);
    std::string_view path = target.substr(0, question);
    if (path == "*") path = "/*";
    while (!path.empty()) {
        path.remove_prefix(1);  // '/'
        const size_t end = std::min(path.find('/'), path.size());
        TRY(parsed.segments.emplace_back(), unescaped(path.substr(0, end)));
        parsed.path += "/" + parsed.segments.back();
        path.remove_prefix(end);
    }
    return parsed;
}

}  // namespace sparkinfer
