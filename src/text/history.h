// history.h — a conversation as clients send it back, to one that chat templates take.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "text/chat_template.h"

namespace sparkinfer {

struct HistoryCall {
    std::string id = {};
    std::string name = {};
    std::string arguments = {};  // JSON text, as the client wrote it
};

struct HistoryMessage {
    enum class Role { system, user, assistant, tool };
    Role role = Role::user;
    std::string content = {};
    std::optional<std::string> reasoning = {};  // assistant
    std::vector<HistoryCall> calls = {};        // assistant
    std::string call_id = {};                   // tool: the call that this is the result of
};

// Which system and user messages a template prints where they stand; the others it refuses, drops or moves.
struct TemplateHabits {
    bool system = true;        // one at the beginning
    bool system_run = true;    // several at the beginning
    bool system_later = true;  // one between the other messages
    bool user_run = true;      // one user message after another
};

// Found by rendering small conversations.
TemplateHabits template_habits(const ChatTemplate& chat);

struct HistoryOptions {
    bool refuse_missing_results =
        false;  // a call without a result is an error instead of saying so in its place
    bool continue_final_message = false;  // the last message is to be gone on with: it is left as it is
};

// The same conversation in messages that the template takes. No message changes its place, so that what comes
// later never changes the prompt before it:
//   - system messages at the beginning become one, joined by a blank line, where the template takes only one;
//   - other system messages become user messages that begin with the line kSystemMarker, where the template
//     takes them only at the beginning;
//   - neighbouring user messages become one, joined by a blank line, where the template wants turns;
//   - a call without a result gets kMissingResult as one, after the results of its neighbours.
// `notices` gets a sentence for each change of the last two lines of calls and results. Errors: bad_input
// that names the call, by option.
Result<std::vector<HistoryMessage>> arrange_history(std::vector<HistoryMessage> messages,
                                                    const TemplateHabits& habits,
                                                    const HistoryOptions& options,
                                                    std::vector<std::string>& notices);

inline constexpr std::string_view kSystemMarker = "[System message]";
inline constexpr std::string_view kMissingResult = "No result: the call was interrupted.";

// A call's arguments as the text of a JSON object, which templates want: an object as it stands; nothing and
// null as {}; any other text, such as one that was cut off, as the one argument "arguments" with a notice.
std::string object_arguments(const HistoryCall& call, std::vector<std::string>& notices);

// The messages for ChatTemplate::render.
std::string history_json(std::span<const HistoryMessage> messages, std::vector<std::string>& notices);

}  // namespace sparkinfer
