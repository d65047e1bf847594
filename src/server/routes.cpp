#include "server/routes.h"

#include "server/anthropic.h"
#include "server/endpoints.h"
#include "server/responses.h"
#include "server/web_files.h"

namespace sparkinfer {

namespace {

using Reply = std::function<void(Responder&)>;

Route light(std::string path, Route::Access access, Reply reply) {
    return {"GET", std::move(path), access,
            [reply = std::move(reply)](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
                reply(*responder);
            },
            /*light=*/true};
}

void send_state(Responder& responder, const std::string& state) {
    const bool ready = state == "ready";
    Responder::Headers headers;
    if (!ready) headers.emplace_back("retry-after", "2");
    responder.send(ready ? 200 : 503, "application/json", to_json(JsonObject{{"status", state}}),
                   std::move(headers));
}

}  // namespace

std::vector<Route> server_routes(Metrics& metrics, std::function<std::string()> state) {
    using Access = Route::Access;
    const Reply ready = [state](Responder& r) { send_state(r, state()); };
    std::vector<Route> routes = {
        light("/health/live", Access::open,
              [](Responder& r) { r.send(200, "application/json", R"({"status":"live"})"); }),
        light("/health/ready", Access::open, ready),
        light("/health", Access::open, ready),
        light("/metrics", Access::key,
              [&metrics](Responder& r) {
                  r.send(200, "text/plain; version=0.0.4; charset=utf-8", metrics.prometheus());
              }),
        light("/dashboard/data", Access::key,
              [&metrics](Responder& r) { r.send(200, "application/json", to_json(metrics.dashboard())); }),
    };
    for (Route& route : web_routes()) routes.push_back(std::move(route));
    return routes;
}

std::vector<Route> api_routes(Service& service, const ApiOptions& options) {
    std::vector<Route> routes = openai_routes(service, options);
    for (Route& route : responses_routes(service, options)) routes.push_back(std::move(route));
    for (Route& route : anthropic_routes(service, options)) routes.push_back(std::move(route));
    return routes;
}

}  // namespace sparkinfer
