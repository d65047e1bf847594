// The text of HTTP answers and of event streams; http_client.cpp has the sockets.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "cli/http_client.h"

namespace sparkinfer {
namespace {

constexpr size_t kHeadMax = 64 << 10;  // bytes
constexpr size_t kLineMax = 4 << 10;

std::string small(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = char(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == text.npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// All of `text` as a number of this base.
bool parse_size(std::string_view text, int base, size_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

Error no_http(std::string_view what, std::string_view found) {
    return bad_input("the answer is no HTTP: {} is '{}'", what, found.substr(0, 80));
}

}  // namespace

Result<Url> parse_url(const std::string& text) {
    constexpr std::string_view kPlain = "http://", kTls = "https://";
    const bool tls = text.starts_with(kTls);
    if (!tls && !text.starts_with(kPlain))
        return usage_error("the URL is '{}', expected http:// or https://, then HOST[:PORT][/PATH]", text);
    std::string_view rest = std::string_view(text).substr((tls ? kTls : kPlain).size());
    const size_t slash = std::min(rest.find('/'), rest.size());
    std::string_view place = rest.substr(0, slash), path = rest.substr(slash);
    while (path.ends_with('/')) path.remove_suffix(1);
    Url url{tls, "", tls ? "443" : "80", std::string(path)};
    const bool brackets = place.starts_with('[');
    const size_t end = brackets ? place.find(']') : std::min(place.find(':'), place.size());
    if (end == place.npos) return usage_error("the URL is '{}', expected a ']' after '['", text);
    url.host = brackets ? place.substr(1, end - 1) : place.substr(0, end);
    place.remove_prefix(end + (brackets ? 1 : 0));
    size_t port = 80;
    if (!place.empty()) {
        if (!place.starts_with(':') || !parse_size(place.substr(1), 10, port) || port == 0 || port > 65535)
            return usage_error("the URL is '{}', expected a port from 1 to 65535 after ':'", text);
        url.port = place.substr(1);
    }
    if (url.host.empty()) return usage_error("the URL is '{}', expected a host", text);
    return url;
}

std::string_view ClientResponse::header(std::string_view name) const {
    for (const auto& [known, value] : headers_)
        if (known == name) return value;
    return {};
}

bool ClientResponse::keeps_open() const {
    const std::string connection = small(header("connection"));
    return whole() && (version_ == 1 ? connection != "close" : connection == "keep-alive");
}

Result<void> ClientResponse::push(std::string_view bytes, std::string& body) {
    while (!bytes.empty()) {
        switch (where_) {
            case Where::end: return bad_input("the answer is no HTTP: {} bytes follow its end", bytes.size());
            case Where::counted:
            case Where::chunk:
            case Where::until_close: bytes.remove_prefix(take_bytes(bytes, body)); break;
            case Where::head:
            case Where::chunk_size:
            case Where::chunk_end:
            case Where::trailers: {
                line_ += bytes.front();
                bytes.remove_prefix(1);
                const bool head = where_ == Where::head;
                if (line_.size() > (head ? kHeadMax : kLineMax))
                    return no_http("a line without an end", line_);
                if (!line_.ends_with(head ? "\r\n\r\n" : "\r\n")) break;
                const std::string line = std::exchange(line_, {});
                TRY_VOID(head ? read_head(line)
                              : read_line(std::string_view(line).substr(0, line.size() - 2)));
            }
        }
    }
    return {};
}

Result<void> ClientResponse::closed() {
    if (where_ == Where::until_close) where_ = Where::end;
    if (whole()) return {};
    return out_of_resources("the server closed the connection in the middle of its answer");
}

size_t ClientResponse::take_bytes(std::string_view bytes, std::string& body) {
    const size_t n = where_ == Where::until_close ? bytes.size() : std::min(left_, bytes.size());
    body += bytes.substr(0, n);
    if (where_ == Where::until_close) return n;
    left_ -= n;
    if (left_ == 0) where_ = where_ == Where::chunk ? Where::chunk_end : Where::end;
    return n;
}

Result<void> ClientResponse::read_head(std::string_view head) {
    const size_t end = head.find("\r\n");
    const std::string_view first = head.substr(0, end);
    size_t status = 0;
    if (!first.starts_with("HTTP/1.") || first.size() < 12 || !parse_size(first.substr(9, 3), 10, status))
        return no_http("its first line", first);
    version_ = first[7] - '0';
    status_ = int(status);
    headers_.clear();
    head.remove_prefix(end + 2);
    while (!head.starts_with("\r\n")) {
        const std::string_view line = head.substr(0, head.find("\r\n"));
        const size_t colon = line.find(':');
        if (colon == line.npos) return no_http("a header", line);
        headers_.emplace_back(small(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
        head.remove_prefix(line.size() + 2);
    }
    if (status_ < 200) return {};  // 100 Continue: the head comes later
    const std::string_view length = header("content-length");
    if (small(header("transfer-encoding")) == "chunked") {
        where_ = Where::chunk_size;
    } else if (status_ == 204 || status_ == 304) {
        where_ = Where::end;
    } else if (length.empty()) {
        where_ = Where::until_close;
    } else {
        if (!parse_size(length, 10, left_)) return no_http("Content-Length", length);
        where_ = left_ == 0 ? Where::end : Where::counted;
    }
    return {};
}

// A line of the chunked form, without its line break.
Result<void> ClientResponse::read_line(std::string_view line) {
    if (where_ == Where::chunk_end) {
        if (!line.empty()) return no_http("the end of a chunk", line);
        where_ = Where::chunk_size;
    } else if (where_ == Where::trailers) {
        if (line.empty()) where_ = Where::end;
    } else {
        if (!parse_size(line.substr(0, line.find(';')), 16, left_)) return no_http("a chunk's size", line);
        where_ = left_ == 0 ? Where::trailers : Where::chunk;
    }
    return {};
}

void ClientEvents::push(std::string_view text, const std::function<void(std::string_view)>& data) {
    for (const char c : text) {
        if (c != '\n') {
            line_ += c;
            continue;
        }
        if (line_.ends_with('\r')) line_.pop_back();
        if (line_.empty()) {
            if (has_data_) data(data_);
            data_.clear();
            has_data_ = false;
        } else if (line_.starts_with("data:")) {
            if (has_data_) data_ += '\n';
            has_data_ = true;
            data_ += std::string_view(line_).substr(line_.starts_with("data: ") ? 6 : 5);
        }
        line_.clear();
    }
}

}  // namespace sparkinfer
