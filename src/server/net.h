// net.h — sockets and the threads that serve them: listens, and hands out accepted connections as streams.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "server/byte_stream.h"

namespace sparkinfer {

// Where to listen: a host (a name or an address; a name may mean several addresses) and a port (0: any free
// one), or the path of a unix socket.
struct Endpoint {
    std::string host = {};
    uint16_t port = 0;
    std::string unix_path = {};
};

// The certificate chain and its private key, both PEM files.
struct TlsFiles {
    std::string certificate, key;
};

// Is the host one that only this machine reaches (127.0.0.0/8, ::1, localhost)? Names are not looked up.
bool is_loopback(const std::string& host);

class Net {
  public:
    virtual ~Net() = default;  // as stop()
    using Accepted = std::function<void(std::unique_ptr<ByteStream>)>;

    // `threads` serve all connections. Errors: an unreadable or unfit certificate.
    static Result<std::shared_ptr<Net>> create(int threads, const std::optional<TlsFiles>& tls);

    // Binds and listens; answers with what it is reached by: "http://127.0.0.1:8080", "unix:PATH". TLS is
    // not spoken on a unix socket. `accepted` is called on an I/O thread. Errors: a port in use, a name
    // without an address, a path that is something else than a socket.
    virtual Result<std::vector<std::string>> listen(const Endpoint& endpoint, Accepted accepted) = 0;
    // Reads the files of create() again, for connections to come; nothing changes on an error.
    virtual Result<void> reload_tls() = 0;
    // Takes no further connections.
    virtual void stop_listening() = 0;
    // Returns when the threads have ended, which they do when every connection is closed.
    virtual void stop() = 0;
    // Runs `work` on an I/O thread every so often, until stop().
    virtual void every(std::chrono::milliseconds interval, std::function<void()> work) = 0;
};

}  // namespace sparkinfer
