// endpoints.h — the small endpoints around the answers: models, tokens, templates, properties.
#pragma once
#include <functional>
#include <vector>

#include "server/api.h"
#include "server/http.h"
#include "server/service.h"

namespace sparkinfer {

// GET /v1/models, GET /v1/models/{id}: the context length under every name that clients look for.
Handler list_models(Service& service);
Handler show_model(Service& service);
// POST /tokenize: {"content"}, {"prompt"} or {"messages"}; POST /detokenize: {"tokens"}.
Handler tokenize(Service& service, ApiOptions options);
Handler detokenize(Service& service, ApiOptions options);
// POST /apply-template: the prompt as text.
Handler apply_template(Service& service, ApiOptions options);
// GET /props as llama.cpp has it, GET /tokenizer_info as vLLM has it.
Handler props(Service& service);
Handler tokenizer_info(Service& service);

// All of the above and openai.h's, with their paths in every spelling. The service must outlive them.
std::vector<Route> openai_routes(Service& service, const ApiOptions& options);

}  // namespace sparkinfer
