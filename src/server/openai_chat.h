// openai_chat.h — /v1/chat/completions: its requests to canonical ones, and answer events to its chunks or
// its one response. Pure: no clock, no ids of its own.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "server/answer_pump.h"
#include "server/json_fields.h"
#include "server/openai_params.h"

namespace sparkinfer {

struct ChatCall {
    ChatRequest request = {};
    StreamOptions stream = {};
    bool include_reasoning = true;  // else it is thought and not told
};

ApiResult<ChatCall> parse_chat(const Json& body);

// messages, tools, tool_choice …: what makes a prompt; also for /apply-template and /tokenize.
ApiResult<void> parse_conversation(const Fields& body, ChatRequest* request);

// What all chunks of one answer have in common, and how it is told.
struct ChatHead {
    std::string id;
    int64_t created = 0;  // seconds since 1970
    std::string model;
    std::string fingerprint;
    StreamOptions stream = {};
    bool logprobs = false;  // asked for
    bool include_reasoning = true;
    // A named tool_choice: OpenAI says "stop" at the end of its call.
    bool calls_end_with_stop = false;
};

// finish_reason. "tool_calls" only where there are calls, whatever the event says.
const char* chat_finish_reason(AnswerFinish finish, bool has_calls, const ChatHead& head);

// {"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}
Json chat_logprobs_json(const std::vector<TextLogprob>& logprobs);

// Chunks as server-sent events.
class ChatStream : public AnswerWriter {
  public:
    explicit ChatStream(ChatHead head);
    void write(const AnswerEvent& event, std::string* out) override;
    void end(const Usage& usage, std::string* out) override;
    void fail(const ApiError& error, std::string* out) override;

  private:
    struct Choice {
        bool begun = false;   // its first chunk, the one with the role, is out
        int32_t calls = 0;    // begun
        bool argued = false;  // the call under way has had a piece of its arguments
    };
    void chunk(int32_t choice, JsonObject delta, const AnswerEvent& event, std::string* out);
    void write_call(const AnswerEvent& event, Choice& choice, std::string* out);

    const ChatHead head_;
    const std::string prefix_;  // of every chunk's JSON, up to the choices
    std::map<int32_t, Choice> choices_;
    Usage usage_;  // what is known by now
};

// The one response of a request that does not stream.
class ChatCollector : public AnswerWriter {
  public:
    explicit ChatCollector(ChatHead head) : head_(std::move(head)) {}
    void write(const AnswerEvent& event, std::string* out) override;
    void end(const Usage& usage, std::string* out) override;
    void fail(const ApiError&, std::string*) override {}

  private:
    struct Choice {
        std::string content, reasoning, stop;
        std::vector<ToolCall> calls;
        std::vector<TextLogprob> logprobs;
        AnswerFinish finish = AnswerFinish::stop;
    };
    Json choice_json(int32_t index, const Choice& choice) const;

    const ChatHead head_;
    std::map<int32_t, Choice> choices_;
};

}  // namespace sparkinfer
