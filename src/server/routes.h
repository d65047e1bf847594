// routes.h — every route of the server in one table.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/service.h"

namespace sparkinfer {

// Of what is there before a model is: health, metrics, the pages and their data. `metrics` must outlive them.
std::vector<Route> server_routes(Metrics& metrics, std::function<std::string()> state);

// Of the model: every protocol. `service` must outlive them.
std::vector<Route> api_routes(Service& service, const ApiOptions& options);

}  // namespace sparkinfer
