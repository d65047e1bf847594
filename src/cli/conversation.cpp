#include "cli/conversation.h"

#include <algorithm>

#include "cli/streams.h"
#include "core/file.h"
#include "core/new_file.h"

namespace sparkinfer {

namespace {

constexpr const char* kFormat = "sparkinfer conversation";
constexpr int64_t kVersion = 1;

Result<ChatMessage> message_from(const Json& value, const std::string& source, size_t number) {
    const std::string name = fmt::format("messages[{}]", number);
    TRY(const JsonObject* object, json_object(value, source, name));
    ChatMessage message;
    TRY(const std::string_view role, json_string(*object, "role", source + ": " + name));
    if (role == "system")
        message.role = Role::system;
    else if (role == "assistant")
        message.role = Role::assistant;
    else if (role != "user")
        return bad_input("{}: {}.role is '{}', expected system, user or assistant", source, name, role);
    TRY(message.content, json_string(*object, "content", source + ": " + name));
    if (json_find(*object, "reasoning_content")) {
        TRY(message.reasoning, json_string(*object, "reasoning_content", source + ": " + name));
    }
    return message;
}

}  // namespace

std::vector<ChatMessage> Conversation::all() const {
    std::vector<ChatMessage> list;
    if (!system.empty()) list.push_back({Role::system, system});
    list.insert(list.end(), messages.begin(), messages.end());
    return list;
}

size_t Conversation::drop_newest(size_t count) {
    count = std::min(count, exchanges());
    messages.resize(messages.size() - 2 * count);
    return count;
}

size_t Conversation::drop_oldest(size_t count) {
    count = std::min(count, exchanges());
    messages.erase(messages.begin(), messages.begin() + std::ptrdiff_t(2 * count));
    return count;
}

Json conversation_json(const Conversation& conversation, const std::string& model) {
    JsonArray messages;
    for (const ChatMessage& message : conversation.all()) {
        JsonObject object;
        object["role"] = message.role == Role::system ? "system"
                         : message.role == Role::user ? "user"
                                                      : "assistant";
        object["content"] = message.content;
        if (message.reasoning && !message.reasoning->empty())
            object["reasoning_content"] = *message.reasoning;
        messages.emplace_back(std::move(object));
    }
    JsonObject file;
    file["format"] = kFormat;
    file["version"] = kVersion;
    file["model"] = model;
    file["messages"] = std::move(messages);
    return file;
}

Result<Conversation> conversation_from_json(const Json& json, const std::string& source) {
    const Json* list = &json;
    if (json.is_object()) {
        const JsonObject& file = json.get_object();
        if (json_find(file, "version")) {
            TRY(const int64_t version, json_int(file, "version", source));
            if (version != kVersion)
                return bad_input("{}: version is {}, expected {}", source, version, kVersion);
        }
        list = json_find(file, "messages");
        if (!list) return bad_input("{}: there is no field messages, expected a list", source);
    }
    TRY(const JsonArray* messages, json_array(*list, source, "messages"));
    Conversation conversation;
    for (size_t i = 0; i < messages->size(); ++i) {
        TRY(ChatMessage message, message_from((*messages)[i], source, i));
        if (message.role == Role::system && i == 0) {
            conversation.system = message.content;
            continue;
        }
        const Role expected = conversation.messages.size() % 2 == 0 ? Role::user : Role::assistant;
        if (message.role != expected)
            return bad_input("{}: messages[{}] is out of turn, expected one of the {}", source, i,
                             expected == Role::user ? "user" : "assistant");
        conversation.messages.push_back(std::move(message));
    }
    if (conversation.messages.size() % 2 != 0)
        return bad_input("{}: the last message has no answer, expected one of the assistant", source);
    return conversation;
}

Result<void> save_conversation(const Conversation& conversation, const std::string& model,
                               const std::string& path) {
    TRY(NewFile file, NewFile::create(path));
    TRY_VOID(file.write(to_json_pretty(conversation_json(conversation, model)) + "\n"));
    return file.commit();
}

Result<Conversation> load_conversation(const std::string& path) {
    TRY(const std::string text, read_text_file(path, kMaxTextBytes));
    TRY(const Json json, parse_json(text, path));
    return conversation_from_json(json, path);
}

}  // namespace sparkinfer
