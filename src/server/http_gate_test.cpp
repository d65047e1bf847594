#include "server/http_gate.h"

#include <gtest/gtest.h>

#include <map>

#include "server/http_head.h"

namespace sparkinfer {
namespace {

void nothing(const HttpRequest&, const std::shared_ptr<Responder>&) {}

GateRules rules() {
    GateRules rules;
    rules.table = std::make_shared<const RouteTable>(std::vector<Route>{
        {"GET", "/", Route::Access::open, nothing, true},
        {"GET", "/health/live", Route::Access::open, nothing, true},
        {"GET", "/metrics", Route::Access::key, nothing, true},
        {"POST", "/v1/chat/completions", Route::Access::key, nothing},
        {"GET", "/v1/models", Route::Access::key, nothing},
        {"GET", "/v1/models/{id}", Route::Access::key, nothing},
        {"DELETE", "/v1/models/{id}", Route::Access::key, nothing},
        {"POST", "/v1/models/special", Route::Access::key, nothing},
    });
    rules.machine_name = "box";
    return rules;
}

struct Asked {
    std::string method = "GET", path = "/";
    std::vector<std::pair<std::string, std::string>> headers = {};
    bool local = false;
};
Verdict ask(const GateRules& rules, const Asked& asked, HttpRequest* filled = nullptr) {
    HttpRequest request;
    request.method = asked.method;
    request.headers = asked.headers;
    if (request.header("host").empty()) request.headers.emplace_back("host", "localhost:8080");
    const auto target = parse_target(asked.path);
    request.path = target.value().path;
    Verdict verdict = admit(rules, request, target.value().segments, asked.local);
    if (filled) *filled = request;
    return verdict;
}
int status(const GateRules& rules, const Asked& asked) {
    const Verdict verdict = ask(rules, asked);
    if (verdict.refused) return verdict.refused->status;
    return verdict.preflight ? 204 : 200;
}
std::pair<std::string, std::string> json() { return {"content-type", "application/json"}; }
std::pair<std::string, std::string> length() { return {"content-length", "2"}; }

// Risk: a route is open that nobody meant to open; every route and every unknown path is asked without a key.
TEST(HttpGate, WithoutAKeyOnlyPublicRoutesAnswer) {
    GateRules with = rules();
    with.keys = KeyRing::parse("secret-key-one\nsecret-key-two\n", "keys").value();
    for (const char* method : {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"})
        for (const char* path :
             {"/metrics", "/v1/chat/completions", "/v1/models", "/v1/models/x", "/v1", "/nothing",
              "/health/../metrics", "//metrics", "/METRICS", "/metrics/", "/dashboard/data"})
            EXPECT_EQ(status(with, {method, path, {json(), length()}}), 401) << method << path;
    EXPECT_EQ(status(with, {"GET", "/"}), 200);
    EXPECT_EQ(status(with, {"GET", "/health/live"}), 200);
    EXPECT_EQ(status(with, {"POST", "/health/live"}), 405);
    for (const auto& shown :
         std::vector<std::pair<std::string, std::string>>{{"authorization", "Bearer secret-key-two"},
                                                          {"authorization", "bearer  secret-key-two "},
                                                          {"x-api-key", "secret-key-two"}}) {
        HttpRequest request;
        EXPECT_FALSE(ask(with, {"GET", "/metrics", {shown}}, &request).refused) << shown.second;
        EXPECT_EQ(request.key, "key-2");
    }
    for (const auto& shown :
         std::vector<std::pair<std::string, std::string>>{{"authorization", "Bearer secret-key-tw"},
                                                          {"authorization", "Bearer secret-key-twoo"},
                                                          {"authorization", "Bearer "},
                                                          {"authorization", "secret-key-two"},
                                                          {"authorization", "Basic secret-key-two"},
                                                          {"x-api-key", "SECRET-KEY-TWO"},
                                                          {"cookie", "secret-key-two"}})
        EXPECT_EQ(status(with, {"GET", "/metrics", {shown}}), 401) << shown.second;
}

// Risk: any web page drives a local server: by its own name (DNS rebinding), by a form, from a null origin.
TEST(HttpGate, WebPagesOfOthersGetNothing) {
    const GateRules plain = rules();
    for (const char* host : {"localhost", "LOCALHOST:8080", "127.0.0.1:8080", "192.168.1.7", "[::1]:8080",
                             "[::1]", "box", "box:8080", "localhost."})
        EXPECT_EQ(status(plain, {"GET", "/", {{"host", host}}}), 200) << host;
    for (const char* host : {"evil.example", "evil.example:8080", "localhost.evil.example",
                             "127.0.0.1.evil.example", "1.2.3.4.5", "0x7f.1", "", "a:b:c"})
        EXPECT_EQ(status(plain, {"GET", "/", {{"host", *host ? host : "."}}}), 403) << host;
    for (const char* origin : {"http://localhost:8080", "http://LOCALHOST:8080"})
        EXPECT_EQ(status(plain, {"GET", "/v1/models", {{"origin", origin}}}), 200) << origin;
    for (const char* origin : {"null", "http://evil.example", "http://localhost:8081", "http://localhost",
                               "https://localhost.evil.example:8080", "file://", "localhost:8080"})
        EXPECT_EQ(status(plain, {"GET", "/v1/models", {{"origin", origin}}}), 403) << origin;
    EXPECT_EQ(status(plain, {"GET", "/", {{"host", "box"}, {"origin", "https://box:443"}}}), 200);
    const auto chat = [&](const char* type) {
        return status(plain, {"POST", "/v1/chat/completions", {{"content-type", type}, length()}});
    };
    EXPECT_EQ(chat("application/json"), 200);
    EXPECT_EQ(chat("Application/JSON; charset=utf-8"), 200);
    for (const char* type :
         {"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
          "text/plain; application/json", "application/jsonx"})
        EXPECT_EQ(chat(type), 415) << type;
    EXPECT_EQ(status(plain, {"POST", "/v1/chat/completions", {{"transfer-encoding", "chunked"}}}), 415);
    EXPECT_EQ(
        status(plain, {"POST", "/v1/chat/completions", {json(), length(), {"content-encoding", "zstd"}}}),
        415);
    EXPECT_EQ(status(plain, {"GET", "/", {{"host", "any.example"}}, /*local=*/true}), 200);
    GateRules named = rules();
    named.allowed_hosts = {"ai.example"};
    EXPECT_EQ(status(named, {"GET", "/", {{"host", "AI.example:443"}}}), 200);
    EXPECT_EQ(status(named, {"GET", "/", {{"host", "x.ai.example"}}}), 403);
}

// Risk: pages that are allowed cannot read the answer, or those that are not can.
TEST(HttpGate, CrossOriginHeadersAreForThoseAllowed) {
    GateRules cors = rules();
    cors.cors_origins = {"https://app.example"};
    cors.keys = KeyRing::parse("secret-key-one", "keys").value();
    const Verdict preflight =
        ask(cors, {"OPTIONS",
                   "/v1/chat/completions",
                   {{"origin", "https://app.example"},
                    {"access-control-request-method", "POST"},
                    {"access-control-request-headers", "authorization, content-type"}}});
    EXPECT_TRUE(preflight.preflight);
    const std::map<std::string, std::string> headers(preflight.headers.begin(), preflight.headers.end());
    EXPECT_EQ(headers.at("access-control-allow-origin"), "https://app.example");
    EXPECT_EQ(headers.at("access-control-allow-headers"), "authorization, content-type");
    EXPECT_EQ(status(cors, {"OPTIONS",
                            "/v1/chat/completions",
                            {{"origin", "https://evil.example"}, {"access-control-request-method", "POST"}}}),
              403);
    EXPECT_EQ(status(cors, {"GET", "/metrics", {{"origin", "https://app.example"}}}),
              401);  // still needs a key
    cors.cors_origins = {"*"};
    EXPECT_EQ(status(cors, {"GET", "/", {{"origin", "https://any.example"}}}), 200);
    EXPECT_EQ(status(cors, {"GET", "/", {{"origin", "null"}}}), 403);
}

// Risk: work is taken on before the model is there or after the end was announced; or health hides it.
TEST(HttpGate, WhatNeedsTheModelWaitsForIt) {
    for (const auto& [state, code] : {std::pair{ServerState::loading, "model_loading"},
                                      std::pair{ServerState::draining, "shutting_down"}}) {
        GateRules not_ready = rules();
        not_ready.state = state;
        const Verdict refused = ask(not_ready, {"GET", "/v1/models"});
        ASSERT_TRUE(refused.refused);
        EXPECT_EQ(refused.refused->status, 503);
        EXPECT_EQ(refused.refused->code, code);
        EXPECT_GT(refused.refused->retry_after_s, 0);
        EXPECT_EQ(status(not_ready, {"GET", "/v1/what"}), 503);  // not known yet
        EXPECT_EQ(status(not_ready, {"GET", "/health/live"}), 200);
        EXPECT_EQ(status(not_ready, {"GET", "/metrics"}), 200);
    }
}

// Risk: exact paths and names are mixed up; HEAD, OPTIONS and wrong methods.
TEST(HttpGate, RoutesAreFoundByPathAndMethod) {
    const GateRules plain = rules();
    EXPECT_EQ(ask(plain, {"POST", "/v1/models/special"}).route->path, "/v1/models/special");
    EXPECT_EQ(ask(plain, {"GET", "/v1/models/other"}).route->path, "/v1/models/{id}");
    EXPECT_EQ(ask(plain, {"HEAD", "/v1/models/a%2Fb"}).route->method, "GET");
    EXPECT_EQ(status(plain, {"GET", "/v1/models/"}), 404);
    EXPECT_EQ(status(plain, {"GET", "/v1/models/a/b"}), 404);
    const Verdict wrong = ask(plain, {"PUT", "/v1/models/x"});
    EXPECT_EQ(wrong.refused->status, 405);
    EXPECT_EQ(wrong.headers.back().second, "GET, HEAD, DELETE, OPTIONS");
    EXPECT_EQ(status(plain, {"OPTIONS", "/v1/models/x"}), 204);
}

// Risk: a key file is read otherwise than it is written, or a bad one opens the server.
TEST(Keys, AFileHoldsOneKeyOrHashALine) {
    const auto ring = KeyRing::parse(
        "# comment\n\n  first-key-123 \r\n"
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n"
        "third-key-123",
        "keys");
    ASSERT_TRUE(ring.ok()) << ring.error().message;
    EXPECT_EQ(ring.value().size(), 3u);
    EXPECT_EQ(ring.value().find("first-key-123"), "key-1");
    EXPECT_EQ(ring.value().find("test"), "key-2");  // whose SHA-256 that is
    EXPECT_EQ(ring.value().find("third-key-123"), "key-3");
    EXPECT_FALSE(ring.value().find(""));
    EXPECT_FALSE(ring.value().find("# comment"));
    EXPECT_FALSE(
        ring.value().find("sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"));
    for (const char* bad : {"", "\n# only\n", "short", "two words here", "sha256:abc", "key\x01with-control",
                            "sha256:zz86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}) {
        const auto wrong = KeyRing::parse(bad, "keys");
        ASSERT_FALSE(wrong.ok()) << bad;
        const std::string& message = wrong.error().message;
        const bool of_a_line = *bad && *bad != '\n';
        EXPECT_EQ(message.find("keys, line 1") != std::string::npos, of_a_line) << message;
        EXPECT_EQ(message.find("short"), std::string::npos) << "the key itself";
    }
}

}  // namespace
}  // namespace sparkinfer
