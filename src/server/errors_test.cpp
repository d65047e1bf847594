#include "server/errors.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

// Risk: agents do not see that a conversation is too long, and go on without making it shorter.
TEST(Errors, ContextOverflowInTheWordsThatAgentsMatch) {
    ApiError error{400, "context_length_exceeded", "messages", "too long"};
    error.prompt_tokens = 9001;
    error.context = 8192;
    EXPECT_EQ(
        error_body("/v1/chat/completions", error),
        R"({"error":{"message":"This model's maximum context length is 8192 tokens. However, you requested 9001 )"
        R"(tokens in the messages. Please reduce the length of the messages.","type":"invalid_request_error",)"
        R"("param":"messages","code":"context_length_exceeded"}})");
    EXPECT_EQ(
        error_body("/v1/messages", error, "req_1"),
        R"({"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9001 tokens > )"
        R"(8192 maximum"},"request_id":"req_1"})");
}

// Risk: SDKs raise the wrong class, or retry what will never work.
TEST(Errors, EachStatusHasTheTypeThatItsProtocolKnows) {
    const struct {
        int status;
        const char *openai, *anthropic, *code;
    } rows[] = {{400, "invalid_request_error", "invalid_request_error", "null"},
                {401, "authentication_error", "authentication_error", "\"invalid_api_key\""},
                {404, "invalid_request_error", "not_found_error", "null"},
                {413, "invalid_request_error", "request_too_large", "null"},
                {429, "rate_limit_error", "rate_limit_error", "\"rate_limit_exceeded\""},
                {500, "server_error", "api_error", "\"internal_error\""},
                {503, "server_error", "overloaded_error", "\"overloaded\""}};
    for (const auto& row : rows) {
        const ApiError error{row.status, "", "", "m"};
        const std::string openai = error_body("/v1/responses", error);
        EXPECT_NE(openai.find(fmt::format("\"type\":\"{}\"", row.openai)), std::string::npos) << openai;
        EXPECT_NE(openai.find(fmt::format("\"code\":{}", row.code)), std::string::npos) << openai;
        const std::string anthropic = error_body("/v1/messages/count_tokens", error);
        EXPECT_NE(anthropic.find(fmt::format("\"type\":\"{}\"", row.anthropic)), std::string::npos)
            << anthropic;
    }
    EXPECT_NE(error_body("/v1/x", {500, "", "", "m"}, "req_9").find("req_9"), std::string::npos);
    EXPECT_FALSE(is_anthropic_path("/v1/messagesx"));
}

}  // namespace
}  // namespace sparkinfer
