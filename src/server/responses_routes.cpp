#include "server/answer_pump.h"
#include "server/errors.h"
#include "server/responses.h"
#include "server/responses_store.h"

namespace sparkinfer {

namespace {

using Store = std::shared_ptr<ResponsesStore>;

class Writer : public AnswerWriter {
  public:
    // `conversation`: what the answer goes on from, if it is to be stored.
    struct Keep {
        Store store;  // null: not stored
        std::string key;
        std::vector<ChatMessage> conversation;
    };
    Writer(ResponsesAnswer answer, bool stream, Keep keep)
        : answer_(std::move(answer)), stream_(stream), keep_(std::move(keep)) {}

    void write(const AnswerEvent& event, std::string* out) override {
        const std::string said = answer_.add(event);
        // Before the client hears of the end: its next request may come at once.
        if (event.kind == AnswerEvent::Kind::finished) store();
        if (stream_) *out += said;
    }
    void end(const Usage&, std::string* out) override {
        if (!stream_) *out += to_json(answer_.response());
    }
    void fail(const ApiError& error, std::string* out) override {
        *out += answer_.add({.kind = AnswerEvent::Kind::failed, .error = error});
    }

  private:
    void store() {
        if (!keep_.store) return;
        keep_.conversation.push_back(answer_.message());
        const std::string id = keep_.conversation.back().id;
        keep_.store->put({id, keep_.key, answer_.response(), std::move(keep_.conversation)});
    }

    ResponsesAnswer answer_;
    const bool stream_;
    Keep keep_;
};

ApiError not_found(std::string param, const std::string& id) {
    return {404, param.empty() ? "response_not_found" : "previous_response_not_found", std::move(param),
            fmt::format("The response {} is not stored here: it never was, or it is no longer",
                        json_quote(id.substr(0, 100)))};
}

class Responses {
  public:
    Responses(Service& service, const ApiOptions& options) : service_(service), options_(options) {}

    void create(const HttpRequest& http, const std::shared_ptr<Responder>& responder) const {
        const auto said = try_create(http, responder);
        if (!said.ok()) send_error(*responder, http, said.error());
    }
    void get(const HttpRequest& http, Responder& responder) const {
        const auto stored = store_->find(id_of(http), http.key);
        if (!stored) return send_error(responder, http, not_found("", id_of(http)));
        send_json(responder, stored->response);
    }
    void erase(const HttpRequest& http, Responder& responder) const {
        if (!store_->erase(id_of(http), http.key))
            return send_error(responder, http, not_found("", id_of(http)));
        send_json(responder, JsonObject{{"id", id_of(http)}, {"object", "response"}, {"deleted", true}});
    }

  private:
    static std::string id_of(const HttpRequest& http) { return http.path.substr(http.path.rfind('/') + 1); }
    ApiResult<void> try_create(const HttpRequest& http, const std::shared_ptr<Responder>& responder) const;

    Service& service_;
    const ApiOptions options_;
    const Store store_ = std::make_shared<ResponsesStore>(ResponsesStore::Limits{});
};

ApiResult<void> Responses::try_create(const HttpRequest& http,
                                      const std::shared_ptr<Responder>& responder) const {
    TRY(const Json body, parse_body(http));
    TRY(ResponsesRequest request,
        parse_responses(body, [&](const std::string& id) { return store_->item(id, http.key); }));
    TRY_VOID(check_model(service_.card(), request.chat.model, options_));
    std::vector<ChatMessage>& messages = request.chat.messages;
    if (!request.previous.empty()) {
        const auto previous = store_->find(request.previous, http.key);
        if (!previous) return not_found("previous_response_id", request.previous);
        messages.insert(messages.begin(), previous->messages.begin(), previous->messages.end());
    }
    if (messages.empty()) return bad_request("input", "input is empty, expected at least one item");
    Writer::Keep keep;
    if (request.store) keep = {store_, http.key, messages};
    if (!request.instructions.empty())
        messages.insert(messages.begin(), {.role = Role::system, .content = request.instructions});

    ResponsesAnswer answer({.id = make_id(kResponsesIdPrefix),
                            .model = service_.card().id,
                            .created = unix_now(),
                            .echo = request.echo,
                            .namespaces = request.namespaces,
                            .encrypted_reasoning = request.encrypted_reasoning});
    const ApiResult<std::shared_ptr<Prepared>> prepared = service_.prepare(request.chat);
    if (!prepared.ok()) {
        if (!request.stream || prepared.error().code != "context_length_exceeded") return prepared.error();
        responder->start_stream("text/event-stream; charset=utf-8", ": keep-alive\n\n");
        responder->write(answer.add({.kind = AnswerEvent::Kind::failed, .error = prepared.error()}));
        responder->finish();
        return {};
    }
    std::vector<std::string>& notices = prepared.value()->notices;
    notices.insert(notices.begin(), request.notices.begin(), request.notices.end());
    const std::string id = answer.id();
    pump_answer(service_,
                {.prepared = {prepared.value()},
                 .answer_id = id,
                 .stream = request.stream,
                 .path = http.path,
                 .request_id = http.id},
                std::make_unique<Writer>(std::move(answer), request.stream, std::move(keep)), responder);
    return {};
}

}  // namespace

std::vector<Route> responses_routes(Service& service, const ApiOptions& options) {
    const auto responses = std::make_shared<const Responses>(service, options);
    const auto create = [responses](const HttpRequest& http, const std::shared_ptr<Responder>& responder) {
        responses->create(http, responder);
    };
    const auto get = [responses](const HttpRequest& http, const std::shared_ptr<Responder>& responder) {
        responses->get(http, *responder);
    };
    const auto erase = [responses](const HttpRequest& http, const std::shared_ptr<Responder>& responder) {
        responses->erase(http, *responder);
    };
    return {{.method = "POST", .path = "/v1/responses", .handler = create},
            {.method = "GET", .path = "/v1/responses/{id}", .handler = get},
            {.method = "DELETE", .path = "/v1/responses/{id}", .handler = erase}};
}

}  // namespace sparkinfer
