// chat_input.h — the user's side of a chat: from a terminal with editing and history, or line by line from a
// pipe or a terminal that cannot move its cursor.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/line_editor.h"
#include "core/result.h"

namespace sparkinfer {

class ChatInput {
  public:
    // `history`: whether the history file is read and written.
    explicit ChatInput(bool history);

    bool edits() const { return edits_; }
    // The next text, of one or more lines; null at the end of the input. `interrupted`: Ctrl-C has been
    // pressed twice in a row. `after_interrupt`: the answer before was stopped by one. Errors: text that is
    // not UTF-8, more than 64 MiB.
    Result<std::optional<std::string>> next(bool after_interrupt);
    bool interrupted() const { return interrupted_; }

  private:
    Result<std::optional<std::string>> next_line();
    void keep(const std::string& text);

    bool edits_;
    LineEditor editor_;
    std::string history_path_;  // empty: none
    bool interrupted_ = false;
    std::string waiting_;  // read from the pipe, not yet taken
    uint64_t taken_ = 0;   // bytes of the pipe
    bool ended_ = false;
};

// Where the history of chats lies: $XDG_STATE_HOME/sparkinfer/chat_history, else below ~/.local/state; empty
// without a home.
std::string chat_history_path();
// Texts, oldest first; none where the file cannot be read.
std::vector<std::string> read_history(const std::string& path);
// Adds a text; makes the folder. Errors: it cannot be written.
Result<void> add_to_history(const std::string& path, const std::string& text);

}  // namespace sparkinfer
