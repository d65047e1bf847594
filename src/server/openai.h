// openai.h — the handlers of OpenAI's two endpoints that answer with the model.
#pragma once
#include "server/api.h"
#include "server/http.h"
#include "server/service.h"

namespace sparkinfer {

// POST /v1/chat/completions and POST /v1/completions. The service must outlive the handlers.
Handler chat_completions(Service& service, ApiOptions options);
Handler completions(Service& service, ApiOptions options);

}  // namespace sparkinfer
