#include "server/http_server.h"

#include "server/test_http.h"

namespace sparkinfer {
namespace {

using HttpServerTest = HttpFixture;

// Risk: the plain case does not work, or answers lack what clients and proxies read.
TEST_F(HttpServerTest, AnswersOneRequestAfterTheOther) {
    start();
    RawClient client(port_);
    for (int i = 0; i < 3; ++i) {
        const auto live = client.ask(get("/health/live", "x-request-id: me-1\r\n"));
        EXPECT_EQ(live.status, 200);
        EXPECT_EQ(live.body, "live");
        EXPECT_EQ(live.headers.at("x-request-id"), "me-1");
        EXPECT_EQ(live.headers.at("cache-control"), "no-cache");
        EXPECT_EQ(live.headers.at("x-content-type-options"), "nosniff");
        const std::string body = "{\"i\": " + std::to_string(i) + "}";
        EXPECT_EQ(client.ask(post("/v1/echo", body)).body, body);
    }
    EXPECT_EQ(client.ask(get("/v1/models/org%2Fname?x=%20")).body, "/v1/models/org/name?x=%20 ");
    const auto head = client.ask("HEAD /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.headers.at("content-length"), "4");
    EXPECT_EQ(client.ask(get("/nothing")).status, 404);
    const auto wrong = client.ask(post("/health/live", "{}"));
    EXPECT_EQ(wrong.status, 405);
    EXPECT_EQ(wrong.headers.at("allow"), "GET, HEAD, OPTIONS");
}

// Risk: old clients and health checks of proxies (HTTP/1.0, no host) get chunks, or no answer.
TEST_F(HttpServerTest, Http10) {
    start();
    RawClient check(port_);
    const auto live = check.ask("GET /health/live HTTP/1.0\r\n\r\n");
    EXPECT_EQ(live.status, 200);
    EXPECT_EQ(live.headers.at("connection"), "close");
    EXPECT_EQ(check.receive_all(Ms(2000)), "");
    EXPECT_TRUE(check.ended());
    RawClient kept(port_);
    for (int i = 0; i < 2; ++i)
        EXPECT_EQ(
            kept.ask("GET /health/live HTTP/1.0\r\nconnection: keep-alive\r\n\r\n").headers.at("connection"),
            "keep-alive");
    RawClient streaming(port_);
    streaming.send("POST /v1/hold HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}");
    const auto stream = held();
    ASSERT_TRUE(stream);
    stream->start_stream("text/event-stream", "");
    stream->write("data: 1\n\n");
    stream->finish();
    const auto answer = streaming.answer();
    EXPECT_EQ(answer.headers.count("transfer-encoding"), 0u);
    EXPECT_EQ(answer.body, "data: 1\n\n");
    EXPECT_TRUE(streaming.ended());
}

// Risk: a request that arrives in pieces is read otherwise than one that arrives whole.
TEST_F(HttpServerTest, ReadsARequestHoweverItIsSplit) {
    start();
    const std::string whole = post("/v1/echo", "{\"a\": [1, 2]}");
    const std::string chunked =
        "POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        "transfer-encoding: chunked\r\n\r\n5;x=y\r\n{\"a\":\r\n8\r\n [1, 2]}\r\n0\r\ntrailer: no\r\n\r\n";
    for (const std::string& request : {whole, chunked})
        for (size_t split = 1; split < request.size(); split += 3) {
            RawClient client(port_);
            client.send(request.substr(0, split));
            std::this_thread::sleep_for(Ms(1));
            client.send(request.substr(split));
            const auto answer = client.answer();
            ASSERT_EQ(answer.status, 200) << split;
            ASSERT_EQ(answer.body, "{\"a\": [1, 2]}") << split;
        }
}

// Risk: a stream that is silent before its first text, or whose end cannot be told from a cut.
TEST_F(HttpServerTest, StreamsWithSignsOfLife) {
    HttpConfig config;
    config.limits.keep_alive = Ms(50);
    config.limits.tick = Ms(20);
    start(config);
    RawClient client(port_);
    client.send(post("/v1/hold", "{}"));
    const auto stream = held();
    ASSERT_TRUE(stream);
    stream->start_stream("text/event-stream; charset=utf-8", ": keep-alive\n\n");
    EXPECT_NE(client.receive_until(": keep-alive\n\n").find("text/event-stream"), std::string::npos);
    stream->write("data: one\n\n");
    stream->write("data: two\n\n");
    stream->finish();
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("x-accel-buffering"), "no");
    EXPECT_NE(answer.body.find("data: one\n\ndata: two\n\n"), std::string::npos);
    EXPECT_EQ(client.ask(get("/health/live")).status, 200);  // the connection goes on
    EXPECT_EQ(gone_, 0);
}

// Risk: what is done every so often is just being done when all ends, waits once more, and the end never
// comes.
TEST(Net, EndsWhileSomethingIsDoneEveryMillisecond) {
    std::atomic<int> done = 0;
    for (int i = 0; i < 200; ++i) {
        const auto net = Net::create(2, std::nullopt).value();
        net->every(Ms(1), [&done] {
            ++done;
            std::this_thread::sleep_for(std::chrono::microseconds(700));
        });
        std::this_thread::sleep_for(std::chrono::microseconds(1500 + 10 * i));
        net->stop();
    }
    EXPECT_GT(done, 0);
}

}  // namespace
}  // namespace sparkinfer
