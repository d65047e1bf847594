// http.h — what the handlers of endpoints see of a connection.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace sparkinfer {

struct HttpRequest {
    std::string method;                                        // "POST"
    std::string path;                                          // decoded, without the query
    std::string query;                                         // as it came, without '?'
    std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
    std::string body;
    std::string id;   // the client's x-request-id where it is well-formed, else made
    std::string key;  // which API key was shown: a label that tells nothing about it; empty: none was shown

    // Empty when it is missing.
    std::string_view header(std::string_view name) const;
};

// The answer to one request; safe from any thread. Exactly one of send() and start_stream() … finish() is
// called. What happens after the client is gone has no effect.
class Responder {
  public:
    virtual ~Responder() = default;
    using Headers = std::vector<std::pair<std::string, std::string>>;
    virtual void send(int status, std::string_view content_type, std::string body, Headers headers = {}) = 0;
    // Sends the head of a 200. While nothing is written, `keep_alive` goes out every few seconds.
    virtual void start_stream(std::string_view content_type, std::string keep_alive) = 0;
    virtual void write(std::string bytes) = 0;
    virtual void finish() = 0;
    // Called once, on any thread, when the client is gone (or reads so slowly that it was cut off) before the
    // answer was complete; at once when that has happened already.
    virtual void on_gone(std::function<void()> hear) = 0;
};

// Runs on a worker thread; may compute, must not wait for an answer.
using Handler = std::function<void(const HttpRequest&, const std::shared_ptr<Responder>&)>;

struct Route {
    std::string method;
    std::string path;  // exact; "{name}" as a whole segment matches anything but '/'
    enum class Access { key, open } access = Access::key;
    Handler handler;
    // Answers at once and waits for nothing: it runs on an I/O thread, also while the workers are all busy,
    // the model is loading or the server drains.
    bool light = false;
};

}  // namespace sparkinfer
