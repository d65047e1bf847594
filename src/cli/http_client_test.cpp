// What servers answer, byte by byte, and what a client makes of it.
#include "cli/http_client.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

// The body and "status", or the error, of an answer that comes in pieces of `burst` bytes and then ends.
std::string read_in(const std::string& text, size_t burst) {
    ClientResponse response;
    std::string body;
    for (size_t at = 0; at < text.size(); at += burst) {
        const Result<void> pushed = response.push(std::string_view(text).substr(at, burst), body);
        if (!pushed.ok()) return "error: " + pushed.error().message;
    }
    if (!response.whole())
        if (const Result<void> closed = response.closed(); !closed.ok())
            return "error: " + closed.error().message;
    return fmt::format("{} {} {}", response.status(), body, response.keeps_open() ? "open" : "closed");
}

std::string read(const std::string& text) {
    const std::string whole = read_in(text, text.size());
    for (size_t burst = 1; burst <= 8; ++burst) EXPECT_EQ(read_in(text, burst), whole) << text;
    return whole;
}

TEST(ClientResponse, ReadsEveryFormOfBody) {
    // Risk: a part of an answer is lost, or its framing is taken for text.
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), "200 hello open");
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\ntransfer-encoding: "
                   "Chunked\r\n\r\n5\r\nhel\r\n\r\nA;x=1\r\n0123456789\r\n0\r\n"
                   "Trailer: x\r\n\r\n"),
              "200 hel\r\n0123456789 open");
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nab"), "200 ab closed");
    EXPECT_EQ(read("HTTP/1.0 200 OK\r\n\r\nuntil the end"), "200 until the end closed");
    EXPECT_EQ(read("HTTP/1.1 204 No Content\r\n\r\n"), "204  open");
    EXPECT_EQ(read("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n"),
              "429  open");
}

TEST(ClientResponse, RefusesWhatIsNoHttp) {
    // Risk: figures are made of a broken answer.
    EXPECT_EQ(read("SSH-2.0-OpenSSH\r\n\r\n"),
              "error: the answer is no HTTP: its first line is 'SSH-2.0-OpenSSH'");
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
              "error: the answer is no HTTP: Content-Length is '-5'");
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
              "error: the answer is no HTTP: a chunk's size is 'xyz'");
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n"),
              "error: the answer is no HTTP: the end of a chunk is 'c'");
    EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
              "error: the server closed the connection in the middle of its answer");
    EXPECT_EQ(read(""), "error: the server closed the connection in the middle of its answer");
}

TEST(ClientEvents, ReadsTheDataOfEachEvent) {
    // Risk: keep-alive comments count as pieces of an answer, or an event that comes in two reads is lost.
    const std::string text = ": ping\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata:b\r\ndata: c\r\n\r\ndata: half";
    for (size_t burst = 1; burst <= text.size(); ++burst) {
        ClientEvents events;
        std::string seen;
        for (size_t at = 0; at < text.size(); at += burst)
            events.push(std::string_view(text).substr(at, burst), [&](std::string_view data) {
                seen += "[";
                seen += data;
                seen += "]";
            });
        EXPECT_EQ(seen, "[{\"a\": 1}][b\nc]");
    }
}

TEST(ParseUrl, TakesHostsPortsAndPaths) {
    // Risk: another server is measured than the one that was named.
    const auto parsed = [](const std::string& text) {
        const Result<Url> url = parse_url(text);
        if (!url.ok()) return url.error().message;
        const Url& u = url.value();
        return fmt::format("{}{} {} {}", u.tls ? "TLS " : "", u.host, u.port, u.path);
    };
    EXPECT_EQ(parsed("http://127.0.0.1:8080"), "127.0.0.1 8080 ");
    EXPECT_EQ(parsed("http://localhost/"), "localhost 80 ");
    EXPECT_EQ(parsed("http://h:1/a/b/"), "h 1 /a/b");
    EXPECT_EQ(parsed("http://[::1]:8080"), "::1 8080 ");
    EXPECT_EQ(parsed("https://h/a"), "TLS h 443 /a");
    EXPECT_EQ(parsed("https://h:8443"), "TLS h 8443 ");
    EXPECT_EQ(parsed("localhost:80"),
              "the URL is 'localhost:80', expected http:// or https://, then HOST[:PORT][/PATH]");
    EXPECT_EQ(parsed("http://h:0"), "the URL is 'http://h:0', expected a port from 1 to 65535 after ':'");
    EXPECT_EQ(parsed("http://[::1"), "the URL is 'http://[::1', expected a ']' after '['");
    EXPECT_EQ(parsed("http://:80"), "the URL is 'http://:80', expected a host");
}

TEST(HttpClient, RefusesTlsWithoutTrust) {
    // Risk: a key, or what is measured, goes to a server that nobody has looked at.
    HttpClient client(parse_url("https://127.0.0.1:1").value(), {});
    EXPECT_EQ(client.fetch({}).error().message,
              "the URL is of https://, expected http://: TLS is not spoken here");
}

TEST(TlsTrust, NeedsAuthorities) {
    // Risk: without a store of certificates everybody is believed, or nobody knows what is missing.
    constexpr const char* kNowhere[] = {"/nonexistent/a.crt", "/nonexistent/b.crt"};
    const auto missing = TlsTrust::open(std::nullopt, kNowhere);
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.error().kind, ErrorKind::bad_input);
    EXPECT_EQ(
        missing.error().message,
        "https: this system's certificates of authorities are not found (/nonexistent/a.crt and 1 other "
        "places); install the package ca-certificates, or name a PEM file with --tls-ca");
    const auto none = TlsTrust::open("/dev/null");
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().kind, ErrorKind::bad_input);
    EXPECT_TRUE(none.error().message.starts_with("/dev/null: no certificate in PEM form can be read: "))
        << none.error().message;
    EXPECT_EQ(TlsTrust::open("/nonexistent/c.crt").error().message,
              "/nonexistent/c.crt: cannot open the file: No such file or directory");
}

}  // namespace
}  // namespace sparkinfer
