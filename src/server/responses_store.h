// responses_store.h — answers that later requests may go on from, in memory: bounded by count and by bytes,
// the one used longest ago goes first. Threads: any.
#pragma once
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/json.h"
#include "server/chat.h"

namespace sparkinfer {

struct StoredResponse {
    std::string id;
    std::string key;                    // HttpRequest::key of who made it: nobody else sees it
    JsonObject response;                // as it was sent
    std::vector<ChatMessage> messages;  // the conversation up to and with the answer, without instructions
};

class ResponsesStore {
  public:
    struct Limits {
        size_t count = 1024;
        size_t bytes = size_t(64) << 20;
    };
    explicit ResponsesStore(Limits limits) : limits_(limits) {}

    // What is larger than the whole store is not kept.
    void put(StoredResponse response);
    // Null: not (or no longer) stored, or somebody else's.
    std::shared_ptr<const StoredResponse> find(const std::string& id, const std::string& key);
    // One item of a response's output.
    std::optional<JsonObject> item(const std::string& item_id, const std::string& key);
    bool erase(const std::string& id, const std::string& key);
    size_t bytes() const;

  private:
    struct Entry {
        std::shared_ptr<const StoredResponse> response;
        size_t bytes;
    };
    using Entries = std::list<Entry>;  // used last first
    void drop(Entries::iterator entry);

    const Limits limits_;
    mutable std::mutex mutex_;
    Entries entries_;
    std::unordered_map<std::string, Entries::iterator> by_id_;
    size_t bytes_ = 0;
};

}  // namespace sparkinfer
