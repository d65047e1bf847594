// http_server.h — the HTTP plane: listens, keeps the connections within their limits, runs handlers.
//
//     TRY(auto server, HttpServer::create(config));
//     TRY(auto reached, server->listen({.host = "127.0.0.1", .port = 8080}));   // 503 until ready
//     server->set_routes(routes);
//     server->set_state(ServerState::ready);
//     …
//     server->set_state(ServerState::draining);
//     server->wait_idle(grace);
//     server->stop();
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http_connection.h"
#include "server/net.h"

namespace sparkinfer {

struct HttpConfig {
    int io_threads = 2, workers = 4;
    size_t queue = 256;  // requests that wait for a worker
    size_t connections = 8192, connections_per_address = 4096;
    size_t bodies_bytes = size_t(512) << 20;  // of all requests together
    HttpLimits limits = {};
    std::optional<TlsFiles> tls = {};
    std::optional<KeyRing> keys = {};
    std::vector<std::string> allowed_hosts = {};
    std::vector<std::string> cors_origins = {};
    RequestTrace::Told told = {};  // of every request when it is over; any thread, must not wait
};

// Threads: any, but create, listen and stop belong to one.
class HttpServer {
  public:
    static Result<std::unique_ptr<HttpServer>> create(HttpConfig config);
    virtual ~HttpServer() = default;  // as stop()

    // What it is reached by from now on. May be called for several endpoints.
    virtual Result<std::vector<std::string>> listen(const Endpoint& endpoint) = 0;

    virtual void set_routes(std::vector<Route> routes) = 0;
    virtual void set_keys(KeyRing keys) = 0;
    // Certificate and key as their files are now, for connections to come; nothing changes on an error.
    virtual Result<void> reload_tls() = 0;
    // loading, as at the beginning, and draining: routes that are not light answer 503. Draining also closes
    // every connection after its request in progress, at once where there is none.
    virtual void set_state(ServerState state) = 0;
    virtual ServerState state() const = 0;

    // True: no request is in progress; false: some still was after `most`.
    virtual bool wait_idle(std::chrono::milliseconds most) = 0;
    // Cuts what is left: clients are gone for its handlers.
    virtual void stop() = 0;

    struct Load {
        size_t connections = 0, requests = 0;  // open; in progress
        uint64_t refused_connections = 0;      // over a limit
    };
    virtual Load load() const = 0;
    // Runs `work` every so often on an I/O thread, until stop().
    virtual void every(std::chrono::milliseconds interval, std::function<void()> work) = 0;
};

}  // namespace sparkinfer
