// observed_service.h — a service that takes the times of its answers for metrics, log and dashboard.
#pragma once
#include <memory>

#include "server/metrics.h"
#include "server/service.h"

namespace sparkinfer {

// Passes everything through to `service`; both must outlive it.
std::unique_ptr<Service> observe(Service& service, Metrics& metrics);

}  // namespace sparkinfer
