// http_gate.h — who may ask for what: decided from the head of a request, before its body is read.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/keys.h"
#include "server/route_table.h"

namespace sparkinfer {

enum class ServerState { loading, ready, draining };

// What is asked of every request. One set is never changed: a new one takes its place.
struct GateRules {
    std::shared_ptr<const RouteTable> table;
    std::optional<KeyRing> keys = {};             // none: every route is open
    std::vector<std::string> allowed_hosts = {};  // beside addresses, localhost and this machine's name
    std::vector<std::string> cors_origins = {};   // "https://a.example", "*"
    std::string machine_name = {};
    ServerState state = ServerState::ready;
    int retry_after_s = 2;
};

struct Verdict {
    std::optional<ApiError> refused = {};
    bool preflight = false;           // an OPTIONS that is answered with `headers` alone
    const Route* route = nullptr;     // else
    Responder::Headers headers = {};  // that the answer carries, whatever it is
};

// `segments` are the path's. Fills request.key. `local`: it came over a unix socket, which no web page can
// reach.
Verdict admit(const GateRules& rules, HttpRequest& request, const std::vector<std::string>& segments,
              bool local);

}  // namespace sparkinfer
