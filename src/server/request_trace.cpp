#include "server/request_trace.h"

namespace sparkinfer {

static thread_local std::shared_ptr<RequestTrace> t_current;

std::shared_ptr<RequestTrace> RequestTrace::current() { return t_current; }
RequestTrace::Scope::Scope(std::shared_ptr<RequestTrace> trace) { t_current = std::move(trace); }
RequestTrace::Scope::~Scope() { t_current.reset(); }

}  // namespace sparkinfer
