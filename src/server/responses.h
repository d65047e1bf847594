// responses.h — /v1/responses: requests of OpenAI's Responses protocol to canonical ones, answer events to
// its objects and streams.
//
// What is decided here, since the protocol leaves it open:
// - `instructions` come first as a system message, then the conversation of previous_response_id, then
//   `input`. Messages of role developer are system messages where they stand.
// - A namespace's functions are offered as NAMESPACE__NAME; calls to them come back in `name`, `namespace`.
// - Tools that the server would have to run (web_search, …), free-form tools and items of unknown types are
//   left out with one notice, never an error.
// - Reasoning has no summary; `include` adds nothing but logprobs and reasoning.encrypted_content, an id
// under
//   which the server knows what was reasoned.
// - truncation other than "disabled", background, conversation and prompt are refused.
// - A prompt over the context is a 400; in a stream it is `response.failed` with the code
//   context_length_exceeded, which is where clients of this protocol look for it.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "server/api.h"
#include "server/chat.h"
#include "server/http.h"
#include "server/service.h"

namespace sparkinfer {

// How the ids of answers begin.
inline constexpr std::string_view kResponsesIdPrefix = "resp_";

// Function name as offered to the model → its namespace and its name in it.
using ToolNamespaces = std::map<std::string, std::pair<std::string, std::string>>;

struct ResponsesRequest {
    ChatRequest chat = {};          // messages: those of `input` alone
    std::string instructions = {};  // empty: none
    std::string previous = {};      // previous_response_id
    bool stream = false, store = true;
    bool encrypted_reasoning = false;
    ToolNamespaces namespaces = {};
    JsonObject echo = {};                   // the fields that the response repeats of its request
    std::vector<std::string> notices = {};  // what was left out, one sentence each
};

// The item of a stored response by its id, for items that are only referred to.
using ItemLookup = std::function<std::optional<JsonObject>(const std::string& id)>;
ApiResult<ResponsesRequest> parse_responses(const Json& body, const ItemLookup& lookup);

// The ids of an answer's items name the answer: "msg_X_1" is of "resp_X". Empty: no such id.
std::string response_of_item(std::string_view item_id);

// The answer as it grows: takes events in order, gives back what a stream says of each, and holds the whole
// response, which is therefore the union of what was streamed.
class ResponsesAnswer {
  public:
    struct Head {
        std::string id;  // "resp_X"
        std::string model;
        int64_t created = 0;  // seconds since 1970
        JsonObject echo = {};
        ToolNamespaces namespaces = {};
        bool encrypted_reasoning = false;
    };
    explicit ResponsesAnswer(Head head) : head_(std::move(head)) {}

    // The stream's bytes for this event; maybe none. After `finished` or `failed` nothing may come.
    std::string add(const AnswerEvent& event);
    const std::string& id() const { return head_.id; }
    JsonObject response() const;
    // The answer as a message of the conversation that goes on from it.
    ChatMessage message() const;

  private:
    enum class Kind { reasoning, message, call };
    struct Item {
        Kind kind;
        std::string call_id = {}, name = {};  // call; the name as offered to the model
        std::string id = {}, status = {};
        std::string text = {};    // of a call: its arguments
        JsonArray logprobs = {};  // message
    };
    std::string event(const char* type, JsonObject fields);
    std::string item_event(const char* type, JsonObject fields);
    std::string open(Item item);
    std::string grow(Kind kind, const AnswerEvent& event);
    std::string close(const char* status);
    std::string finish(const AnswerEvent& event);
    std::string fail(const ApiError& error);
    JsonObject part_json(const Item& item) const;
    JsonObject item_json(const Item& item) const;

    Head head_;
    int64_t sequence_ = 0;
    bool open_ = false;  // the last item may grow
    std::vector<Item> items_ = {};
    const char* status_ = "in_progress";
    Json error_ = nullptr, incomplete_ = nullptr, usage_ = nullptr;
};

// POST /v1/responses, GET and DELETE /v1/responses/{id}. The service outlives the routes.
std::vector<Route> responses_routes(Service& service, const ApiOptions& options);

}  // namespace sparkinfer
