// route_table.h — which handler a path and a method mean.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace sparkinfer {

class RouteTable {
  public:
    explicit RouteTable(std::vector<Route> routes);

    struct Match {
        const Route* route = nullptr;  // null: the path is unknown, or has other methods
        bool open = false;             // some route of the path needs no key
        std::string allow = {};        // the methods of the path, "GET, HEAD, OPTIONS"; empty: it is unknown
    };
    // `segments` of the path, decoded. Exact paths go before those with {names}; HEAD falls back to GET.
    Match match(std::string_view method, const std::vector<std::string>& segments) const;
    const std::vector<Route>& routes() const { return routes_; }

  private:
    std::vector<Route> routes_;
    std::vector<std::vector<std::string>> patterns_;  // of each: its path's segments
};

}  // namespace sparkinfer
