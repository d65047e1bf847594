// tls_client.h — the client's side of TLS: whose certificates are believed, and a connection over a socket.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/result.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // and SSL

namespace sparkinfer {

// Files in which systems keep the certificates of the authorities that they trust; the first that is there is
// the system's store.
std::span<const char* const> system_trust_files();

// The authorities whose certificates are believed. Read once; any number of connections, from any thread.
class TlsTrust {
  public:
    // Those of `file` (PEM), or without one of the first of `places` that exists. Errors: none of them does;
    // a file without a certificate.
    static Result<TlsTrust> open(const std::optional<std::string>& file,
                                 std::span<const char* const> places = system_trust_files());

  private:
    friend class TlsConnection;
    explicit TlsTrust(std::shared_ptr<ssl_ctx_st> context) : context_(std::move(context)) {}
    std::shared_ptr<ssl_ctx_st> context_;
};

// TLS 1.2 or newer over a connected socket that does not block, with a server that proves to be `host`. Does
// not own the socket. Not thread-safe.
class TlsConnection {
  public:
    enum class State {
        done,         // `bytes` of them, at least one
        wants_read,   // try again when the socket can be read
        wants_write,  // … or written
        ended         // the server has closed the connection
    };
    struct Step {
        State state;
        size_t bytes = 0;
    };

    // `host`: a name or an address.
    TlsConnection(const TlsTrust& trust, int socket, const std::string& host);
    // Errors: bad_input, the server's certificate is not believed; resources, the connection's.
    Result<Step> handshake();
    Result<Step> read(std::span<char> to);
    Result<Step> write(std::string_view bytes);

  private:
    Result<Step> step(int result, size_t bytes, const char* what);
    std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
};

}  // namespace sparkinfer
