#include "server/http_head.h"

#include <gtest/gtest.h>

#include <random>

namespace sparkinfer {
namespace {

int status_of(const std::string& head) {
    const auto wrong = check_head(head);
    return wrong ? wrong->status : 200;
}

// Risk: a proxy in front reads another request out of the same bytes (smuggling), or a lenient parser behind
// takes what no client means.
TEST(HttpHead, WhatTwoParsersMayReadDifferentlyIsRefused) {
    const std::string ok = "POST /x HTTP/1.1\r\nhost: a\r\n";
    const struct {
        std::string head;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\r\nhost: a\r\n\r\n", 200},
        {"GET / HTTP/1.0\r\n\r\n", 200},
        {"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", 200},
        {ok + "content-length: 3\r\n\r\n", 200},
        {ok + "transfer-encoding: chunked\r\n\r\n", 200},
        {ok + "Transfer-Encoding: CHUNKED\r\n\r\n", 200},
        // Two lengths of one body.
        {ok + "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400},
        {ok + "transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n", 400},
        {ok + "content-length: 3\r\ncontent-length: 3\r\n\r\n", 400},
        {ok + "content-length: 3\r\ncontent-length: 4\r\n\r\n", 400},
        {ok + "content-length: 3, 3\r\n\r\n", 400},
        {ok + "content-length: +3\r\n\r\n", 400},
        {ok + "content-length: -3\r\n\r\n", 400},
        {ok + "content-length: 0x3\r\n\r\n", 400},
        {ok + "content-length: 3 4\r\n\r\n", 400},
        {ok + "content-length: \r\n\r\n", 400},
        {ok + "content-length: 99999999999999999999\r\n\r\n", 400},
        {ok + "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", 400},
        {ok + "transfer-encoding: identity\r\n\r\n", 501},
        {ok + "transfer-encoding: gzip, chunked\r\n\r\n", 501},
        {ok + "transfer-encoding: chunked, identity\r\n\r\n", 501},
        {ok + "transfer-encoding: xchunked\r\n\r\n", 501},
        {ok + "transfer-encoding: \"chunked\"\r\n\r\n", 501},
        {ok + "transfer-encoding: chunked;x\r\n\r\n", 501},
        {"POST /x HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", 400},
        // Names and lines.
        {ok + "content-length : 3\r\n\r\n", 400},
        {ok + " content-length: 3\r\n\r\n", 400},
        {ok + "a: b\r\n folded\r\n\r\n", 400},
        {ok + "a: b\r\n\tfolded\r\n\r\n", 400},
        {ok + "a b: c\r\n\r\n", 400},
        {ok + ": c\r\n\r\n", 400},
        {ok + "no colon\r\n\r\n", 400},
        {ok + "a: b\rc\r\n\r\n", 400},
        {ok + "a: b\nc: d\r\n\r\n", 400},
        {ok + std::string("a: b\0c\r\n\r\n", 10), 400},
        {ok + "a: b\x01\r\n\r\n", 400},
        {ok + "a\x80: b\r\n\r\n", 400},
        {ok + "a: caf\xc3\xa9\r\n\r\n", 200},
        // The host.
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", 400},
        // The request line.
        {"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 505},
        {"GET / HTTP/1.2\r\nhost: a\r\n\r\n", 505},
        {"GET / http/1.1\r\nhost: a\r\n\r\n", 400},
        {"GET /\r\nhost: a\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"GET / x HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"GET * HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"GET /#x HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"GET /\xc3\xa9 HTTP/1.1\r\nhost: a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nhost: a\r\n", 400},
        {"\r\n", 400},
        {"", 400},
    };
    for (const auto& one : cases) EXPECT_EQ(status_of(one.head), one.status) << one.head;
}

// Risk: a head of a thousand small fields is a thousand times the work of one.
TEST(HttpHead, FieldsAreCounted) {
    std::string many = "GET / HTTP/1.1\r\nhost: a\r\n";
    for (int i = 0; i < 99; ++i) many += "a: b\r\n";
    EXPECT_EQ(status_of(many + "\r\n"), 200);
    many += "a: b\r\n";
    EXPECT_EQ(status_of(many + "\r\n"), 431);
}

// Risk: some bytes make the reader read beyond its text.
TEST(HttpHead, AnyBytesHaveAnAnswer) {
    std::mt19937 random(5);
    const std::string good = "POST /a?b HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nx: y\r\n\r\n";
    for (int i = 0; i < 20000; ++i) {
        std::string head = good;
        for (int n = int(random() % 4); n >= 0; --n) {
            const size_t at = random() % head.size();
            if (random() % 3 == 0)
                head.erase(at, random() % 5);
            else
                head[at] = "\r\n :\t\0Ax1,"[random() % 10];
            if (head.empty()) head.push_back('\r');
        }
        const int status = status_of(head);
        ASSERT_TRUE(status == 200 || status == 400 || status == 431 || status == 501 || status == 505)
            << head;
    }
}

// Risk: a path means one route to the table and another to the handler.
TEST(HttpHead, TargetsAreReadOnce) {
    const auto target = parse_target("/v1/models/a%2Fb%20c?x=%41");
    ASSERT_TRUE(target.ok());
    EXPECT_EQ(target.value().path, "/v1/models/a/b c");
    EXPECT_EQ(target.value().segments, (std::vector<std::string>{"v1", "models", "a/b c"}));
    EXPECT_EQ(target.value().query, "x=%41");
    EXPECT_EQ(parse_target("/").value().segments, std::vector<std::string>{""});
    EXPECT_EQ(parse_target("//x").value().segments, (std::vector<std::string>{"", "x"}));
    EXPECT_EQ(parse_target("/%2e%2e/x").value().path, "/../x");  // no files are served by path
    for (const char* bad : {"/%", "/%1", "/%zz", "/%00", "/%0d%0a", "/%7f", "/%ff", "/%c3%28"}) {
        ASSERT_FALSE(parse_target(bad).ok()) << bad;
        EXPECT_EQ(parse_target(bad).error().status, 400);
    }
}

}  // namespace
}  // namespace sparkinfer
