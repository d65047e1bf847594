#include "server/net.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <set>
#include <thread>

#include "core/log.h"

namespace sparkinfer {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Strand = asio::strand<asio::io_context::executor_type>;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, Strand>;
using Tls = asio::ssl::stream<Socket&>;
using Timer = asio::basic_waitable_timer<std::chrono::steady_clock,
                                         asio::wait_traits<std::chrono::steady_clock>, Strand>;

constexpr int kBacklog = 1024;
// Of the kernel, a connection: a reader that stands still is noticed after these, not after megabytes.
constexpr int kSendBufferBytes = 256 << 10;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // after an accept that failed

// What outlives every stream: streams hold it, so that one that is dropped late finds its queue.
struct Loop {
    asio::io_context io;
    std::optional<TlsFiles> tls_files;  // none: TLS is not spoken
    std::atomic<std::shared_ptr<asio::ssl::context>> tls;
};

class SocketStream final : public ByteStream {
  public:
    SocketStream(std::shared_ptr<Loop> loop, Socket socket, std::string peer,
                 std::shared_ptr<asio::ssl::context> tls)
        : loop_(std::move(loop)),
          socket_(std::move(socket)),
          context_(std::move(tls)),
          timer_(socket_.get_executor()),
          peer_(std::move(peer)) {
        if (context_) tls_.emplace(socket_, *context_);
    }

    void post(Work work) override { asio::post(socket_.get_executor(), std::move(work)); }
    void handshake(std::function<void(bool)> done) override {
        if (!tls_) return done(true);
        tls_->async_handshake(asio::ssl::stream_base::server,
                              [done = std::move(done)](error_code error) { done(!error); });
    }
    void read(std::span<char> into, Moved done) override {
        const auto buffer = asio::buffer(into.data(), into.size());
        auto moved = [done = std::move(done)](error_code error, size_t n) { done(!error, n); };
        tls_ ? tls_->async_read_some(buffer, std::move(moved))
             : socket_.async_read_some(buffer, std::move(moved));
    }
    void write(std::string_view bytes, Moved done) override {
        const auto buffer = asio::buffer(bytes.data(), bytes.size());
        auto moved = [done = std::move(done)](error_code error, size_t n) { done(!error, n); };
        tls_ ? tls_->async_write_some(buffer, std::move(moved))
             : socket_.async_write_some(buffer, std::move(moved));
    }
    void tick_every(std::chrono::milliseconds interval, Work tick) override {
        timer_.expires_after(interval);
        timer_.async_wait([this, interval, tick = std::move(tick)](error_code error) mutable {
            if (error || closed_) return;
            tick();  // holds who owns this stream
            if (!closed_) tick_every(interval, std::move(tick));
        });
    }
    void end_writing() override {
        // Over TLS the closing alert is left out: lengths and chunks tell an end from a cut.
        error_code ignored;
        socket_.shutdown(Socket::shutdown_send, ignored);
    }
    void close() override {
        if (std::exchange(closed_, true)) return;
        error_code ignored;
        timer_.cancel();
        socket_.close(ignored);
    }
    const std::string& peer() const override { return peer_; }

  private:
    std::shared_ptr<Loop> loop_;
    Socket socket_;
    std::shared_ptr<asio::ssl::context> context_;
    std::optional<Tls> tls_;
    Timer timer_;
    std::string peer_;
    bool closed_ = false;
};

std::string message_of(const error_code& error) { return error.message(); }

Error cannot_listen(const std::string& what, const error_code& error) {
    if (error == asio::error::address_in_use)
        return out_of_resources("cannot listen on {}: another program does already", what);
    return out_of_resources("cannot listen on {}: {}", what, message_of(error));
}

// The host as it stands in a URL.
std::string url_host(const asio::ip::address& address) {
    return address.is_v6() ? fmt::format("[{}]", address.to_string()) : address.to_string();
}

// One socket that listens.
template <class Protocol>
class Listener : public std::enable_shared_from_this<Listener<Protocol>> {
  public:
    Listener(std::shared_ptr<Loop> loop, Net::Accepted accepted)
        : loop_(std::move(loop)),
          acceptor_(asio::make_strand(loop_->io)),
          pause_(acceptor_.get_executor()),
          accepted_(std::move(accepted)) {}

    error_code open(const typename Protocol::endpoint& endpoint) {
        error_code error;
        acceptor_.open(endpoint.protocol(), error);
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
            if (!error && endpoint.address().is_v6()) acceptor_.set_option(asio::ip::v6_only(true), error);
        }
        if (!error) acceptor_.bind(endpoint, error);
        if (!error) acceptor_.listen(kBacklog, error);
        return error;
    }
    typename Protocol::endpoint local() const { return acceptor_.local_endpoint(); }

