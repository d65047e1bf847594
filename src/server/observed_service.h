// observed_service.h — a service that knows which HTTP request it works for: it takes the times of its
// answers for metrics, log and dashboard, and keeps what different API keys leave in the prefix cache apart,
// so that nobody can tell by its speed what others have asked.
#pragma once
#include <memory>

#include "server/metrics.h"
#include "server/service.h"

namespace sparkinfer {

// Passes everything through to `service`; both must outlive it.
std::unique_ptr<Service> observe(Service& service, Metrics& metrics);

}  // namespace sparkinfer
