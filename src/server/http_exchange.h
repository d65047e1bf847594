// http_exchange.h — the Responder of one request: what any thread may call becomes work on the queue of the
// request's connection.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "server/http.h"

namespace sparkinfer {

// The connection's side; on_*() come on its own queue, and not after it has closed.
class HttpWriter {
  public:
    virtual ~HttpWriter() = default;
    struct Whole {
        int status;
        std::string content_type, body;
        Responder::Headers headers;
    };
    virtual void post(std::function<void()> work) = 0;  // any thread
    virtual void on_whole(uint64_t exchange, Whole answer) = 0;
    virtual void on_stream(uint64_t exchange, std::string content_type, std::string keep_alive) = 0;
    virtual void on_write(uint64_t exchange, std::string bytes) = 0;
    virtual void on_finish(uint64_t exchange) = 0;
    virtual void on_abandoned(uint64_t exchange) = 0;  // the responder is gone, the answer incomplete
    virtual void on_unread(uint64_t exchange) = 0;     // too much waits for the client
};

class HttpExchange final : public Responder {
  public:
    HttpExchange(std::weak_ptr<HttpWriter> writer, uint64_t number, size_t unread_max)
        : writer_(std::move(writer)), number_(number), unread_max_(unread_max) {}
    ~HttpExchange() override;
    HttpExchange(const HttpExchange&) = delete;
    HttpExchange& operator=(const HttpExchange&) = delete;

    void send(int status, std::string_view content_type, std::string body, Headers headers) override;
    void start_stream(std::string_view content_type, std::string keep_alive) override;
    void write(std::string bytes) override;
    void finish() override;
    void on_gone(std::function<void()> hear) override;

    // Of the connection: the client is gone; bytes have left for it.
    void gone();
    void sent(size_t bytes) { unread_.fetch_sub(bytes, std::memory_order_relaxed); }
    bool complete();

  private:
    enum class State { open, streaming, complete, gone };
    template <class Call>
    void post(Call call);

    const std::weak_ptr<HttpWriter> writer_;
    const uint64_t number_;
    const size_t unread_max_;
    std::atomic<size_t> unread_ = 0;  // bytes of a stream that have not left
    std::mutex mutex_;
    State state_ = State::open;
    std::function<void()> hear_;
};

}  // namespace sparkinfer
