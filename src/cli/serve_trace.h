// serve_trace.h — sessions of an agent, whose prompts only grow: each turn appends messages to those before
// and to the answer that the server gave.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/serve_load.h"
#include "core/json.h"

namespace sparkinfer {

struct SessionTurn {
    JsonArray messages = {};                 // what this turn appends
    std::optional<int64_t> max_tokens = {};  // none: the run's
    std::optional<Json> tools = {};          // from this turn on
};
using SessionTrace = std::vector<SessionTurn>;

// A file of one JSON object a line, each a turn: {"messages": [...], "max_tokens": N, "tools": [...]}, the
// last two of which may be missing. Errors: bad_input with the line.
Result<SessionTrace> read_trace(const std::string& path);

// A system message of `prompt` words and `turns` user messages of `words` words.
SessionTrace made_trace(int64_t prompt, int64_t turns, int64_t words, uint64_t seed);

// One conversation under way. The trace and the target must outlive it.
class ReplayedSession {
  public:
    ReplayedSession(const SessionTrace& trace, const LoadTarget& target, int64_t generate)
        : trace_(&trace), target_(&target), generate_(generate) {}
    bool ended() const { return next_ == trace_->size(); }
    // The next turn's request.
    LoadRequest request();
    // What was answered to it. An assistant message at the beginning of the next turn takes its place, and
    // tool messages without a tool_call_id are the results of its calls, in order.
    void answered(JsonObject message) { answer_ = std::move(message); }

  private:
    void append(JsonObject message, size_t& call);

    const SessionTrace* trace_;
    const LoadTarget* target_;
    int64_t generate_;
    size_t next_ = 0;
    JsonArray messages_;
    std::optional<JsonObject> answer_;
    std::optional<Json> tools_;
};

}  // namespace sparkinfer
