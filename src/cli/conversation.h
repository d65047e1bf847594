// conversation.h — what was said in a chat, in memory and as a file.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "server/chat.h"

namespace sparkinfer {

// A user's message and its answer come in pairs; `system` stands before them.
struct Conversation {
    std::string system = {};  // empty: none
    std::vector<ChatMessage> messages = {};

    // As a request has them.
    std::vector<ChatMessage> all() const;
    size_t exchanges() const { return messages.size() / 2; }
    // Takes away `count` exchanges, at most those there are; says how many it were.
    size_t drop_newest(size_t count);
    size_t drop_oldest(size_t count);
};

// {"format": "sparkinfer conversation", "version": 1, "model": …, "messages": [{"role", "content"}, …]}, the
// messages in OpenAI's shape, an answer's reasoning as "reasoning_content".
Json conversation_json(const Conversation& conversation, const std::string& model);
// Also of a plain list of messages. Errors name the message and its field.
Result<Conversation> conversation_from_json(const Json& json, const std::string& source);

// Files. An existing file is replaced whole. Errors name the path.
Result<void> save_conversation(const Conversation& conversation, const std::string& model,
                               const std::string& path);
Result<Conversation> load_conversation(const std::string& path);

}  // namespace sparkinfer
