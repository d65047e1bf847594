#include "server/http_gate.h"

#include <algorithm>
#include <cctype>

#include "server/http_head.h"

namespace sparkinfer {

namespace {

// "[::1]:8080" → "[::1]", "a.example:80" → "a.example".
std::string_view without_port(std::string_view authority) {
    const size_t bracket = authority.rfind(']');
    const size_t colon = authority.rfind(':');
    if (colon == std::string_view::npos || (bracket != std::string_view::npos && colon < bracket))
        return authority;
    return authority.substr(0, colon);
}

// A web page that makes its own name point here (DNS rebinding) still sends that name.
bool is_address(std::string_view host) {
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') return true;
    int parts = 1;
    for (const char c : host) {
        if (c == '.')
            ++parts;
        else if (c < '0' || c > '9')
            return false;
    }
    return parts == 4;
}

bool host_allowed(const GateRules& rules, std::string_view authority) {
    if (authority.empty()) return true;  // HTTP/1.0, as health checks speak it; browsers always name a host
    std::string_view host = without_port(authority);
    if (!host.empty() && host.back() == '.') host.remove_suffix(1);
    if (is_address(host) || equals_ignoring_case(host, "localhost")) return true;
    if (!rules.machine_name.empty() && equals_ignoring_case(host, rules.machine_name)) return true;
    return std::any_of(
        rules.allowed_hosts.begin(), rules.allowed_hosts.end(),
        [&](const std::string& allowed) { return allowed == "*" || equals_ignoring_case(host, allowed); });
}

// Is the page that sends this origin one of ours?
bool same_origin(std::string_view origin, std::string_view host) {
    const bool https = origin.substr(0, 8) == "https://";
    if (!https && origin.substr(0, 7) != "http://") return false;
    const std::string_view default_port = https ? ":443" : ":80";
    const auto bare = [&](std::string_view authority) {
        return without_port(authority).size() + default_port.size() == authority.size() &&
                       authority.substr(authority.size() - default_port.size()) == default_port
                   ? without_port(authority)
                   : authority;
    };
    return equals_ignoring_case(bare(origin.substr(https ? 8 : 7)), bare(host));
}

bool cors_allowed(const GateRules& rules, std::string_view origin) {
    return std::any_of(rules.cors_origins.begin(), rules.cors_origins.end(), [&](const std::string& allowed) {
        return allowed == "*" ? origin != "null" : allowed == origin;
    });
}

std::optional<ApiError> check_sender(const GateRules& rules, const HttpRequest& request, bool local,
                                     Responder::Headers& headers) {
    const std::string_view host = request.header("host"), origin = request.header("origin");
    if (!local && !host_allowed(rules, host))
        return ApiError{403, "host_not_allowed", "host",
                        fmt::format("the server is not known as '{}'; --allow-host {} lets it be",
                                    host.substr(0, 200), without_port(host).substr(0, 200))};
    if (origin.empty()) return std::nullopt;
    if (cors_allowed(rules, origin)) {
        headers.emplace_back("access-control-allow-origin", origin);
        headers.emplace_back("access-control-expose-headers", "x-request-id, request-id, retry-after");
        headers.emplace_back("vary", "origin");
        return std::nullopt;
    }
    if (same_origin(origin, host)) return std::nullopt;
    return ApiError{
        403, "origin_not_allowed", "origin",
        fmt::format("pages of '{}' may not use this server; --cors-origin lets them", origin.substr(0, 200))};
}

// The key of "Authorization: Bearer KEY" or "x-api-key: KEY"; some clients send both.
std::optional<std::string> shown_key(const KeyRing& keys, const HttpRequest& request) {
    constexpr std::string_view kBearer = "bearer ";
    std::optional<std::string> label;
    const std::string_view authorization = request.header("authorization");
    if (equals_ignoring_case(authorization.substr(0, kBearer.size()), kBearer))
        label = keys.find(trimmed(authorization.substr(kBearer.size())));
    const std::string_view own = request.header("x-api-key");
    if (!label && !own.empty()) label = keys.find(own);
    return label;
}

std::optional<ApiError> check_key(const GateRules& rules, HttpRequest& request, Responder::Headers& headers) {
    if (const auto label = shown_key(*rules.keys, request)) {
        request.key = *label;
        return std::nullopt;
    }
    headers.emplace_back("www-authenticate", "Bearer");
    const bool none = request.header("authorization").empty() && request.header("x-api-key").empty();
    return ApiError{401, "invalid_api_key", "",
                    none ? "no API key is shown, expected 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
                         : "the API key that is shown is not one of this server's"};
}

// A body must be JSON: what a form or a plain text of a web page can send without asking is refused.
std::optional<ApiError> check_body_kind(const HttpRequest& request) {
    const std::string_view encoding = trimmed(request.header("content-encoding"));
    if (!encoding.empty() && !equals_ignoring_case(encoding, "identity"))
        return ApiError{
            415, "", "content-encoding",
            fmt::format("the body is compressed ('{}'), expected it as it is", encoding.substr(0, 100))};
    const std::string_view length = request.header("content-length");
    const bool body = request.header("transfer-encoding").size() > 0 ||
                      (!length.empty() && length.find_first_not_of('0') != std::string_view::npos);
    if (!body) return std::nullopt;
    const std::string_view type = request.header("content-type");
    if (equals_ignoring_case(trimmed(type.substr(0, type.find(';'))), "application/json"))
        return std::nullopt;
    return ApiError{415, "", "content-type",
                    fmt::format("the content type is '{}', expected application/json", type.substr(0, 100))};
}

// OPTIONS of a browser that asks whether a page may.
bool is_preflight(const HttpRequest& request) {
    return request.method == "OPTIONS" && !request.header("access-control-request-method").empty();
}

void answer_preflight(const HttpRequest& request, const std::string& allow, Responder::Headers& headers) {
    headers.emplace_back("access-control-allow-methods", allow);
    const std::string_view wanted = request.header("access-control-request-headers");
    const bool plain = std::all_of(wanted.begin(), wanted.end(), [](char c) {
        return std::isalnum(uint8_t(c)) || c == '-' || c == '_' || c == ',' || c == ' ';
    });
    if (plain && !wanted.empty()) headers.emplace_back("access-control-allow-headers", wanted);
    headers.emplace_back("access-control-max-age", "600");
}

std::optional<ApiError> check_state(const GateRules& rules) {
    if (rules.state == ServerState::loading)
        return ApiError{503, "model_loading", "", "the model is being loaded", rules.retry_after_s};
    if (rules.state == ServerState::draining)
        return ApiError{503, "shutting_down", "", "the server is shutting down", rules.retry_after_s};
    return std::nullopt;
}

}  // namespace

Verdict admit(const GateRules& rules, HttpRequest& request, const std::vector<std::string>& segments,
              bool local) {
    Verdict verdict;
    if ((verdict.refused = check_sender(rules, request, local, verdict.headers))) return verdict;
    const RouteTable::Match match = rules.table->match(request.method, segments);
    const bool cors = !verdict.headers.empty();
    if (cors && is_preflight(request)) {
        answer_preflight(request, match.allow.empty() ? "GET, POST" : match.allow, verdict.headers);
        verdict.preflight = true;
        return verdict;
    }
    // What is not a public route needs a key, whether it exists or not.
    const bool open = match.route ? match.route->access == Route::Access::open : match.open;
    if (rules.keys && !open && (verdict.refused = check_key(rules, request, verdict.headers))) return verdict;
    const bool needs_model = match.route ? !match.route->light : !match.open;
    if (needs_model && (verdict.refused = check_state(rules))) return verdict;
    if (match.allow.empty()) {
        verdict.refused = ApiError{404, "not_found", "", fmt::format("there is no {} here", request.path)};
        return verdict;
    }
    if (!match.route) {
        verdict.headers.emplace_back("allow", match.allow);
        if (request.method == "OPTIONS")
            verdict.preflight = true;
        else
            verdict.refused =
                ApiError{405, "method_not_allowed", "",
                         fmt::format("{} takes {}, not {}", request.path, match.allow, request.method)};
        return verdict;
    }
    if ((verdict.refused = check_body_kind(request))) return verdict;
    verdict.route = match.route;
    return verdict;
}

}  // namespace sparkinfer
