#include "cli/http_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

namespace sparkinfer {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kPollMs = 100;

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

void HttpClient::close() {
    tls_.reset();
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
}

Error HttpClient::trouble(std::string_view what) const {
    return out_of_resources("{}://{}:{}: {}", url_.tls ? "https" : "http", url_.host, url_.port, what);
}

Result<void> HttpClient::connect() {
    if (url_.tls && !options_.trust)
        return usage_error("the URL is of https://, expected http://: TLS is not spoken here");
    TRY_VOID(connect_socket());
    if (!url_.tls) return {};
    tls_.emplace(*options_.trust, socket_, url_.host);
    for (size_t none = 0;;) {
        TRY(const Progress progress, after(tls_->handshake(), none));
        if (progress == Progress::some) return {};
        if (progress == Progress::end) return trouble("the server closed the connection");
    }
}

Result<void> HttpClient::connect_socket() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(url_.host.c_str(), url_.port.c_str(), &hints, &found))
        return trouble(fmt::format("cannot find the host: {}", ::gai_strerror(code)));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
    int error = 0;
    for (const addrinfo* a = found; a; a = a->ai_next) {
        socket_ = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (socket_ >= 0 && ::connect(socket_, a->ai_addr, a->ai_addrlen) == 0) {
            const int on = 1;
            ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            ::fcntl(socket_, F_SETFL, ::fcntl(socket_, F_GETFL) | O_NONBLOCK);
            return {};
        }
        error = errno;
        close();
    }
    return trouble(fmt::format("cannot connect: {}", reason(error)));
}

// Until the socket is ready, patience ends or the user gives up.
Result<void> HttpClient::wait(short events) {
    const Clock::time_point until = Clock::now() + options_.patience;
    for (;;) {
        pollfd ready{socket_, events, 0};
        const int n = ::poll(&ready, 1, kPollMs);
        if (n > 0) return {};
        if (n < 0 && errno != EINTR) return trouble(fmt::format("cannot wait: {}", reason(errno)));
        if (options_.give_up && options_.give_up()) return trouble("interrupted");
        if (Clock::now() > until)
            return trouble(fmt::format("no byte for {} seconds", options_.patience.count()));
    }
}

// What a step of TLS came to, waiting where it wants that.
Result<HttpClient::Progress> HttpClient::after(const Result<TlsConnection::Step>& step, size_t& bytes) {
    if (!step.ok())
        return Error{step.error().kind,
                     fmt::format("https://{}:{}: {}", url_.host, url_.port, step.error().message)};
    const auto [state, count] = step.value();
    if (state == TlsConnection::State::ended) return Progress::end;
    bytes = count;
    if (state == TlsConnection::State::done) return Progress::some;
    TRY_VOID(wait(state == TlsConnection::State::wants_read ? POLLIN : POLLOUT));
    return Progress::none;
}

Result<HttpClient::Progress> HttpClient::read_some(std::span<char> to, size_t& bytes) {
    if (tls_) return after(tls_->read(to), bytes);
    const ssize_t n = ::recv(socket_, to.data(), to.size(), 0);
    if (n > 0) bytes = size_t(n);
    if (n >= 0) return n > 0 ? Progress::some : Progress::end;
    if (errno != EINTR && errno != EAGAIN) return trouble(fmt::format("cannot receive: {}", reason(errno)));
    if (errno == EAGAIN) TRY_VOID(wait(POLLIN));
    return Progress::none;
}

Result<HttpClient::Progress> HttpClient::write_some(std::string_view bytes, size_t& count) {
    if (tls_) return after(tls_->write(bytes), count);
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n >= 0) {
        count = size_t(n);
        return Progress::some;
    }
    if (errno != EINTR && errno != EAGAIN) return trouble(fmt::format("cannot send: {}", reason(errno)));
    if (errno == EAGAIN) TRY_VOID(wait(POLLOUT));
    return Progress::none;
}

Result<void> HttpClient::write_all(std::string_view bytes) {
    while (!bytes.empty()) {
        size_t count = 0;
        TRY(const Progress progress, write_some(bytes, count));
        if (progress == Progress::end) return trouble("the server closed the connection");
        if (progress == Progress::some) bytes.remove_prefix(count);
    }
    return {};
}

// `silent` turns false with the first byte.
Result<ClientResponse> HttpClient::read_answer(const Body& body, bool& silent) {
    ClientResponse response;
    char buffer[16 << 10];
    std::string part;
    while (!response.whole()) {
        size_t bytes = 0;
        TRY(const Progress progress, read_some(buffer, bytes));
        if (progress == Progress::none) continue;
        if (progress == Progress::end) {
            TRY_VOID(response.closed());
            break;
        }
        silent = false;
        part.clear();
        TRY_VOID(response.push({buffer, bytes}, part));
        if (!part.empty() && !body(response, part)) {
            close();
            return response;
        }
    }
    if (!response.keeps_open()) close();
    return response;
}

Result<ClientResponse> HttpClient::send(const ClientRequest& request, const Body& body) {
    std::string head = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: sparkinfer\r\n",
                                   request.method, url_.path, request.path, url_.host, url_.port);
    if (!request.key.empty()) head += fmt::format("Authorization: Bearer {}\r\n", request.key);
    if (request.range_from > 0) head += fmt::format("Range: bytes={}-\r\n", request.range_from);
    if (!request.body.empty())
        head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", request.body.size());
    head += "\r\n";
    head += request.body;
    for (;;) {
        const bool used = socket_ >= 0;  // a server may close what was idle: that is no answer
        if (!used) TRY_VOID(connect());
        bool silent = true;
        const Result<void> sent = write_all(head);
        Result<ClientResponse> response =
            sent.ok() ? read_answer(body, silent) : Result<ClientResponse>(sent.error());
        if (response.ok()) return response;
        close();
        const bool over = options_.give_up && options_.give_up();
        if (!used || !silent || over) return response;
    }
}

Result<std::pair<int, std::string>> HttpClient::fetch(const ClientRequest& request) {
    std::string text;
    TRY(const ClientResponse response, send(request, [&](const ClientResponse&, std::string_view part) {
            text += part;
            return true;
        }));
    return std::pair(response.status(), std::move(text));
}

}  // namespace sparkinfer
