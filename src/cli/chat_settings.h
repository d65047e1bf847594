// chat_settings.h — what `/set` changes in a chat: parameters of the answers, by name.
#pragma once
#include <string>
#include <vector>

#include "cli/options.h"
#include "server/chat.h"

namespace sparkinfer {

// Of the command line, as requests have them.
AnswerParams answer_params(const ChatOptions& options);

// Names, in the order of the list.
std::vector<std::string> setting_names();
// "temp         0.2" or "temp         the model's", a line each.
std::string settings_text(const AnswerParams& params);
// `value` "default" takes back what was set. Errors (usage): an unknown name, a value out of range.
Result<void> change_setting(AnswerParams& params, const std::string& name, const std::string& value);

// "on", "off", "low", "medium", "high", a budget in tokens, or "default".
Result<Thinking> parse_thinking(const std::string& word);
std::string thinking_text(const Thinking& thinking);

}  // namespace sparkinfer
