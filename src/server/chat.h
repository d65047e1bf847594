// chat.h — requests and answers as the server thinks of them, whatever protocol they came in. The protocols
// (openai_chat, openai_completions, anthropic, responses) translate to and from these and know nothing else.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/json.h"
#include "core/types.h"
#include "server/api_error.h"
#include "text/tools.h"

namespace sparkinfer {

enum class Role { system, user, assistant, tool };

struct ToolCall {
    std::string id;
    std::string name;
    std::string arguments;  // JSON text, as the model or the client wrote it
};

struct ChatMessage {
    Role role = Role::user;
    std::string content = {};                   // text parts joined in order
    std::optional<std::string> reasoning = {};  // assistant: what the client sent back of it
    std::vector<ToolCall> calls = {};           // assistant
    std::string call_id = {};                   // tool: the call that this is the result of
    bool is_error = false;                      // tool
    std::string id = {};  // assistant: the id under which this server sent it, where the protocol returns one
};

// Reasoning before the answer; what is not set is the template's own default.
struct Thinking {
    std::optional<bool> enabled = {};
    std::string effort = {};             // "low", "medium", "high", …; empty: not said
    std::optional<int32_t> budget = {};  // most tokens of reasoning; then its end is forced
};

struct ResponseFormat {
    enum class Kind { text, json_object, json_schema, regex, choice, lark };
    Kind kind = Kind::text;
    Json schema = {};                       // json_schema
    std::string pattern = {};               // regex, lark
    std::vector<std::string> choices = {};  // choice
};

// What is not set is the model's or the server's default. Ranges are checked by the service.
struct AnswerParams {
    std::optional<double> temperature = {}, top_p = {}, min_p = {};
    std::optional<int64_t> top_k = {};
    std::optional<double> repeat_penalty = {}, presence_penalty = {}, frequency_penalty = {};
    std::optional<int64_t> repeat_last_n = {};
    std::optional<uint64_t> seed = {};
    std::vector<std::pair<int64_t, double>> logit_bias = {};  // token id, bias
    std::optional<int64_t> max_tokens = {};                   // more than the context has left is clamped
    int64_t min_tokens = 0;
    bool ignore_eos = false;
    std::vector<std::string> stop = {};
    std::vector<int64_t> stop_token_ids = {};
    int32_t logprobs = -1;  // -1: none; n ≥ 0: each token's and n alternatives
    int32_t n = 1;          // answers
};

struct ChatRequest {
    std::string model = {};
    std::vector<ChatMessage> messages = {};
    std::vector<ToolSpec> tools = {};
    ToolChoice tool_choice = {};
    bool parallel_tool_calls = true;
    ResponseFormat format = {};
    Thinking thinking = {};
    JsonObject template_kwargs = {};
    bool continue_final_message = false;  // the last message is an assistant's, to be gone on with
    bool add_generation_prompt = true;    // else the prompt ends where the messages do
    std::string cache_salt = {};          // requests of different salts share no cache
    AnswerParams params = {};
};

// A text to go on with; no template, no tools, no reasoning.
struct TextRequest {
    std::string model = {};
    std::variant<std::string, std::vector<TokenId>> prompt = {};
    bool echo = false;             // the prompt comes back as the beginning of the answer's text
    bool prompt_logprobs = false;  // with params.logprobs: of the prompt's tokens too
    ResponseFormat format = {};
    std::string cache_salt = {};
    AnswerParams params = {};
};

struct Usage {
    int32_t prompt_tokens = 0;
    int32_t cached_tokens = 0;      // of the prompt's: not computed again
    int32_t completion_tokens = 0;  // of all answers of the request
    int32_t reasoning_tokens = 0;   // of the completion's
};

struct TextLogprob {
    TokenId id{};
    std::string bytes = {};                           // maybe no whole character
    std::optional<float> logprob = {};                // none: the first token of a prompt
    std::vector<std::pair<TokenId, float>> top = {};  // best first
    std::vector<std::string> top_bytes = {};          // of `top`
};

enum class AnswerFinish { stop, length, tool_calls, cancelled };

// One thing that happened to an answer. Of one choice they come as: started, then any order of reasoning,
// content and calls (started, arguments…, finished), then `finished`; or `failed` at any point, after which
// nothing comes. A request of n choices has one `started` (choice 0's) and n `finished`.
struct AnswerEvent {
    enum class Kind {
        started,         // it left the queue: usage has prompt_tokens and cached_tokens; cache_miss
        reasoning,       // text
        content,         // text, logprobs
        call_started,    // call, id, text: the function's name
        call_arguments,  // call, text: a piece of its JSON
        call_finished,   // call; the pieces of `call_arguments` together are one JSON object
        finished,        // finish, stop, usage
        failed           // error
    };
    Kind kind;
    int32_t choice = 0;  // 0 … n-1
    int32_t call = 0;    // 0, 1, … in an answer
    std::string id = {};
    std::string text = {};
    std::vector<TextLogprob> logprobs = {};  // of the tokens whose text these events completed
    AnswerFinish finish = AnswerFinish::stop;
    std::string stop = {};  // the stop string that ended it; empty: an end token, or none
    Usage usage = {};
    std::string cache_miss = {};    // why not more of the prompt was cached; empty: it never left the queue
    std::string cache_detail = {};  // the same as a sentence, where there is one
    std::chrono::steady_clock::time_point admitted = {};  // when it left the queue
    ApiError error = {};
};

// Called on one thread, in order. May cancel the answer, must not wait.
using AnswerSink = std::function<void(const AnswerEvent&)>;

}  // namespace sparkinfer