    void accept() {
        auto self = this->shared_from_this();
        acceptor_.async_accept(asio::make_strand(loop_->io), [self](error_code error, auto socket) {
            if (error == asio::error::operation_aborted || !self->acceptor_.is_open()) return;
            if (error) return self->accept_later(error);
            self->warned_ = false;
            self->take(std::move(socket));
            self->accept();
        });
    }
    void close() {
        asio::post(acceptor_.get_executor(), [self = this->shared_from_this()] {
            error_code ignored;
            self->acceptor_.close(ignored);
            self->pause_.cancel();
        });
    }

  private:
    // Mostly: too many open files. Going round at once would be a busy loop.
    void accept_later(const error_code& error) {
        if (!std::exchange(warned_, true))
            log_warning("cannot accept a connection: {}; trying on", message_of(error));
        pause_.expires_after(kAcceptPause);
        pause_.async_wait([self = this->shared_from_this()](error_code cancelled) {
            if (!cancelled) self->accept();
        });
    }
    template <class Accepted>
    void take(Accepted socket) {
        error_code error;
        std::string peer;
        if constexpr (std::is_same_v<Protocol, asio::ip::tcp>) {
            const auto endpoint = socket.remote_endpoint(error);
            if (error) return;  // gone already
            peer = endpoint.address().to_string();
            socket.set_option(asio::ip::tcp::no_delay(true), error);
            socket.set_option(asio::socket_base::keep_alive(true), error);
        }
        socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), error);
        constexpr bool kTcp = std::is_same_v<Protocol, asio::ip::tcp>;
        accepted_(std::make_unique<SocketStream>(loop_, Socket(std::move(socket)), std::move(peer),
                                                 kTcp ? loop_->tls.load() : nullptr));
    }

    std::shared_ptr<Loop> loop_;
    asio::basic_socket_acceptor<Protocol, Strand> acceptor_;
    Timer pause_;
    Net::Accepted accepted_;
    bool warned_ = false;
};

// A socket that a server left behind is in the way; one that answers, or another kind of file, is not ours.
Result<void> remove_stale_socket(const std::string& path) {
    struct stat facts{};
    if (::lstat(path.c_str(), &facts) != 0) return {};
    if (!S_ISSOCK(facts.st_mode))
        return bad_input("{}: a file that is no socket is there, expected none or an unused socket", path);
    asio::io_context io;
    asio::local::stream_protocol::socket probe(io);
    error_code error;
    probe.connect(path, error);
    if (!error) return cannot_listen(path, asio::error::address_in_use);
    if (::unlink(path.c_str()) != 0)
        return out_of_resources("{}: cannot remove the unused socket: {}", path,
                                std::generic_category().message(errno));
    return {};
}

class AsioNet final : public Net, public std::enable_shared_from_this<AsioNet> {
  public:
    AsioNet(std::shared_ptr<Loop> loop) : loop_(std::move(loop)), work_(loop_->io.get_executor()) {}
    ~AsioNet() override { stop(); }

    void run(int threads) {
        for (int i = 0; i < threads; ++i) threads_.emplace_back([loop = loop_] { loop->io.run(); });
    }

    Result<std::vector<std::string>> listen(const Endpoint& endpoint, Accepted accepted) override {
        return endpoint.unix_path.empty() ? listen_tcp(endpoint, accepted)
                                          : listen_unix(endpoint.unix_path, std::move(accepted));
    }
    Result<void> reload_tls() override;
    void stop_listening() override {
        for (const auto& close : std::exchange(close_listeners_, {})) close();
        for (const std::string& path : std::exchange(unix_paths_, {})) ::unlink(path.c_str());
    }
    void stop() override {
        stop_listening();
        for (const auto& timer : std::exchange(timers_, {}))
            asio::post(timer->at.get_executor(), [timer] {
                timer->stopped = true;
                timer->at.cancel();
            });
        work_.reset();
        for (std::thread& thread : std::exchange(threads_, {})) thread.join();
    }
    void every(std::chrono::milliseconds interval, std::function<void()> work) override {
        timers_.push_back(std::make_shared<Ticker>(Timer(asio::make_strand(loop_->io))));
        arm(timers_.back(), interval, std::move(work));
    }

  private:
    // Cancelling reaches no handler that is already on its way: it must not wait again. On the timer's
    // strand.
    struct Ticker {
        Timer at;
        bool stopped = false;
        explicit Ticker(Timer timer) : at(std::move(timer)) {}
    };
    static void arm(const std::shared_ptr<Ticker>& timer, std::chrono::milliseconds interval,
                    std::function<void()> work) {
        timer->at.expires_after(interval);
        timer->at.async_wait([timer, interval, work = std::move(work)](error_code error) mutable {
            if (error || timer->stopped) return;
            work();
            arm(timer, interval, std::move(work));
        });
    }

