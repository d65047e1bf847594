#include "server/http_message.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <ctime>

namespace sparkinfer {

namespace {

void add_field(std::string& text, std::string_view name, std::string_view value) {
    text.append(name).append(": ");
    for (const char c : value) text += uint8_t(c) < 0x20 || c == 0x7f ? ' ' : c;
    text += "\r\n";
}

bool has(const Responder::Headers& headers, std::string_view name) {
    return std::any_of(headers.begin(), headers.end(),
                       [&](const auto& field) { return field.first == name; });
}

std::string http_date() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    char text[40];
    return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

}  // namespace

const char* status_text(int status) {
    switch (status) {
        case 100: return "Continue";
        case 200: return "OK";
        case 204: return "No Content";
        case 304: return "Not Modified";
        case 400: return "Bad Request";
        case 401: return "Unauthorized";
        case 403: return "Forbidden";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 408: return "Request Timeout";
        case 409: return "Conflict";
        case 413: return "Content Too Large";
        case 415: return "Unsupported Media Type";
        case 429: return "Too Many Requests";
        case 431: return "Request Header Fields Too Large";
        case 500: return "Internal Server Error";
        case 501: return "Not Implemented";
        case 503: return "Service Unavailable";
        case 505: return "HTTP Version Not Supported";
        default: return "Status";
    }
}

std::string head_text(const AnswerHead& head, const Responder::Headers& headers,
                      const Responder::Headers& more) {
    std::string text = fmt::format("HTTP/1.1 {} {}\r\n", head.status, status_text(head.status));
    add_field(text, "date", http_date());
    if (!head.content_type.empty()) add_field(text, "content-type", head.content_type);
    const bool bodiless = head.status == 204 || head.status == 304;
    if (head.framing == Framing::length && !bodiless)
        add_field(text, "content-length", std::to_string(head.length));
    if (head.framing == Framing::chunked) add_field(text, "transfer-encoding", "chunked");
    if (head.framing != Framing::length) add_field(text, "x-accel-buffering", "no");
    if (!head.keep_alive)
        add_field(text, "connection", "close");
    else if (head.http10)
        add_field(text, "connection", "keep-alive");
    if (!head.request_id.empty()) {
        add_field(text, "x-request-id", head.request_id);
        add_field(text, "request-id", head.request_id);  // Anthropic's spelling
    }
    if (!has(headers, "cache-control")) add_field(text, "cache-control", "no-cache");
    add_field(text, "x-content-type-options", "nosniff");
    for (const Responder::Headers* fields : {&headers, &more})
        for (const auto& [name, value] : *fields) add_field(text, name, value);
    return text + "\r\n";
}

std::string chunk_text(std::string_view bytes) {
    std::string text = fmt::format("{:x}\r\n", bytes.size());
    return text.append(bytes).append("\r\n");
}

bool is_request_id(std::string_view text) {
    return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
        return std::isalnum(uint8_t(c)) || c == '-' || c == '_' || c == '.' || c == ':';
    });
}

}  // namespace sparkinfer
