// decoder.h — the answer as it streams: tokens to whole UTF-8 characters, and stop strings in them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace sparkinfer {

// Bytes to whole UTF-8 characters. A token may end inside a character: its first bytes (three at most) are
// held back. Bytes that cannot be UTF-8 become U+FFFD, one for each maximal ill-formed part (Unicode 16,
// section 3.9).
class Utf8Buffer {
  public:
    // Appends the whole characters of what is held and `bytes` to `out`.
    void push(std::string_view bytes, std::string& out);
    // Ends the text: an incomplete character becomes U+FFFD.
    void finish(std::string& out);

  private:
    std::string held_;
};

// Bytes of the longest prefix that is whole, well-formed UTF-8.
size_t valid_utf8_prefix(std::string_view text);

// Incremental detokeniser of one answer. The tokenizer must outlive it. Not thread-safe.
class Decoder {
  public:
    explicit Decoder(const Tokenizer& tokenizer, bool keep_control = false)
        : tokenizer_(&tokenizer), keep_control_(keep_control) {}

    // The whole characters that `id` completes, maybe none. Control tokens give none unless kept.
    std::string push(TokenId id);
    // What was held back, as U+FFFD. The decoder is fresh afterwards.
    std::string finish();

  private:
    const Tokenizer* tokenizer_;
    bool keep_control_;
    Utf8Buffer buffer_;
};

// Finds the first stop string in streamed text; holds back a suffix that may be the start of one. Empty stop
// strings are ignored. Of two that begin at the same place the longer one that is complete at that moment
// counts; the text before is the same.
class StopMatcher {
  public:
    explicit StopMatcher(std::vector<std::string> stops);

    // Text that is safe to emit now. After a match: the text before the stop string, then always nothing.
    std::string push(std::string_view text);
    // What was held back, when the answer ended without a match.
    std::string finish();
    bool matched() const { return !match_.empty(); }
    // The stop string that ended the answer; empty before.
    const std::string& match() const { return match_; }

  private:
    size_t held_from(std::string_view text) const;

    std::vector<std::string> stops_;
    std::string held_;
    std::string match_;
};

}  // namespace sparkinfer
