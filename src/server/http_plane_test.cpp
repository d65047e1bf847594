// Addresses, TLS, keys, draining, and many streams at once.
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "server/test_http.h"

namespace sparkinfer {
namespace {

class HttpPlane : public HttpFixture {
  protected:
    void SetUp() override {
        char name[] = "/tmp/sparkinfer_http_XXXXXX";
        ASSERT_NE(::mkdtemp(name), nullptr);
        folder_ = name;
    }
    void TearDown() override {
        HttpFixture::TearDown();
        std::filesystem::remove_all(folder_);
    }
    static std::string output_of(const std::string& command) {
        std::string text;
        FILE* pipe = ::popen(command.c_str(), "r");
        if (!pipe) return {};
        char block[4096];
        while (const size_t n = std::fread(block, 1, sizeof block, pipe)) text.append(block, n);
        ::pclose(pipe);
        return text;
    }
    // Of 300 questions on one connection, milliseconds.
    double health_p99_ms() {
        std::vector<double> ms;
        RawClient health(port_);
        for (int i = 0; i < 300; ++i) {
            const auto before = std::chrono::steady_clock::now();
            EXPECT_EQ(health.ask(get("/health/live")).status, 200);
            const auto after = std::chrono::steady_clock::now();
            ms.push_back(std::chrono::duration<double, std::milli>(after - before).count());
            std::this_thread::sleep_for(Ms(5));
        }
        std::sort(ms.begin(), ms.end());
        return ms[297];
    }
    std::string folder_;
};

KeyRing keys(const char* text) { return KeyRing::parse(text, "keys").value(); }

// Risk: requests under way are cut by an orderly end, new ones are begun, or the end never comes.
TEST_F(HttpPlane, DrainingLetsRequestsEndAndTakesNoNewOnes) {
    start();
    RawClient idle(port_), streaming(port_), late(port_);
    EXPECT_EQ(idle.ask(get("/health/live")).status, 200);
    EXPECT_EQ(late.ask(get("/health/live")).status, 200);
    streaming.send(post("/v1/hold", "{}"));
    const auto stream = held();
    stream->start_stream("text/event-stream", "");
    stream->write("data: 1\n\n");
    streaming.receive_until("data: 1");
    late.send("POST /v1/echo HTTP/1.1\r\nhost: localhost\r\n");  // half a head
    std::this_thread::sleep_for(Ms(100));
    server_->set_state(ServerState::draining);
    EXPECT_EQ(idle.receive_all(Ms(2000)), "");
    EXPECT_TRUE(idle.ended());
    late.send("content-type: application/json\r\ncontent-length: 2\r\n\r\n{}");
    const auto refused = late.answer();
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.headers.count("retry-after"), 1u);
    EXPECT_EQ(refused.headers.at("connection"), "close");
    RawClient fresh(port_);  // a balancer that asks once more
    EXPECT_EQ(fresh.ask(post("/v1/echo", "{}")).status, 503);
    EXPECT_FALSE(server_->wait_idle(Ms(50)));
    stream->write("data: 2\n\n");
    stream->finish();
    EXPECT_EQ(streaming.answer().body, "data: 1\n\ndata: 2\n\n");
    EXPECT_TRUE(server_->wait_idle(Ms(2000)));
    EXPECT_EQ(gone_, 0);
}

// Risk: what is still running when the time is over hangs the process, or its handler never hears of it.
TEST_F(HttpPlane, StoppingCutsWhatIsLeft) {
    start();
    RawClient streaming(port_);
    streaming.send(post("/v1/hold", "{}"));
    const auto stream = held();
    stream->start_stream("text/event-stream", "");
    server_->set_state(ServerState::draining);
    EXPECT_FALSE(server_->wait_idle(Ms(50)));
    server_->stop();
    EXPECT_EQ(gone_, 1);
    stream->write("data: late\n\n");  // of an engine that has not heard yet
    stream->finish();
    server_.reset();
    stream->on_gone([] {});
}

// Risk: keys that were taken away still open the server, or a running request is cut when they change.
TEST_F(HttpPlane, KeysChangeWhileItRuns) {
    HttpConfig config;
    config.keys = keys("old-key-123");
    start(std::move(config));
    RawClient client(port_);
    const auto with = [&](const char* key) {
        return client.ask(get("/v1/models/x", fmt::format("authorization: Bearer {}\r\n", key)));
    };
    EXPECT_EQ(with("old-key-123").body, "/v1/models/x? key-1");
    EXPECT_EQ(with("new-key-123").status, 401);
    EXPECT_EQ(with("old-key-123").status, 200);
    server_->set_keys(keys("other-key-1\nnew-key-123"));
    EXPECT_EQ(with("old-key-123").status, 401);
    EXPECT_EQ(with("new-key-123").body, "/v1/models/x? key-3");  // no key inherits another's label
    server_->set_keys(keys("new-key-123\nold-key-123"));
    EXPECT_EQ(with("new-key-123").body, "/v1/models/x? key-3");
    EXPECT_EQ(with("old-key-123").body, "/v1/models/x? key-4");
    // A body is not read, and 100 Continue not said, before the key is right.
    client.send(
        "POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        "expect: 100-continue\r\ncontent-length: 1000000\r\n\r\n");
    EXPECT_EQ(client.answer().status, 401);
}

// Risk: a unix socket that others can open, that a crash leaves in the way, or that removes a user's file.
TEST_F(HttpPlane, UnixSockets) {
    start();
    const std::string path = folder_ + "/socket";
    ASSERT_TRUE(server_->listen({.unix_path = path}).ok());
    struct stat facts{};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, mode_t(0600));
    RawClient client(path);
    EXPECT_EQ(client.ask("GET /health/live HTTP/1.1\r\nhost: whatever\r\n\r\n").body, "live");
    const auto again = server_->listen({.unix_path = path});
    ASSERT_FALSE(again.ok());
    EXPECT_NE(again.error().message.find("another program"), std::string::npos);
    const std::string file = folder_ + "/file";
    std::ofstream(file) << "mine";
    EXPECT_FALSE(server_->listen({.unix_path = file}).ok());
    EXPECT_TRUE(std::filesystem::exists(file));
    // One that nobody listens to any more.
    const std::string stale = folder_ + "/stale";
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::strncpy(at.sun_path, stale.c_str(), sizeof at.sun_path - 1);
    ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    ::close(fd);
    EXPECT_TRUE(server_->listen({.unix_path = stale}).ok());
    EXPECT_FALSE(server_->listen({.unix_path = folder_ + std::string(200, 'x')}).ok());
    server_->stop();
    EXPECT_FALSE(std::filesystem::exists(path));
}

// Risk: a port in use, or a name that means nothing, is told as something else, or not at all.
TEST_F(HttpPlane, AddressesThatCannotBeHad) {
    start();
    const auto taken = server_->listen({.host = "127.0.0.1", .port = port_});
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.error().kind, ErrorKind::resources);
    EXPECT_NE(taken.error().message.find("another program"), std::string::npos) << taken.error().message;
    const auto unknown = server_->listen({.host = "no.such.name.invalid", .port = 0});
    ASSERT_FALSE(unknown.ok());
    EXPECT_EQ(unknown.error().kind, ErrorKind::usage);
    EXPECT_TRUE(is_loopback("localhost"));
    EXPECT_TRUE(is_loopback("127.0.0.2"));
    EXPECT_TRUE(is_loopback("::1"));
    for (const char* host : {"0.0.0.0", "::", "192.168.0.1", "example.com", ""})
        EXPECT_FALSE(is_loopback(host));
}

