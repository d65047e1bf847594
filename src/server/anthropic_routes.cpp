#include "server/answer_pump.h"
#include "server/anthropic.h"
#include "server/errors.h"

namespace sparkinfer {

namespace {

class Writer : public AnswerWriter {
  public:
    Writer(MessagesAnswer answer, bool stream) : answer_(std::move(answer)), stream_(stream) {}
    void write(const AnswerEvent& event, std::string* out) override {
        const std::string said = answer_.add(event);
        if (stream_) *out += said;
    }
    void end(const Usage&, std::string* out) override {
        if (!stream_) *out += to_json(answer_.message());
    }
    void fail(const ApiError& error, std::string* out) override {
        *out += answer_.add({.kind = AnswerEvent::Kind::failed, .error = error});
    }

  private:
    MessagesAnswer answer_;
    const bool stream_;
};

struct Call {
    MessagesRequest request;
    std::shared_ptr<Prepared> prepared;
};

ApiResult<Call> prepare(Service& service, const ApiOptions& options, const HttpRequest& http) {
    TRY(const Json body, parse_body(http));
    TRY(MessagesRequest request, parse_messages(body));
    TRY_VOID(check_model(service.card(), request.chat.model, options));
    TRY(std::shared_ptr<Prepared> prepared, service.prepare(request.chat));
    prepared->notices.insert(prepared->notices.begin(), request.notices.begin(), request.notices.end());
    return Call{std::move(request), std::move(prepared)};
}

void answer(Service& service, const ApiOptions& options, const HttpRequest& http,
            const std::shared_ptr<Responder>& responder) {
    ApiResult<Call> call = prepare(service, options, http);
    if (!call.ok()) return send_error(*responder, http, call.error());
    const bool stream = call->request.stream;
    const std::string id = make_id(kMessagesIdPrefix);
    MessagesAnswer said(id, service.card().id, call->request.omit_thinking);
    pump_answer(service,
                {.prepared = {call->prepared},
                 .answer_id = id,
                 .stream = stream,
                 .path = http.path,
                 .request_id = http.id,
                 .keep_alive = kMessagesPing},
                std::make_unique<Writer>(std::move(said), stream), responder);
}

// A prompt over the context is counted as well: that is what tells a client to shorten it.
void count(Service& service, const ApiOptions& options, const HttpRequest& http,
           const std::shared_ptr<Responder>& responder) {
    const ApiResult<Call> call = prepare(service, options, http);
    int64_t tokens = 0;
    if (call.ok())
        tokens = int64_t(call.value().prepared->prompt.size());
    else if (call.error().code == "context_length_exceeded" && call.error().prompt_tokens > 0)
        tokens = call.error().prompt_tokens;
    else
        return send_error(*responder, http, call.error());
    send_json(*responder, JsonObject{{"input_tokens", tokens}});
}

}  // namespace

std::vector<Route> anthropic_routes(Service& service, const ApiOptions& options) {
    const auto with = [&service, options](auto handle) -> Handler {
        return [&service, options, handle](const HttpRequest& http,
                                           const std::shared_ptr<Responder>& responder) {
            handle(service, options, http, responder);
        };
    };
    const Handler swallow = [](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        send_json(*responder, JsonObject{});
    };
    return {{.method = "POST", .path = "/v1/messages", .handler = with(answer)},
            {.method = "POST", .path = "/v1/messages/count_tokens", .handler = with(count)},
            {.method = "POST", .path = "/api/event_logging/batch", .handler = swallow, .light = true}};
}

}  // namespace sparkinfer
