// chat.h — `sparkinfer chat`: a conversation with a model, at a terminal or through pipes.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat_answer.h"
#include "cli/chat_input.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/served_model.h"
#include "server/service.h"

namespace sparkinfer {

class Chat {
  public:
    // Both must outlive the chat.
    Chat(ServedModel& model, const ChatOptions& options, Session& session);
    // Goes on with what a file has; its system prompt stands unless the command line has one.
    void take_up(Conversation conversation);
    // Until the input ends; the exit code.
    Result<int> run();

  private:
    friend struct ChatCommands;  // chat_commands.cpp: what the words after a slash do

    // Takes one text of the user: a command or a message. Errors are what is wrong with it.
    Result<void> take(const std::string& text);
    Result<void> command(std::string_view text);
    Result<void> say(const std::string& message);
    Result<void> context_is_full(int64_t needed);
    void keep(const std::string& message, const SpokenAnswer& answer);

    ChatRequest request() const;
    // Tokens of the conversation as the next prompt would have them.
    Result<int64_t> tokens() const;
    // For the person: beside the answers, on stderr.
    void note(const std::string& text) const;

    Service& service_;
    Session& session_;
    ChatInput input_;
    AnswerScreen screen_;
    Conversation conversation_;
    AnswerParams params_;
    Thinking thinking_;
    SpokenAnswer counted_;  // the last answer, for its figures
    bool stopped_ = false;  // it was, by Ctrl-C
    bool quit_ = false;
};

// Whole lines that `text`, the beginning of a command, may become: its names, its words, files.
std::vector<std::string> complete_chat_command(const std::string& text);

}  // namespace sparkinfer
