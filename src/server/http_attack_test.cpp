// Clients that are broken, slow, greedy or hostile, on loopback. Also the battery of CI: a minute at most.
#include <fstream>
#include <random>

#include "core/json.h"
#include "server/test_http.h"

namespace sparkinfer {
namespace {

using HttpAttack = HttpFixture;

HttpConfig quick() {
    HttpConfig config;
    config.limits.head = config.limits.body_pause = config.limits.idle = Ms(300);
    config.limits.body = Ms(900);
    config.limits.write = Ms(400);
    config.limits.linger = Ms(200);
    config.limits.tick = Ms(50);
    return config;
}

int64_t resident_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
    return 0;
}

// Risk: what is malformed is answered with success, crashes, or poisons the next request on the connection.
TEST_F(HttpAttack, MalformedRequestsAreRefusedAndTheConnectionCloses) {
    start(quick());
    const std::string head =
        "POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    const std::string smuggled = "GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    const std::pair<std::string, int> cases[] = {
        {"\x16\x03\x01\x02\x01 tls?\r\n\r\n", 400},
        {"GET /health/live HTTP/1.1\nhost: localhost\n\n", 400},
        {"GET /health/live\r\n\r\n" + smuggled, 400},
        {head + "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, 400},
        {head + "content-length: 5\r\ncontent-length: 6\r\n\r\n{}   " + smuggled, 400},
        {head + "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + smuggled, 501},
        {head + "transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400},
        {head + "transfer-encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n", 400},
        {head + "transfer-encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", 400},
        {head + "transfer-encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n" + smuggled, 400},
        {head + "transfer-encoding: chunked\r\n\r\n0\r\ncontent-length: 5\r\n\r\n" + smuggled, 400},
        {head + "transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n", 400},
        {head + "transfer-encoding: chunked\r\n\r\nffffffffffffff0\r\n{}\r\n", 413},
        {head + "transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n", 413},
        {head + "content-length: 999999999999\r\n\r\n{}", 413},
        {"GET /" + std::string(20000, 'a') + " HTTP/1.1\r\nhost: localhost\r\n\r\n", 431},
        {"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + std::string(20000, 'a') + "\r\n\r\n", 431},
        {"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + std::string(20000, 'a'), 431},
        {head + "content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}" + smuggled, 415},
        {"POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: "
         "2\r\n\r\n{}" +
             smuggled,
         415},
    };
    for (const auto& [request, status] : cases) {
        RawClient client(port_);
        client.send(request);
        const auto answer = client.answer();
        EXPECT_EQ(answer.status, status) << request.substr(0, 200);
        EXPECT_EQ(answer.headers.count("connection"), 1u) << request.substr(0, 200);
        EXPECT_TRUE(parse_json(answer.body, "answer").ok()) << answer.body;
        EXPECT_EQ(client.receive_all(Ms(1000)), "")
            << request.substr(0, 200);  // nothing smuggled was answered
    }
    for (const RequestFacts& facts : told()) EXPECT_NE(facts.status, 200);
    RawClient after(port_);
    EXPECT_EQ(after.ask(get("/health/live")).status, 200);
}

// Risk: slow clients hold connections for ever (slow-loris): in a head, in a body, before any byte, in TLS.
TEST_F(HttpAttack, SlowClientsAreCutOff) {
    start(quick());
    RawClient in_head(port_), in_body(port_), dripping(port_), silent(port_);
    in_head.send("GET / HTTP/1.1\r\nhost: loc");
    in_body.send(post("/v1/echo", std::string(100, ' ')).substr(0, 150));
    dripping.send(
        "POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        "content-length: 100\r\n\r\n");
    std::thread drip([&] {
        for (int i = 0; i < 30 && dripping.send(" "); ++i) std::this_thread::sleep_for(Ms(100));
    });
    EXPECT_EQ(in_head.answer().status, 408);
    EXPECT_EQ(in_body.answer().status, 408);
    EXPECT_EQ(silent.receive_all(Ms(2000)), "");
    EXPECT_TRUE(silent.ended());
    EXPECT_EQ(dripping.answer().status, 408);  // each pause is short, the whole is long
    drip.join();
    EXPECT_TRUE(eventually([&] { return server_->load().connections == 0; }));
}

// Risk: a body at the limit is refused, one byte more is taken, or the refusal is lost to a reset while the
// client still sends.
TEST_F(HttpAttack, BodiesUpToTheLimit) {
    HttpConfig config = quick();
    config.limits.body_bytes = 1 << 20;
    config.limits.linger = Ms(2000);
    start(config);
    for (const size_t size : {size_t(1), size_t(65536), size_t(1) << 20}) {
        RawClient client(port_);
        EXPECT_EQ(client.ask(post("/v1/echo", std::string(size, ' '))).body.size(), size);
    }
    RawClient over(port_);
    over.send(post("/v1/echo", std::string((1 << 20) + 1, ' ')));
    EXPECT_EQ(over.answer().status, 413);
    // In chunks, without a length that says so.
    RawClient chunked(port_);
    chunked.send(
        "POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        "transfer-encoding: chunked\r\n\r\n");
    const std::string chunk = "10000\r\n" + std::string(65536, ' ') + "\r\n";
    for (int i = 0; i < 17 && chunked.send(chunk); ++i) {
    }
    EXPECT_EQ(chunked.answer().status, 413);
    // 100-continue: asked before the body is sent.
    RawClient asking(port_);
    asking.send(
        "POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        "expect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    EXPECT_EQ(asking.answer().status, 100);
    EXPECT_EQ(asking.ask("{}").body, "{}");
}

// Risk: pipelined requests are answered out of order, mixed up, or read without a limit.
TEST_F(HttpAttack, PipelinedRequestsAreAnsweredInOrder) {
    start();
    RawClient client(port_);
    std::string all;
    for (int i = 0; i < 50; ++i) all += post("/v1/echo", fmt::format("[{}]", i)) + get("/health/live");
    std::thread sender([&] { client.send(all); });
    for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(client.answer().body, fmt::format("[{}]", i));
        EXPECT_EQ(client.answer().body, "live");
    }
    sender.join();
    // Behind a stream that is still written, further requests wait; more than a little is not even read.
    RawClient waiting(port_);
    waiting.send(post("/v1/hold", "{}") + get("/health/live"));
    const auto stream = held();
    stream->start_stream("text/event-stream", "");
    stream->write("data: x\n\n");
    EXPECT_EQ(waiting.receive_until("data: x\n\n").find("live"), std::string::npos);
    stream->finish();
    EXPECT_EQ(waiting.answer().body, "data: x\n\n");
    EXPECT_EQ(waiting.answer().body, "live");
}

// Risk: a client that is gone is not noticed while its answer is computed, and a slot goes on for nobody.
TEST_F(HttpAttack, GoneClientsAreNoticedInEveryPhase) {
    start();
    {
        RawClient before_anything(port_);
        before_anything.send(post("/v1/hold", "{}"));
        ASSERT_TRUE(held(0));
    }
    EXPECT_TRUE(eventually([&] { return gone_ == 1; }));
    {
        RawClient while_streaming(port_);
        while_streaming.send(post("/v1/hold", "{}"));
        ASSERT_TRUE(held(1));
        held(1)->start_stream("text/event-stream", ": x\n\n");
        held(1)->write("data: x\n\n");
        while_streaming.receive_until("data: x");
    }
    EXPECT_TRUE(eventually([&] { return gone_ == 2; }));
    {
        RawClient with_reset(port_);
        with_reset.send(post("/v1/hold", "{}"));
        ASSERT_TRUE(held(2));
        with_reset.reset();
    }
    EXPECT_TRUE(eventually([&] { return gone_ == 3; }));
    for (size_t i = 0; i < 3; ++i) {  // has no effect, and the news come at once to who asks late
        held(i)->write("data: late\n\n");
        held(i)->finish();
        held(i)->send(200, "text/plain", "late", {});
        bool heard = false;
        held(i)->on_gone([&] { heard = true; });
        EXPECT_TRUE(heard);
    }
    EXPECT_TRUE(eventually([&] { return told().size() == 3; }));
    for (const RequestFacts& facts : told()) EXPECT_TRUE(facts.gone);
}

// Risk: a client that does not read lets memory grow, or holds its answer's slot for ever.
TEST_F(HttpAttack, SlowReadersAreBoundedAndCutOff) {
    HttpConfig config = quick();
    config.limits.unread_bytes = 1 << 20;
    start(config);
    RawClient reader(port_, 4096);
    reader.send(post("/v1/hold", "{}"));
    const auto stream = held();
    stream->start_stream("text/event-stream", "");
    const int64_t before = resident_kib();
    const std::string event(16384, 'x');
    for (int i = 0; i < 4000 && gone_ == 0; ++i) stream->write(event);  // 64 MB at most
    EXPECT_EQ(gone_, 1);
    EXPECT_LT(resident_kib() - before, 16 * 1024);
    // One that reads nothing of little is cut off by time.
    RawClient still(port_, 2048);
    still.send(post("/v1/hold", "{}"));
    const auto other = held(1);
    other->start_stream("text/event-stream", "");
    for (int i = 0; i < 50; ++i) other->write(event);
    EXPECT_TRUE(eventually([&] { return gone_ == 2; }));
}

// Risk: clients that read slowly but steadily are cut off, or bytes are lost or reordered on the way.
TEST_F(HttpAttack, BackPressureLosesNothing) {
    start();
    RawClient reader(port_, 8192);
    reader.send(post("/v1/hold", "{}"));
    const auto stream = held();
    stream->start_stream("text/plain", "");
    std::string expected;
    std::thread writer([&] {
        for (int i = 0; i < 4000; ++i) {
            const std::string line = fmt::format("{:08} {}\n", i, std::string(size_t(i % 200), 'y'));
            expected += line;
            stream->write(line);
        }
        stream->finish();
    });
    const auto answer = reader.answer();
    writer.join();
    EXPECT_EQ(answer.body, expected);
    EXPECT_EQ(gone_, 0);
}

// Risk: an answer that nobody gives leaves the client waiting for ever; a part is taken for the whole.
TEST_F(HttpAttack, AbandonedRequestsEnd) {
    start();
    RawClient client(port_);
    const auto answer = client.ask(post("/v1/drop", "{}"));
    EXPECT_EQ(answer.status, 500);
    EXPECT_NE(answer.body.find("internal_error"), std::string::npos);
    client.send(post("/v1/hold", "{}"));
    auto stream = held();
    stream->start_stream("text/plain", "");
    stream->write("part");
    EXPECT_NE(client.receive_until("part").find("part"), std::string::npos);
    {
        const std::lock_guard lock(mutex_);
        held_.clear();
    }
    stream.reset();
    const std::string rest = client.receive_all(Ms(2000));
    EXPECT_TRUE(client.ended());
    EXPECT_EQ(rest.find("\r\n0\r\n"), std::string::npos);
}

// Risk: clients that come, send a part of anything and go bring the server down or leave something behind.
TEST_F(HttpAttack, RandomDisconnectsLeaveNothingBehind) {
    start(quick());
    std::mt19937 random(7);
    const std::string requests[] = {post("/v1/echo", std::string(3000, ' ')), post("/v1/hold", "{}"),
                                    get("/health/live") + get("/nothing"),
                                    post("/v1/drop", "{}") + post("/v1/echo", "[]")};
    for (int i = 0; i < 400; ++i) {
        RawClient client(port_);
        const std::string& request = requests[random() % 4];
        client.send(std::string_view(request).substr(0, random() % (request.size() + 1)));
        if (random() % 3 == 0) client.receive(Ms(int(random() % 5)));
        if (random() % 3 == 0) client.half_close();
        if (random() % 2) client.reset();
    }
    {
        const std::lock_guard lock(mutex_);
        for (const auto& responder : held_) responder->send(200, "text/plain", "at last", {});
        held_.clear();
    }
    EXPECT_TRUE(eventually([&] {
        const auto load = server_->load();
        const std::lock_guard lock(mutex_);
        held_.clear();
        return load.connections == 0 && load.requests == 0;
    })) << server_->load().connections
        << " connections, " << server_->load().requests << " requests";
    RawClient after(port_);
    EXPECT_EQ(after.ask(get("/health/live")).status, 200);
}

// Risk: one client takes all connections.
TEST_F(HttpAttack, ConnectionsAreCapped) {
    HttpConfig config;
    config.connections_per_address = 5;
    start(config);
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 5; ++i) {
        clients.push_back(std::make_unique<RawClient>(port_));
        EXPECT_EQ(clients.back()->ask(get("/health/live")).status, 200);
    }
    RawClient sixth(port_);
    sixth.send(get("/health/live"));
    EXPECT_EQ(sixth.answer().status, 0);
    EXPECT_EQ(server_->load().refused_connections, 1u);
    clients.pop_back();
    EXPECT_TRUE(eventually([&] { return server_->load().connections == 4; }));
    RawClient seventh(port_);
    EXPECT_EQ(seventh.ask(get("/health/live")).status, 200);
}

// Risk: when all workers are busy, requests pile up without a limit, and health checks hang behind them.
TEST_F(HttpAttack, AFullQueueSaysSo) {
    HttpConfig config;
    config.workers = 1;
    config.queue = 2;
    start(config);
    std::mutex stop;
    auto all = routes();
    all.push_back({"POST", "/v1/slow", Route::Access::key,
                   [&](const HttpRequest&, const std::shared_ptr<Responder>& r) {
                       const std::lock_guard lock(stop);
                       r->send(200, "text/plain", "done", {});
                   }});
    server_->set_routes(all);
    stop.lock();
    std::vector<std::unique_ptr<RawClient>> clients;
    int refused = 0;
    for (int i = 0; i < 6; ++i) {
        clients.push_back(std::make_unique<RawClient>(port_));
        clients.back()->send(post("/v1/slow", "{}"));
        if (const auto answer = clients.back()->answer(false, Ms(200)); answer.status) {
            EXPECT_EQ(answer.status, 429);
            EXPECT_EQ(answer.headers.count("retry-after"), 1u);
            EXPECT_NE(answer.body.find("rate_limit_exceeded"), std::string::npos);
            ++refused;
        }
    }
    EXPECT_EQ(refused, 3);  // one runs, two wait
    RawClient health(port_);
    EXPECT_EQ(health.ask(get("/health/live")).status, 200);
    stop.unlock();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(clients[size_t(i)]->answer().status, 200);
}

}  // namespace
}  // namespace sparkinfer
