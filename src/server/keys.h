// keys.h — the API keys that a server takes: a text file, kept as hashes.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "server/crypto.h"

namespace sparkinfer {

class KeyRing {
  public:
    // One key a line, or "sha256:" and the 64 hexadecimal digits of its hash; empty lines and lines that
    // begin with '#' are none. Errors name the line and never the key.
    static Result<KeyRing> parse(std::string_view text, const std::string& source);
    static Result<KeyRing> load(const std::string& path);

    // Which key `shown` is, as a label that tells nothing about it: "key-1" is the file's first. Looks at all
    // of them, whichever it is.
    std::optional<std::string> find(std::string_view shown) const;
    size_t size() const { return keys_.size(); }

    // After the file was read again: a key keeps the label it had, and none gets that of another one, since
    // what a key has left behind (stored responses, cached prompts) goes by its label.
    void keep_labels(const KeyRing& before);

  private:
    struct Key {
        Digest hash;
        size_t number;
    };
    std::vector<Key> keys_;
    size_t last_number_ = 0;
};

}  // namespace sparkinfer
