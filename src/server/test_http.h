// test_http.h — a server on loopback, and a client that writes the bytes it is told to.
#pragma once
#include <arpa/inet.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/http_server.h"

namespace sparkinfer {

using Ms = std::chrono::milliseconds;

// A socket that speaks no HTTP of its own.
class RawClient {
  public:
    explicit RawClient(uint16_t port, int receive_buffer = 0) {
        fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
        if (receive_buffer) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
        const int on = 1;
        ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    explicit RawClient(const std::string& unix_path) {
        fd_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
        sockaddr_un to{};
        to.sun_family = AF_UNIX;
        std::strncpy(to.sun_path, unix_path.c_str(), sizeof to.sun_path - 1);
        connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
    }
    ~RawClient() { close(); }
    RawClient(const RawClient&) = delete;
    RawClient& operator=(const RawClient&) = delete;

    bool connected() const { return connected_; }
    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (n <= 0) return false;
            bytes.remove_prefix(size_t(n));
        }
        return true;
    }
    // Some bytes; empty: the end, or nothing came in time.
    std::string receive(Ms most = Ms(5000)) {
        pollfd wait{fd_, POLLIN, 0};
        if (::poll(&wait, 1, int(most.count())) <= 0) return {};
        std::string bytes(65536, '\0');
        const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
        ended_ = n <= 0;
        bytes.resize(n > 0 ? size_t(n) : 0);
        return bytes;
    }
    std::string receive_until(std::string_view what, Ms most = Ms(5000)) {
        const auto end = std::chrono::steady_clock::now() + most;
        while (seen_.find(what) == std::string::npos && std::chrono::steady_clock::now() < end) {
            const std::string more = receive(most);
            if (more.empty()) break;
            seen_ += more;
        }
        return seen_;
    }
    std::string receive_all(Ms most = Ms(5000)) {
        for (std::string more = receive(most); !more.empty(); more = receive(most)) seen_ += more;
        return std::exchange(seen_, {});
    }
    bool ended() const { return ended_; }
    void half_close() { ::shutdown(fd_, SHUT_WR); }
    // With a reset instead of an orderly end.
    void reset() {
        const linger now{1, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close();
    }
    void close() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

    struct Answer {
        int status = 0;  // 0: none came
        std::map<std::string, std::string> headers;
        std::string body;
    };
    // One answer; what comes after it is kept for the next call.
    Answer answer(bool head_only = false, Ms most = Ms(5000)) {
        Answer got;
        const size_t end = (receive_until("\r\n\r\n", most), seen_.find("\r\n\r\n"));
        if (end == std::string::npos) return got;
        parse_head(seen_.substr(0, end + 2), got);
        seen_.erase(0, end + 4);
        if (head_only || got.status == 204 || got.status == 304 || got.status == 100) return got;
        if (got.headers.count("content-length")) {
            const size_t length = std::stoul(got.headers["content-length"]);
            while (seen_.size() < length) {
                const std::string more = receive(most);
                if (more.empty()) break;
                seen_ += more;
            }
            got.body = seen_.substr(0, length);
            seen_.erase(0, length);
        } else if (got.headers.count("transfer-encoding")) {
            read_chunks(got.body, most);
        } else {
            got.body = receive_all(most);
        }
        return got;
    }
    Answer ask(std::string_view request) {
        send(request);
        return answer(request.substr(0, 5) == "HEAD ");
    }

  private:
    static void parse_head(std::string_view head, Answer& got) {
        got.status = std::atoi(std::string(head.substr(9, 3)).c_str());
        head.remove_prefix(head.find("\r\n") + 2);
        while (!head.empty()) {
            const std::string line(head.substr(0, head.find("\r\n")));
            head.remove_prefix(line.size() + 2);
            got.headers[line.substr(0, line.find(':'))] = line.substr(line.find(':') + 2);
        }
    }
    void read_chunks(std::string& body, Ms most) {
        for (;;) {
            size_t end;
            while ((end = seen_.find("\r\n")) == std::string::npos) {
                const std::string more = receive(most);
                if (more.empty()) return;
                seen_ += more;
            }
            const size_t length = std::stoul(seen_.substr(0, end), nullptr, 16);
            while (seen_.size() < end + 4 + length) {
                const std::string more = receive(most);
                if (more.empty()) return;
                seen_ += more;
            }
            body += seen_.substr(end + 2, length);
            seen_.erase(0, end + 4 + length);
            if (length == 0) return;
        }
    }

    int fd_ = -1;
    bool connected_ = false, ended_ = false;
    std::string seen_;
};

inline std::string get(std::string_view path, std::string_view fields = "") {
    return fmt::format("GET {} HTTP/1.1\r\nhost: localhost\r\n{}\r\n", path, fields);
}
inline std::string post(std::string_view path, std::string_view body, std::string_view fields = "") {
    return fmt::format(
        "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: "
        "{}\r\n{}\r\n{}",
        path, body.size(), fields, body);
}

// Waits until it is so.
template <class Condition>
bool eventually(Condition condition, Ms most = Ms(5000)) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(Ms(2));
    }
    return true;
}

