#include "server/http_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>

#include "server/crypto.h"
#include "server/errors.h"
#include "server/http_exchange.h"
#include "server/http_head.h"
#include "server/http_message.h"

namespace sparkinfer {

namespace {

namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kReadBytes = size_t(16) << 10;
constexpr int kGoneUnanswered = 499;  // in logs: no status went out
constexpr std::string_view kHeadEnd = "\r\n\r\n";

// Everything but post(), finish() and cut() runs on the stream's queue.
class Connection final : public HttpConnection,
                         public HttpWriter,
                         public std::enable_shared_from_this<Connection> {
  public:
    Connection(std::unique_ptr<ByteStream> stream, HttpHost& host, std::function<void()> closed)
        : stream_(std::move(stream)), host_(host), limits_(host.limits()), closed_(std::move(closed)) {}

    void begin() {
        stream_->tick_every(limits_.tick, [self = shared_from_this()] { self->tick(); });
        stream_->handshake([self = shared_from_this()](bool ok) {
            if (self->phase_ == Phase::closed) return;
            if (!ok) return self->close();
            self->enter(Phase::idle);
            self->want_read();
        });
    }

    void finish() override {
        on_queue([](Connection& c) {
            c.last_ = true;
            if (c.phase_ == Phase::idle || c.phase_ == Phase::handshake) c.close();
        });
    }
    void cut() override {
        on_queue([](Connection& c) { c.lose(); });
    }
    void post(std::function<void()> work) override { stream_->post(std::move(work)); }

    void on_whole(uint64_t exchange, Whole answer) override {
        if (answers(exchange)) write_whole(std::move(answer));
    }
    void on_stream(uint64_t exchange, std::string content_type, std::string keep_alive) override {
        if (!answers(exchange)) return;
        AnswerHead head = head_of(200);
        head.content_type = content_type;
        head.framing = http10_ ? Framing::until_close : Framing::chunked;
        if (http10_) last_ = true;
        head.keep_alive = !last_;
        streaming_ = true;
        sign_of_life_ = std::move(keep_alive);
        put(head_text(head, {}, headers_), 0);
    }
    void on_write(uint64_t exchange, std::string bytes) override {
        if (!answers(exchange) || !streaming_ || head_only_) return;
        put(http10_ ? bytes : chunk_text(bytes), bytes.size());
    }
    void on_finish(uint64_t exchange) override {
        if (!answers(exchange) || !streaming_) return;
        complete_ = true;
        put(http10_ || head_only_ ? std::string() : std::string(kLastChunk), 0);
    }
    // Nobody will answer any more: say so where nothing was said yet, else cut, so that a part is never taken
    // for the whole.
    void on_abandoned(uint64_t exchange) override {
        if (!answers(exchange) || complete_) return;
        if (streaming_) return lose();
        refuse({500, "", "", "the request was given up without an answer"});
    }
    void on_unread(uint64_t exchange) override {
        if (answers(exchange)) lose();
    }

  private:
    enum class Phase { handshake, idle, head, body, answer, linger, closed };

    template <class Call>
    void on_queue(Call call) {
        stream_->post([weak = weak_from_this(), call] {
            if (const auto self = weak.lock()) call(*self);
        });
    }
    bool answers(uint64_t exchange) const { return phase_ == Phase::answer && exchange == number_; }
    void enter(Phase phase) {
        phase_ = phase;
        since_ = moved_ = Clock::now();
    }

    // --- reading ---

    // A read is always under way, also while an answer is made: its end is how a client is seen to be gone.
    void want_read() {
        if (reading_ || ended_ || phase_ == Phase::closed || phase_ == Phase::handshake) return;
        if (phase_ == Phase::answer && in_.size() >= limits_.ahead_bytes) return;
        reading_ = true;
        stream_->read(block_, [self = shared_from_this()](bool ok, size_t bytes) {
            self->reading_ = false;
            self->took(ok, bytes);
        });
    }
    void took(bool ok, size_t bytes) {
        if (phase_ == Phase::closed) return;
        if (!ok) {
            ended_ = true;
            // Who only says that nothing more will be asked still gets an answer that is ready.
            if (phase_ != Phase::answer || !complete_) lose();
            return;
        }
        moved_ = Clock::now();
        if (phase_ == Phase::linger) return want_read();
        in_.append(block_.data(), bytes);
        go_on();
        want_read();
    }
    // As far as the bytes at hand lead.
    void go_on() {
        for (bool more = true; more;) {
            more = false;
            if (phase_ == Phase::idle) {
                // Empty lines before a request are to be ignored.
                in_.erase(0, std::min(in_.find_first_not_of("\r\n"), in_.size()));
                if (in_.empty()) return;
                enter(Phase::head);
                scanned_ = 0;
            }
            if (phase_ == Phase::head) more = read_head();
            if (phase_ == Phase::body) more = read_body();
        }
    }

    // True: something more can be done.
    bool read_head() {
        const size_t from = scanned_ < 3 ? 0 : scanned_ - 3;
        const size_t end = in_.find(kHeadEnd, from);
        if (std::min(end, in_.size()) > limits_.head_bytes) {
            refuse(
                {431, "", "", fmt::format("the request's head has more than {} bytes", limits_.head_bytes)});
            return false;
        }
        for (size_t i = std::max<size_t>(scanned_, 1); i < std::min(end, in_.size()); ++i)
            if (in_[i] == '\n' && in_[i - 1] != '\r') {
                refuse({400, "", "", "the request's head has a line that does not end in CR LF"});
                return false;
            }
        scanned_ = in_.size();
        if (end == std::string::npos) return false;
        const std::string head = in_.substr(0, end + kHeadEnd.size());
        in_.erase(0, head.size());
        begin_request(head);
        return phase_ == Phase::body || phase_ == Phase::idle;
    }

    void begin_request(const std::string& head) {
        if (const auto wrong = check_head(head)) return refuse(*wrong);
        parser_.emplace();
        parser_->header_limit(uint32_t(head.size() + 1));
        parser_->body_limit(boost::none);
        parser_->eager(true);
        boost::system::error_code error;
        parser_->put(boost::asio::buffer(head), error);
        if (error || !parser_->is_header_done())
            return refuse(
                {400, "", "", fmt::format("the request's head cannot be read: {}", error.message())});
        const Parser::value_type& message = parser_->get();
        request_.method = message.method_string();
        http10_ = message.version() == 10;
        head_only_ = request_.method == "HEAD";
        last_ = last_ || !parser_->keep_alive();
        for (const auto& field : message) {
            std::string name = field.name_string();
            for (char& c : name) c = char(std::tolower(uint8_t(c)));
            request_.headers.emplace_back(std::move(name), field.value());
        }
        const std::string_view id = request_.header("x-request-id");
        request_.id = is_request_id(id) ? std::string(id) : "req_" + random_hex(12);
        const auto target = parse_target(message.target());
        if (!target.ok()) return refuse(target.error());
        request_.path = target.value().path;
        request_.query = target.value().query;
        admit_request(target.value().segments);
    }

    void admit_request(const std::vector<std::string>& segments) {
        rules_ = host_.rules();
        last_ = last_ || rules_->state == ServerState::draining;
        Verdict verdict = admit(*rules_, request_, segments, stream_->peer().empty());
        headers_ = std::move(verdict.headers);
        if (verdict.refused) return refuse(*verdict.refused);
        if (verdict.preflight) {
            last_ = last_ || !parser_->is_done();  // a body that nobody reads
            begin_answer();
            return write_whole({204, "", "", {}});
        }
        route_ = verdict.route;
        const auto length = parser_->content_length();
        if (length && *length > limits_.body_bytes) return refuse_length();
        parser_->body_limit(limits_.body_bytes);
        enter(Phase::body);
        if (parser_->is_done()) return;  // no body
        if (equals_ignoring_case(request_.header("expect"), "100-continue") && in_.empty())
            put("HTTP/1.1 100 Continue\r\n\r\n", 0);
    }
    void refuse_length() {
        refuse({413, "", "", fmt::format("the body is larger than {} bytes", limits_.body_bytes)});
    }

    bool read_body() {
        boost::system::error_code error;
        while (!parser_->is_done() && !in_.empty()) {
            const size_t used = parser_->put(boost::asio::buffer(in_), error);
            in_.erase(0, used);
            if (!host_.take_bytes(used)) {
                refuse({503, "overloaded", "", "too many large requests at once", 1});
                return false;
            }
            taken_ += used;
            if (parser_->get().body().size() > limits_.body_bytes ||
                taken_ > 2 * limits_.body_bytes + 65536) {
                refuse_length();
                return false;
            }
            if (error == http::error::body_limit) {  // a chunk says so
                refuse_length();
                return false;
            }
            if (error && error != http::error::need_more) {
                refuse({400, "", "", fmt::format("the request's body cannot be read: {}", error.message())});
                return false;
            }
            if (used == 0) break;
        }
        if (parser_->is_done()) {
            request_.body = std::move(parser_->get().body());
            run();
            return false;
        }
        if (in_.size() > limits_.head_bytes)  // a chunk's own line, or fields after the last one
            refuse({400, "", "", "the request's body has a chunk header that does not end"});
        return false;
    }

    // --- answering ---

    void begin_answer() {
        enter(Phase::answer);
        began_ = since_;
        ++number_;
        complete_ = streaming_ = false;
        status_ = 0;
        bytes_ = 0;
        trace_ = host_.began();
        trace_->note([&](RequestFacts& facts) { facts.key = request_.key; });
    }
    void run() {
        begin_answer();
        const auto exchange = std::make_shared<HttpExchange>(weak_from_this(), number_, limits_.unread_bytes);
        exchange_ = exchange;
        const Route& route = *route_;
        if (route.light) return route.handler(request_, exchange);
        HttpRequest request = std::move(request_);
        request_ = {};
        request_.method = request.method;
        request_.path = request.path;
        request_.id = request.id;
        request_.key = request.key;
        if (!host_.dispatch({route.handler, std::move(request), exchange, trace_}))
            send_error(*exchange, request_,
                       {429, "", "", "too many requests are waiting already", /*retry_after_s=*/1});
    }

    AnswerHead head_of(int status) {
        status_ = status;
        AnswerHead head;
        head.status = status;
        head.keep_alive = !last_;
        head.http10 = http10_;
        head.request_id = request_.id;
        return head;
    }
    void write_whole(Whole answer) {
        AnswerHead head = head_of(answer.status);
        head.content_type = answer.content_type;
        head.length = answer.body.size();
        complete_ = true;
        std::string text = head_text(head, answer.headers, headers_);
        if (!head_only_) text += answer.body;
        put(std::move(text), 0);
    }
    // An answer of ours to a request that no route has seen. What it has in its body was not read: then
    // nothing further can be read either.
    void refuse(const ApiError& error) {
        if (phase_ != Phase::answer) {
            const bool whole = phase_ == Phase::head && route_ == nullptr && parser_ && parser_->is_done() &&
                               !request_.id.empty();
            last_ = last_ || !whole;
            if (request_.id.empty()) request_.id = "req_" + random_hex(12);
            begin_answer();
        }
        Whole answer{error.status, "application/json", error_body(request_.path, error, request_.id), {}};
        if (error.retry_after_s > 0)
            answer.headers.emplace_back("retry-after", std::to_string(error.retry_after_s));
        write_whole(std::move(answer));
    }

    // --- writing ---

    void put(std::string text, size_t payload) {
        out_.empty() ? out_.swap(text) : static_cast<void>(out_ += text);
        out_payload_ += payload;
        flush();
    }
    void flush() {
        if (writing_ || phase_ == Phase::closed) return;
        if (sent_ == sending_.size()) {
            if (const auto exchange = exchange_.lock()) exchange->sent(sending_payload_);
            sending_.clear();
            sending_.swap(out_);
            sending_payload_ = std::exchange(out_payload_, 0);
            sent_ = 0;
        }
        if (sending_.empty()) {
            if (complete_ && phase_ == Phase::answer) end_request();
            return;
        }
        writing_ = true;
        wrote_ = Clock::now();
        stream_->write(std::string_view(sending_).substr(sent_),
                       [self = shared_from_this()](bool ok, size_t bytes) {
                           self->writing_ = false;
                           if (self->phase_ == Phase::closed) return;
                           if (!ok) return self->lose();
                           self->wrote_ = Clock::now();
                           self->sent_ += bytes;
                           self->bytes_ += int64_t(bytes);
                           self->flush();
                       });
    }

    void report(bool gone) {
        trace_->note([&](RequestFacts& facts) {
            facts.id = request_.id;
            facts.method = request_.method;
            if (route_) facts.route = route_->path;
            facts.key = request_.key;
            facts.status = status_ ? status_ : kGoneUnanswered;
            facts.gone = gone;
            facts.sent_bytes = bytes_;
            facts.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
        });
        trace_.reset();
        host_.ended();
    }
    void forget_request() {
        host_.give_back_bytes(std::exchange(taken_, 0));
        exchange_.reset();
        parser_.reset();
        route_ = nullptr;
        rules_.reset();
        request_ = {};
        headers_ = {};
        http10_ = head_only_ = false;
    }
    void end_request() {
        report(false);
        const bool unread = parser_ && !parser_->is_done();
        forget_request();
        if (last_ || ended_) {
            // A client that still sends would lose our answer to a reset.
            if (ended_ || (!unread && in_.empty())) return close();
            in_.clear();
            enter(Phase::linger);
            stream_->end_writing();
            return want_read();
        }
        enter(Phase::idle);
        go_on();
        want_read();
    }

    // The client is gone, or as good as gone.
    void lose() {
        if (phase_ == Phase::closed) return;
        const bool answering = phase_ == Phase::answer;
        const auto exchange = exchange_.lock();
        if (answering) report(true);
        close();
        if (exchange) exchange->gone();
    }
    void close() {
        if (phase_ == Phase::closed) return;
        const auto self = shared_from_this();  // the stream's callbacks may have been the last owners
        phase_ = Phase::closed;
        forget_request();
        stream_->close();
        std::exchange(closed_, {})();
    }

    // --- time ---

    void tick() {
        const auto now = Clock::now();
        const auto past = [now](Clock::time_point since, HttpLimits::Ms limit) {
            return now - since > limit;
        };
        if (writing_ && past(wrote_, limits_.write)) return lose();
        switch (phase_) {
            case Phase::handshake:
                if (past(since_, limits_.head)) close();
                return;
            case Phase::idle:
                if (past(since_, limits_.idle)) close();
                return;
            case Phase::head:
                if (past(since_, limits_.head)) refuse({408, "", "", "the request's head took too long"});
                return;
            case Phase::body:
                if (past(since_, limits_.body) || past(moved_, limits_.body_pause))
                    refuse({408, "", "", "the request's body took too long"});
                return;
            case Phase::answer:
                if (streaming_ && !complete_ && !sign_of_life_.empty() && !writing_ && !head_only_ &&
                    past(wrote_, limits_.keep_alive))
                    put(http10_ ? sign_of_life_ : chunk_text(sign_of_life_), 0);
                return;
            case Phase::linger:
                if (past(since_, limits_.linger)) close();
                return;
            case Phase::closed: return;
        }
    }

    const std::unique_ptr<ByteStream> stream_;
    HttpHost& host_;
    const HttpLimits& limits_;
    std::function<void()> closed_;
    Phase phase_ = Phase::handshake;
    Clock::time_point since_ = Clock::now(), moved_ = since_, wrote_ = since_, began_ = since_;
    bool last_ = false;  // the connection ends after this request

    std::array<char, kReadBytes> block_;
    std::string in_;
    size_t scanned_ = 0;                    // of in_: in search of the end of a head
    bool reading_ = false, ended_ = false;  // a read is under way; nothing more comes
    std::optional<Parser> parser_;
    HttpRequest request_;
    bool http10_ = false, head_only_ = false;
    std::shared_ptr<const GateRules> rules_;  // whose route_ is
    const Route* route_ = nullptr;
    size_t taken_ = 0;  // of the host's bytes

    uint64_t number_ = 0;  // of the exchange
    std::shared_ptr<RequestTrace> trace_;
    std::weak_ptr<HttpExchange> exchange_;
    Responder::Headers headers_;  // of the gate
    bool streaming_ = false, complete_ = false;
    int status_ = 0;
    std::string sign_of_life_;
    std::string out_, sending_;  // what waits; what is on its way
    size_t out_payload_ = 0, sending_payload_ = 0, sent_ = 0;
    bool writing_ = false;
    int64_t bytes_ = 0;
};

}  // namespace

std::shared_ptr<HttpConnection> HttpConnection::start(std::unique_ptr<ByteStream> stream, HttpHost& host,
                                                      std::function<void()> closed) {
    auto connection = std::make_shared<Connection>(std::move(stream), host, std::move(closed));
    connection->post([connection] { connection->begin(); });
    return connection;
}

}  // namespace sparkinfer