    Result<std::vector<std::string>> listen_tcp(const Endpoint& endpoint, const Accepted& accepted) {
        error_code error;
        asio::ip::tcp::resolver resolver(loop_->io);
        const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                                            asio::ip::tcp::resolver::passive, error);
        if (error || found.empty())
            return usage_error("--host is '{}': {}", endpoint.host,
                               error ? message_of(error) : "a name without an address");
        std::vector<std::string> reached;
        std::optional<Error> failed;
        uint16_t port = endpoint.port;
        std::set<asio::ip::address> seen;  // a name may have one address twice
        for (const auto& entry : found) {
            const asio::ip::tcp::endpoint at(entry.endpoint().address(), port);
            if (!seen.insert(at.address()).second) continue;
            auto listener = std::make_shared<Listener<asio::ip::tcp>>(loop_, accepted);
            if (const error_code refused = listener->open(at)) {
                failed = cannot_listen(fmt::format("{}:{}", url_host(at.address()), at.port()), refused);
                // "localhost" means ::1 too, where there may be no IPv6; but half a name is not taken.
                if (refused == asio::error::address_in_use) return *failed;
                continue;
            }
            port = listener->local().port();  // the same free one for all addresses of a name
            reached.push_back(
                fmt::format("{}://{}:{}", loop_->tls_files ? "https" : "http", url_host(at.address()), port));
            start(listener);
        }
        if (reached.empty()) return *failed;
        return reached;
    }

    Result<std::vector<std::string>> listen_unix(const std::string& path, Accepted accepted) {
        if (path.size() >= sizeof(sockaddr_un::sun_path))
            return usage_error("--unix is a path of {} bytes, at most {} are possible", path.size(),
                               sizeof(sockaddr_un::sun_path) - 1);
        TRY_VOID(remove_stale_socket(path));
        auto listener = std::make_shared<Listener<asio::local::stream_protocol>>(loop_, std::move(accepted));
        // The mode must be right from the first moment, and umask is the process's: this runs before others.
        const mode_t before = ::umask(0177);
        const error_code refused = listener->open(asio::local::stream_protocol::endpoint(path));
        ::umask(before);
        if (refused) return cannot_listen(path, refused);
        unix_paths_.push_back(path);
        start(listener);
        return std::vector<std::string>{"unix:" + path};
    }

    template <class L>
    void start(const std::shared_ptr<L>& listener) {
        close_listeners_.push_back([listener] { listener->close(); });
        listener->accept();
    }

    std::shared_ptr<Loop> loop_;
    asio::executor_work_guard<asio::io_context::executor_type> work_;
    std::vector<std::thread> threads_;
    std::vector<std::function<void()>> close_listeners_;
    std::vector<std::string> unix_paths_;
    std::vector<std::shared_ptr<Ticker>> timers_;
};

Result<void> load_tls(asio::ssl::context& context, const TlsFiles& files) {
    error_code error;
    context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                            asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                            asio::ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION,
                        error);
    if (!error) context.use_certificate_chain_file(files.certificate, error);
    if (error)
        return bad_input("--tls-cert: {}: no certificate in PEM form can be read: {}", files.certificate,
                         message_of(error));
    context.use_private_key_file(files.key, asio::ssl::context::pem, error);
    if (error)
        return bad_input("--tls-key: {}: no private key that fits the certificate can be read: {}", files.key,
                         message_of(error));
    if (SSL_CTX_check_private_key(context.native_handle()) != 1)
        return bad_input("--tls-key: {}: the key is not the one of {}", files.key, files.certificate);
    return {};
}

Result<std::shared_ptr<asio::ssl::context>> read_tls(const TlsFiles& files) {
    auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    TRY_VOID(load_tls(*context, files));
    return context;
}

Result<void> AsioNet::reload_tls() {
    if (!loop_->tls_files) return {};
    TRY(auto context, read_tls(*loop_->tls_files));
    loop_->tls = std::move(context);
    return {};
}

}  // namespace

bool is_loopback(const std::string& host) {
    if (host == "localhost") return true;
    error_code error;
    const auto address = asio::ip::make_address(host, error);
    return !error && address.is_loopback();
}

Result<std::shared_ptr<Net>> Net::create(int threads, const std::optional<TlsFiles>& tls) {
    auto loop = std::make_shared<Loop>();
    loop->tls_files = tls;
    if (tls) {
        TRY(auto context, read_tls(*tls));
        loop->tls = std::move(context);
    }
    auto net = std::make_shared<AsioNet>(std::move(loop));
    net->run(threads);
    return std::shared_ptr<Net>(std::move(net));
}

}  // namespace sparkinfer
