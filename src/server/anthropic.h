// anthropic.h — /v1/messages and /v1/messages/count_tokens: requests of Anthropic's Messages protocol to
// canonical ones, answer events to its objects and streams.
//
// What is decided here, since the protocol leaves it open:
// - System text stays where it stands: the top-level `system` comes first, a message of role "system" in the
//   middle stays in the middle. Text blocks are joined without a separator, so a text is the same prompt
//   whether it comes as a string or as blocks; cache_control changes nothing.
// - A `thinking` that is missing or adaptive leaves it to the model's template whether it reasons.
// - `display: omitted` keeps the reasoning's text from the client; its signature still stands for it.
// - Server tools, betas and unknown fields are left out or passed over, never an error.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "server/api.h"
#include "server/chat.h"
#include "server/http.h"
#include "server/service.h"

namespace sparkinfer {

// How the ids of answers begin.
inline constexpr std::string_view kMessagesIdPrefix = "msg_";

struct MessagesRequest {
    ChatRequest chat = {};
    bool stream = false;
    bool omit_thinking = false;
    std::vector<std::string> notices = {};  // what was left out, one sentence each
};

ApiResult<MessagesRequest> parse_messages(const Json& body);

// The answer as it grows: takes events in order, gives back what a stream says of each, and holds the whole
// message, which is therefore the union of what was streamed.
class MessagesAnswer {
  public:
    // The signature of reasoning blocks is `id`: it returns in the history and names the answer.
    MessagesAnswer(std::string id, std::string model, bool omit_thinking)
        : id_(std::move(id)), model_(std::move(model)), omit_thinking_(omit_thinking) {}

    // The stream's bytes for this event; maybe none. After `finished` or `failed` nothing may come.
    std::string add(const AnswerEvent& event);
    // The object of an answer that has finished.
    JsonObject message() const;

  private:
    struct Block {
        std::string type;      // "text", "thinking", "tool_use"
        std::string id, name;  // tool_use
        std::string text;      // of tool_use: the JSON of its input
    };
    std::string open(Block block);
    std::string grow(const char* type, const std::string& text);
    std::string close();
    std::string finish(const AnswerEvent& event);
    JsonObject block_json(const Block& block) const;

    std::string id_, model_;
    bool omit_thinking_;
    bool open_ = false;  // the last block may grow
    std::vector<Block> blocks_ = {};
    Usage usage_ = {};
    const char* stop_reason_ = nullptr;
    std::string stop_sequence_ = {};
};

// What a stream says when nothing has been said for a while.
extern const char kMessagesPing[];

// POST /v1/messages, /v1/messages/count_tokens and /api/event_logging/batch (which throws away what it is
// sent). The service outlives the routes.
std::vector<Route> anthropic_routes(Service& service, const ApiOptions& options);

}  // namespace sparkinfer
