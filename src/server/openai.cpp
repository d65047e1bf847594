#include "server/openai.h"

#include "server/answer_pump.h"
#include "server/errors.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"

namespace sparkinfer {
namespace {

PumpOrder order_for(const HttpRequest& request, std::string answer_id, bool stream, int32_t n) {
    PumpOrder order;
    order.n = n;
    order.answer_id = std::move(answer_id);
    order.stream = stream;
    order.path = request.path;
    order.request_id = request.id;
    return order;
}

ApiResult<void> answer_chat(Service& service, const ApiOptions& options, const HttpRequest& request,
                            const std::shared_ptr<Responder>& responder) {
    TRY(const Json body, parse_body(request));
    TRY(const ChatCall call, parse_chat(body));
    TRY_VOID(check_model(service.card(), call.request.model, options));
    TRY(std::shared_ptr<Prepared> prepared, service.prepare(call.request));
    const ChatRequest& r = call.request;
    ChatHead head{make_id("chatcmpl-"), unix_now(), service.card().id, system_fingerprint(service.card())};
    head.stream = call.stream;
    head.logprobs = r.params.logprobs >= 0;
    head.include_reasoning = call.include_reasoning;
    head.calls_end_with_stop = r.tool_choice.kind == ToolChoice::Kind::named && !options.named_tool_calls;
    PumpOrder order = order_for(request, head.id, call.stream.stream, r.params.n);
    order.prepared = {std::move(prepared)};
    std::unique_ptr<AnswerWriter> writer;
    if (call.stream.stream)
        writer = std::make_unique<ChatStream>(std::move(head));
    else
        writer = std::make_unique<ChatCollector>(std::move(head));
    pump_answer(service, std::move(order), std::move(writer), responder);
    return {};
}

// Of several prompts the one at fault is named.
ApiError which_prompt(ApiError error, size_t index, size_t prompts) {
    if (prompts > 1 && error.param == "prompt") error.param = fmt::format("prompt[{}]", index);
    return error;
}

ApiResult<void> answer_completion(Service& service, const ApiOptions& options, const HttpRequest& request,
                                  const std::shared_ptr<Responder>& responder) {
    TRY(const Json body, parse_body(request));
    TRY(const CompletionCall call, parse_completion(body));
    const TextRequest& first = call.requests.front();
    TRY_VOID(check_model(service.card(), first.model, options));
    CompletionHead head{make_id("cmpl-"), unix_now(), service.card().id, system_fingerprint(service.card())};
    head.stream = call.stream;
    head.logprobs = first.params.logprobs >= 0;
    PumpOrder order = order_for(request, head.id, call.stream.stream, first.params.n);
    for (size_t i = 0; i < call.requests.size(); ++i) {
        ApiResult<std::shared_ptr<Prepared>> prepared = service.prepare(call.requests[i]);
        if (!prepared.ok()) return which_prompt(prepared.error(), i, call.requests.size());
        order.prepared.push_back(std::move(prepared).value());
    }
    std::unique_ptr<AnswerWriter> writer;
    if (call.stream.stream)
        writer = std::make_unique<CompletionStream>(std::move(head));
    else
        writer = std::make_unique<CompletionCollector>(std::move(head));
    pump_answer(service, std::move(order), std::move(writer), responder);
    return {};
}

template <class Answer>
Handler handler(Service& service, ApiOptions options, Answer answer) {
    return
        [&service, options, answer](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
            const ApiResult<void> result = answer(service, options, request, responder);
            if (!result.ok()) send_error(*responder, request, result.error());
        };
}

}  // namespace

Handler chat_completions(Service& service, ApiOptions options) {
    return handler(service, options, answer_chat);
}

Handler completions(Service& service, ApiOptions options) {
    return handler(service, options, answer_completion);
}

}  // namespace sparkinfer