// A ready server with routes that show what they were asked.
class HttpFixture : public ::testing::Test {
  protected:
    void start(HttpConfig config = {}) {
        config.told = [this](const RequestFacts& facts) {
            const std::lock_guard lock(mutex_);
            told_.push_back(facts);
        };
        auto created = HttpServer::create(std::move(config));
        ASSERT_TRUE(created.ok()) << created.error().message;
        server_ = std::move(created).value();
        server_->set_routes(routes());
        server_->set_state(ServerState::ready);
        const auto reached = server_->listen({.host = "127.0.0.1", .port = 0});
        ASSERT_TRUE(reached.ok()) << reached.error().message;
        const std::string& url = reached.value().at(0);
        port_ = uint16_t(std::stoi(url.substr(url.rfind(':') + 1)));
    }
    void TearDown() override {
        held_.clear();
        if (server_) server_->stop();
    }
    std::vector<RequestFacts> told() {
        const std::lock_guard lock(mutex_);
        return told_;
    }
    std::vector<Route> routes() {
        std::vector<Route> all;
        all.push_back({"GET", "/health/live", Route::Access::open,
                       [](const HttpRequest&, const std::shared_ptr<Responder>& r) {
                           r->send(200, "text/plain", "live", {});
                       },
                       true});
        all.push_back({"POST", "/v1/echo", Route::Access::key,
                       [](const HttpRequest& request, const std::shared_ptr<Responder>& r) {
                           r->send(200, "text/plain", request.body, {});
                       }});
        all.push_back({"GET", "/v1/models/{id}", Route::Access::key,
                       [](const HttpRequest& request, const std::shared_ptr<Responder>& r) {
                           r->send(200, "text/plain", request.path + "?" + request.query + " " + request.key,
                                   {});
                       }});
        // Streams that the test writes to.
        all.push_back({"POST", "/v1/hold", Route::Access::key,
                       [this](const HttpRequest&, const std::shared_ptr<Responder>& r) {
                           r->on_gone([this] { ++gone_; });
                           const std::lock_guard lock(mutex_);
                           held_.push_back(r);
                       }});
        all.push_back({"POST", "/v1/drop", Route::Access::key,
                       [](const HttpRequest&, const std::shared_ptr<Responder>&) {}});
        return all;
    }
    std::shared_ptr<Responder> held(size_t i = 0) {
        eventually([&] {
            const std::lock_guard lock(mutex_);
            return held_.size() > i;
        });
        const std::lock_guard lock(mutex_);
        return held_.size() > i ? held_[i] : nullptr;
    }

    std::mutex mutex_;
    std::vector<RequestFacts> told_;
    std::vector<std::shared_ptr<Responder>> held_;
    std::atomic<int> gone_ = 0;
    std::unique_ptr<HttpServer> server_;
    uint16_t port_ = 0;
};

}  // namespace sparkinfer
