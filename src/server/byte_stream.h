// byte_stream.h — a connection as its bytes: TCP, a unix socket, or TLS over one of them.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace sparkinfer {

// All calls but post() are made on the stream's own queue, and all callbacks come on it: two never run at
// once. A callback keeps what it captured alive until it has run or was dropped by close().
class ByteStream {
  public:
    virtual ~ByteStream() = default;
    using Work = std::function<void()>;
    using Moved = std::function<void(bool ok, size_t bytes)>;  // not ok: the end, trouble, or close()

    // Runs `work` on the queue; any thread.
    virtual void post(Work work) = 0;
    // Once, first: the TLS handshake, where there is one.
    virtual void handshake(std::function<void(bool ok)> done) = 0;
    // At least one byte into `into`, which must stay until the callback. One at a time.
    virtual void read(std::span<char> into, Moved done) = 0;
    // Some of the bytes, which must stay until the callback. One at a time; beside a read.
    virtual void write(std::string_view bytes, Moved done) = 0;
    // Calls `tick` every so often until close().
    virtual void tick_every(std::chrono::milliseconds interval, Work tick) = 0;
    // Tells the other side that nothing more comes; it can still be read.
    virtual void end_writing() = 0;
    // Ends everything; what is pending calls back as not ok. May be repeated.
    virtual void close() = 0;

    // Who is there: an address without its port; empty on a unix socket.
    virtual const std::string& peer() const = 0;
};

}  // namespace sparkinfer
