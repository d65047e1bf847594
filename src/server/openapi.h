// openapi.h — the description of all endpoints (OpenAPI 3.1), made from tables: /openapi.json.
#pragma once
#include "core/json.h"
#include "server/http.h"

namespace sparkinfer {

// The schemas of requests and answers by name, as the parsers read them.
JsonObject openapi_schemas();

Json openapi_document();

// GET /openapi.json
Route openapi_route();

}  // namespace sparkinfer
