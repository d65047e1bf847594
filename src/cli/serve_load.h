// serve_load.h — one measured request to a server: what is asked, and what came back when.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/http_client.h"
#include "core/json.h"

namespace sparkinfer {

struct LoadRequest {
    std::string path;  // "/v1/completions", "/v1/chat/completions"
    std::string body;
};

// Times are seconds after the run began.
struct LoadResult {
    int turn = 0;        // of a session, from 0
    double due_s = 0;    // when it should have been sent; delays of the client count as the server's
    double first_s = 0;  // the first text, reasoning or call
    double end_s = 0;    // the last byte
    std::vector<double> gaps_s = {};                                      // between pieces of the answer
    int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // as the server counts
    std::string error = {};                                               // empty: it went well
    bool ok() const { return error.empty(); }
};

// What a streamed answer of OpenAI's two completion endpoints says, event by event.
class AnswerStream {
  public:
    // True where the event has a piece of the answer.
    bool take(std::string_view data);

    // The answer as the message that a client sends back. Only of chats.
    JsonObject message() const;
    bool finished() const { return finished_; }
    const std::string& error() const { return error_; }
    void count(LoadResult& result) const;

  private:
    bool take_choice(const JsonObject& choice);
    bool take_calls(const JsonArray& calls);

    struct Call {
        std::string id, name, arguments;
    };
    std::string content_, reasoning_, error_;
    std::vector<Call> calls_;
    int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
    bool finished_ = false;
};

// Sends the request and reads its whole answer. Trouble is in the result's `error`.
LoadResult run_request(HttpClient& client, const LoadRequest& request, const std::string& key,
                       std::chrono::steady_clock::time_point began, double due_s, AnswerStream& answer);

// What requests are made of: a model's name and tokens, asked of the server.
struct LoadTarget {
    std::string model, key;
    std::vector<int64_t> words;  // tokens that prompts are drawn from; empty: the server does not say,
                                 // prompts are text
};
Result<LoadTarget> look_at_server(HttpClient& client, const std::string& model, const std::string& key);

// A completion of `prompt` random tokens, or about as many words, and exactly `generate` tokens of answer.
LoadRequest completion_request(const LoadTarget& target, int64_t prompt, int64_t generate, uint64_t seed);
// About `words` tokens of text.
std::string random_text(int64_t words, uint64_t seed);

}  // namespace sparkinfer
