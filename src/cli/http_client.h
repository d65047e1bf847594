// http_client.h — a small HTTP/1.1 client over a socket, plain or with TLS, for measuring a server and for
// pulling files: one request at a time on a connection, the answer's body as it arrives.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/tls_client.h"
#include "core/result.h"

namespace sparkinfer {

struct Url {
    bool tls = false;  // https
    std::string host, port;
    std::string path;  // without a '/' at its end: what requests' paths are appended to
};
// "http://HOST[:PORT][/PATH]", or https; HOST may be an IPv6 address in brackets. Errors: usage_error.
Result<Url> parse_url(const std::string& text);

// An answer's bytes to status, headers and body. Not thread-safe.
class ClientResponse {
  public:
    // Takes what arrived and appends the body's part of it to `body`. Errors: bad_input, the answer is no
    // HTTP.
    Result<void> push(std::string_view bytes, std::string& body);
    // The server closed the connection. Errors: the answer was not whole.
    Result<void> closed();

    bool has_head() const { return where_ != Where::head; }
    bool whole() const { return where_ == Where::end; }
    int status() const { return status_; }
    // Empty when there is none; `name` in small letters.
    std::string_view header(std::string_view name) const;
    bool keeps_open() const;  // another request may follow on the connection

  private:
    enum class Where { head, counted, chunk_size, chunk, chunk_end, trailers, until_close, end };
    Result<void> read_head(std::string_view head);
    Result<void> read_line(std::string_view line);
    size_t take_bytes(std::string_view bytes, std::string& body);

    Where where_ = Where::head;
    std::string line_;  // the head, or a line of the chunked form, so far
    size_t left_ = 0;   // bytes of the body or chunk
    int status_ = 0;
    int version_ = 1;  // of HTTP/1.x
    std::vector<std::pair<std::string, std::string>> headers_;
};

// Data of server-sent events. Comments and other fields are left out.
class ClientEvents {
  public:
    // Calls `data` with each event's data that `text` completes.
    void push(std::string_view text, const std::function<void(std::string_view)>& data);

  private:
    std::string line_, data_;
    bool has_data_ = false;
};

struct ClientRequest {
    std::string method = "GET";
    std::string path = {};    // behind the Url's
    std::string body = {};    // JSON; empty: none
    std::string key = {};     // Authorization: Bearer; empty: none
    uint64_t range_from = 0;  // the first byte that is asked for; 0: all
};

// One connection, opened when it is needed and again when the server closed it between two requests.
class HttpClient {
  public:
    struct Options {
        std::chrono::seconds patience{600};  // between two bytes of an answer
        std::function<bool()> give_up = {};  // asked ten times a second
        std::optional<TlsTrust> trust = {};  // for https, which is refused without
    };
    HttpClient(Url url, Options options) : url_(std::move(url)), options_(std::move(options)) {}
    HttpClient(HttpClient&& other) noexcept
        : url_(std::move(other.url_)),
          options_(std::move(other.options_)),
          socket_(std::exchange(other.socket_, -1)),
          tls_(std::move(other.tls_)) {}
    HttpClient& operator=(HttpClient&&) = delete;
    ~HttpClient() { close(); }

    // `body` is called with each part of the body and may end the request by answering false; the connection
    // is then closed. Errors: resources, what went wrong with the connection; bad_input, an answer that is no
    // HTTP, a certificate that is not believed.
    using Body = std::function<bool(const ClientResponse& response, std::string_view part)>;
    Result<ClientResponse> send(const ClientRequest& request, const Body& body);
    // The whole body.
    Result<std::pair<int, std::string>> fetch(const ClientRequest& request);

  private:
    // What a step of reading or writing did: bytes, none yet (after a wait), or the end of the connection.
    enum class Progress { some, none, end };
    Result<void> connect();
    Result<void> connect_socket();
    Result<Progress> read_some(std::span<char> to, size_t& bytes);
    Result<Progress> write_some(std::string_view bytes, size_t& count);
    Result<Progress> after(const Result<TlsConnection::Step>& step, size_t& bytes);
    Result<void> write_all(std::string_view bytes);
    Result<void> wait(short events);
    Result<ClientResponse> read_answer(const Body& body, bool& silent);
    Error trouble(std::string_view what) const;
    void close();

    Url url_;
    Options options_;
    int socket_ = -1;
    std::optional<TlsConnection> tls_;
};

}  // namespace sparkinfer
