// transcript.h — which parts of a rendered chat are turns of the assistant, and which tokens were sampled for
// them.
//
// A client sends its history back in its own spelling: JSON arguments written anew, reasoning left out. The
// rendered text then differs from what the model said, and every state kept of it is lost. So the tokens of
// each answer are remembered, and stand in the next prompt in place of the text that means the same.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/types.h"
#include "server/chat.h"
#include "text/chat_template.h"

namespace sparkinfer {

// What a template puts around a turn of the assistant, found by rendering two small chats.
struct TurnMarks {
    std::string header;  // "<|im_start|>assistant\n": what the generation prompt and a turn in history share
    std::string end;     // "<|im_end|>": the first thing behind a turn's text
    bool known() const { return !header.empty() && !end.empty(); }
};
TurnMarks find_turn_marks(const ChatTemplate& chat_template);

// A turn's text lies in [begin, end): behind the header, before the end mark. The last one may be open: the
// generation prompt's, with nothing behind it (end = size of the text).
struct TurnRange {
    size_t begin, end;
    bool open;
};
// Marks inside of message text do not count.
std::vector<TurnRange> find_turns(const Rendered& rendered, const TurnMarks& marks);

// An answer as it was sampled.
struct SampledTurn {
    std::string prompt_tail;      // what the generation prompt holds behind the header: "<think>\n"
    std::string text;             // of the tokens, control tokens and all
    std::vector<TokenId> tokens;  // without the end token
    std::string reasoning, content;
    std::vector<ToolCall> calls;
};

// The newest answers, found again by the ids that went out with them or by what they say. Threads: any.
class SampledTurns {
  public:
    explicit SampledTurns(size_t max_bytes) : max_bytes_(max_bytes) {}

    // `scope`: answers of one scope are not found in another.
    void remember(const std::vector<std::string>& ids, SampledTurn turn, const std::string& scope = {});
    // The turn that this message of the history repeats. Ids are looked at first.
    std::shared_ptr<const SampledTurn> find(const ChatMessage& message, const std::string& scope = {}) const;
    size_t bytes() const;

  private:
    using Entry = std::shared_ptr<const SampledTurn>;
    void forget_oldest();

    mutable std::mutex mutex_;
    size_t max_bytes_, bytes_ = 0;
    int64_t next_ = 0;
    std::map<int64_t, std::pair<Entry, std::vector<std::string>>> by_age_;  // with its keys
    std::map<std::string, int64_t, std::less<>> by_key_;                    // newest of a key
};

// Whether a message of a client's history repeats an answer: the same text and the same calls, and the same
// reasoning where the message has one.
bool repeats(const ChatMessage& message, const SampledTurn& turn);

// Whether two JSON texts mean the same; texts that do not parse are compared as they are.
bool same_json(std::string_view a, std::string_view b);

}  // namespace sparkinfer
