// http_connection.h — HTTP/1.1 on one stream: reads requests one after the other, has them admitted, hands
// them over, writes their answers, notices when the client is gone.
#pragma once
#include <chrono>
#include <memory>

#include "server/byte_stream.h"
#include "server/http.h"
#include "server/http_gate.h"
#include "server/request_trace.h"

namespace sparkinfer {

struct HttpLimits {
    using Ms = std::chrono::milliseconds;
    size_t head_bytes = size_t(16) << 10;
    size_t body_bytes = size_t(32) << 20;
    size_t ahead_bytes = size_t(64) << 10;  // read of further requests while one is answered
    size_t unread_bytes = size_t(4) << 20;  // of a stream that its client does not read; more cuts it off
    Ms head{10'000};                        // from the first byte of a request to the end of its head
    Ms body{120'000}, body_pause{20'000};   // for a whole body, without a byte of it
    Ms idle{75'000};                        // between requests
    Ms write{30'000};                       // without a byte of an answer taken
    Ms keep_alive{5'000};                   // between two signs of life in a stream
    Ms linger{2'000};                       // for a client that is refused to hear of it
    Ms tick{1'000};                         // how exactly these are kept
};

// What a connection needs of its server. Any I/O thread; must not wait.
class HttpHost {
  public:
    virtual ~HttpHost() = default;
    virtual const HttpLimits& limits() const = 0;
    virtual std::shared_ptr<const GateRules> rules() const = 0;
    // What a worker is to run.
    struct Job {
        Handler handler;
        HttpRequest request;
        std::shared_ptr<Responder> responder;
        std::shared_ptr<RequestTrace> trace;
    };
    // False: too many wait already.
    virtual bool dispatch(Job job) = 0;
    // Takes bytes of the memory that all bodies share. False: there are not as many.
    virtual bool take_bytes(size_t bytes) = 0;
    virtual void give_back_bytes(size_t bytes) = 0;
    // A request is answered from here on; `ended` follows.
    virtual std::shared_ptr<RequestTrace> began() = 0;
    virtual void ended() = 0;
};

class HttpConnection {
  public:
    // It lives until its stream ends; `closed` is called then, once.
    static std::shared_ptr<HttpConnection> start(std::unique_ptr<ByteStream> stream, HttpHost& host,
                                                 std::function<void()> closed);
    virtual ~HttpConnection() = default;
    // Any thread: no further requests are read after the one in progress; at once where there is none.
    virtual void finish() = 0;
    // Any thread: ends now.
    virtual void cut() = 0;
};

}  // namespace sparkinfer
