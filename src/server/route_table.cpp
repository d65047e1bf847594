#include "server/route_table.h"

#include "core/check.h"

namespace sparkinfer {

namespace {

bool is_name(const std::string& segment) { return segment.size() > 2 && segment.front() == '{'; }

bool fits(const std::vector<std::string>& pattern, const std::vector<std::string>& segments, bool exact) {
    if (pattern.size() != segments.size()) return false;
    bool named = false;
    for (size_t i = 0; i < pattern.size(); ++i) {
        const bool name = is_name(pattern[i]);
        named |= name;
        if (name ? segments[i].empty() : pattern[i] != segments[i]) return false;
    }
    return named != exact;
}

}  // namespace

RouteTable::RouteTable(std::vector<Route> routes) : routes_(std::move(routes)) {
    for (const Route& route : routes_) {
        CHECK(!route.path.empty() && route.path[0] == '/', "a route's path is '{}'", route.path);
        std::vector<std::string>& pattern = patterns_.emplace_back();
        for (size_t at = 0; at != std::string::npos;) {
            const size_t end = route.path.find('/', at + 1);
            pattern.push_back(route.path.substr(at + 1, end == std::string::npos ? end : end - at - 1));
            at = end;
        }
    }
}

RouteTable::Match RouteTable::match(std::string_view method, const std::vector<std::string>& segments) const {
    Match match;
    for (const bool exact : {true, false}) {
        const Route* get = nullptr;
        for (size_t i = 0; i < routes_.size(); ++i) {
            if (!fits(patterns_[i], segments, exact)) continue;
            const Route& route = routes_[i];
            match.open |= route.access == Route::Access::open;
            match.allow += (match.allow.empty() ? "" : ", ") + route.method;
            if (route.method == "GET") {
                get = &route;
                match.allow += ", HEAD";
            }
            if (route.method == method) match.route = &route;
        }
        if (!match.route && method == "HEAD") match.route = get;
        if (!match.allow.empty()) {
            match.allow += ", OPTIONS";
            return match;
        }
    }
    return match;
}

}  // namespace sparkinfer
