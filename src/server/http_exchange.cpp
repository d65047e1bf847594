#include "server/http_exchange.h"

#include "core/log.h"

namespace sparkinfer {

template <class Call>
void HttpExchange::post(Call call) {
    const auto writer = writer_.lock();
    if (!writer) return;
    // The queue must not keep its own connection alive.
    writer->post([weak = writer_, call = std::move(call)]() mutable {
        if (const auto writer = weak.lock()) call(*writer);
    });
}

HttpExchange::~HttpExchange() {
    if (state_ == State::open || state_ == State::streaming)
        post([number = number_](HttpWriter& writer) { writer.on_abandoned(number); });
}

void HttpExchange::send(int status, std::string_view content_type, std::string body, Headers headers) {
    std::function<void()> dropped;
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::gone) return;
        if (state_ != State::open) return log_error("an answer was sent twice; the second one is dropped");
        state_ = State::complete;
        dropped = std::move(hear_);
    }
    post([number = number_,
          answer = HttpWriter::Whole{status, std::string(content_type), std::move(body), std::move(headers)}](
             HttpWriter& writer) mutable { writer.on_whole(number, std::move(answer)); });
}

void HttpExchange::start_stream(std::string_view content_type, std::string keep_alive) {
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::gone) return;
        if (state_ != State::open) return log_error("a stream was started twice; the second time is ignored");
        state_ = State::streaming;
    }
    post([number = number_, type = std::string(content_type), sign = std::move(keep_alive)](
             HttpWriter& writer) mutable { writer.on_stream(number, std::move(type), std::move(sign)); });
}

void HttpExchange::write(std::string bytes) {
    if (bytes.empty()) return;
    {
        const std::lock_guard lock(mutex_);
        if (state_ != State::streaming) return;
    }
    const size_t unread = unread_.fetch_add(bytes.size(), std::memory_order_relaxed) + bytes.size();
    if (unread > unread_max_) {
        gone();
        return post([number = number_](HttpWriter& writer) { writer.on_unread(number); });
    }
    post([number = number_, bytes = std::move(bytes)](HttpWriter& writer) mutable {
        writer.on_write(number, std::move(bytes));
    });
}

void HttpExchange::finish() {
    std::function<void()> dropped;
    {
        const std::lock_guard lock(mutex_);
        if (state_ != State::streaming) return;
        state_ = State::complete;
        dropped = std::move(hear_);
    }
    post([number = number_](HttpWriter& writer) { writer.on_finish(number); });
}

void HttpExchange::on_gone(std::function<void()> hear) {
    {
        const std::lock_guard lock(mutex_);
        if (state_ != State::gone) {
            if (state_ != State::complete) hear_ = std::move(hear);
            return;
        }
    }
    hear();
}

void HttpExchange::gone() {
    std::function<void()> hear;
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::complete || state_ == State::gone) return;
        state_ = State::gone;
        hear = std::move(hear_);
    }
    if (hear) hear();
}

bool HttpExchange::complete() {
    const std::lock_guard lock(mutex_);
    return state_ == State::complete;
}

}  // namespace sparkinfer
