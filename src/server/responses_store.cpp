#include "server/responses_store.h"

#include "server/responses.h"

namespace sparkinfer {

// About what an entry holds: its texts, and what surrounds each.
static size_t size_of(const StoredResponse& stored) {
    size_t bytes = sizeof stored + stored.id.size() + stored.key.size() + 2 * to_json(stored.response).size();
    for (const ChatMessage& m : stored.messages) {
        bytes += sizeof m + m.content.size() + m.call_id.size() + m.id.size();
        if (m.reasoning) bytes += m.reasoning->size();
        for (const ToolCall& c : m.calls)
            bytes += sizeof c + c.id.size() + c.name.size() + c.arguments.size();
    }
    return bytes;
}

void ResponsesStore::drop(Entries::iterator entry) {
    bytes_ -= entry->bytes;
    by_id_.erase(entry->response->id);
    entries_.erase(entry);
}

void ResponsesStore::put(StoredResponse response) {
    const size_t bytes = size_of(response);
    auto shared = std::make_shared<const StoredResponse>(std::move(response));
    const std::lock_guard lock(mutex_);
    if (const auto found = by_id_.find(shared->id); found != by_id_.end()) drop(found->second);
    if (bytes > limits_.bytes || limits_.count == 0) return;
    while (entries_.size() >= limits_.count || bytes_ + bytes > limits_.bytes)
        drop(std::prev(entries_.end()));
    entries_.push_front({shared, bytes});
    by_id_[shared->id] = entries_.begin();
    bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponsesStore::find(const std::string& id, const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end() || found->second->response->key != key) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->response;
}

std::optional<JsonObject> ResponsesStore::item(const std::string& item_id, const std::string& key) {
    const auto stored = find(response_of_item(item_id), key);
    const Json* output = stored ? json_find(stored->response, "output") : nullptr;
    if (!output || !output->is_array()) return std::nullopt;
    for (const Json& item : output->get_array()) {
        const Json* id = item.is_object() ? json_find(item.get_object(), "id") : nullptr;
        if (id && id->is_string() && std::string_view(id->get_string()) == item_id) return item.get_object();
    }
    return std::nullopt;
}

bool ResponsesStore::erase(const std::string& id, const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = by_id_.find(id);
    if (found == by_id_.end() || found->second->response->key != key) return false;
    drop(found->second);
    return true;
}

size_t ResponsesStore::bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

}  // namespace sparkinfer