// Risk: TLS does not work, old versions of it are spoken, or plain text on the same port is answered.
TEST_F(HttpPlane, Tls) {
    const std::string cert = folder_ + "/cert.pem", key = folder_ + "/key.pem", log = folder_ + "/log";
    ASSERT_EQ(std::system(
                  fmt::format("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -out {} "
                              "-keyout {} 2>{}",
                              cert, key, log)
                      .c_str()),
              0);
    HttpConfig config;
    config.tls = TlsFiles{cert, key};
    config.limits.head = Ms(500);
    config.limits.tick = Ms(50);
    start(std::move(config));
    const std::string client = fmt::format(
        "printf 'GET /health/live HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n' | "
        "openssl s_client "
        "-quiet -verify_return_error -CAfile {} -connect 127.0.0.1:{} ",
        cert, port_);
    const std::string good = output_of("(" + client + ") 2>>" + log);
    EXPECT_NE(good.find("HTTP/1.1 200 OK"), std::string::npos) << good;
    EXPECT_NE(good.find("live"), std::string::npos);
    EXPECT_EQ(output_of("(" + client + " -tls1_1 -cipher DEFAULT@SECLEVEL=0) 2>>" + log).find("HTTP/1.1"),
              std::string::npos);
    RawClient plain(port_);
    EXPECT_EQ(plain.ask(get("/health/live")).status, 0);
    RawClient silent(port_);
    EXPECT_EQ(silent.receive_all(Ms(3000)), "");
    EXPECT_TRUE(silent.ended());  // no handshake, no connection
    // Files that are none, or not a pair.
    std::ofstream(folder_ + "/none.pem") << "not a certificate";
    for (const TlsFiles& files : {TlsFiles{folder_ + "/none.pem", key}, TlsFiles{cert, folder_ + "/none.pem"},
                                  TlsFiles{folder_ + "/missing.pem", key}}) {
        HttpConfig bad;
        bad.tls = files;
        const auto refused = HttpServer::create(std::move(bad));
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().kind, ErrorKind::bad_input);
    }
}

// Risk: health checks die while many streams are open: each holds a thread, or every event looks at all of
// them.
TEST_F(HttpPlane, HealthAnswersWithAThousandOpenStreams) {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
    ASSERT_GT(files.rlim_cur, rlim_t(2200));
    HttpConfig config;
    config.queue = 2000;
    config.limits.keep_alive = Ms(1000);
    start(std::move(config));
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 1000; ++i) {
        clients.push_back(std::make_unique<RawClient>(port_));
        clients.back()->send(post("/v1/hold", "{}"));
    }
    ASSERT_TRUE(held(999));
    for (int i = 0; i < 1000; ++i) held(size_t(i))->start_stream("text/event-stream", ": alive\n\n");
    // Of three rounds the best one counts: a machine that is busy with other things is not what is tested.
    double p99 = 1e9;
    for (int round = 0; round < 3 && p99 >= 50; ++round) p99 = std::min(p99, health_p99_ms());
    RecordProperty("p99_ms", std::to_string(p99));
    EXPECT_LT(p99, 50);
    for (auto& client : clients) {
        EXPECT_NE(client->receive_until(": alive").find(": alive"), std::string::npos);
        if (HasFailure()) break;
    }
    clients.clear();
    EXPECT_TRUE(eventually([&] { return gone_ == 1000; }));
}

}  // namespace
}  // namespace sparkinfer
