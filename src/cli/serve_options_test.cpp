#include <gtest/gtest.h>

#include "cli/option_values.h"
#include "cli/options.h"

namespace sparkinfer {
namespace {

Result<ServeOptions> serve(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"serve", "m.gguf"});
    TRY(const auto parsed, parse_command_line(arguments));
    return std::get<ServeOptions>(std::get<Command>(parsed));
}
std::string trouble(const std::vector<std::string>& arguments) {
    const auto parsed = serve(arguments);
    if (parsed.ok()) return "nothing";
    EXPECT_EQ(parsed.error().kind, ErrorKind::usage);
    return parsed.error().message;
}

// Risk: a server that the whole network reaches asks nobody who they are.
TEST(ServeOptions, OtherMachinesNeedAKey) {
    for (const char* host : {"0.0.0.0", "::", "192.168.1.2", "box.example"}) {
        EXPECT_NE(trouble({"--host", host}).find("--api-key-file"), std::string::npos) << host;
        EXPECT_NE(trouble({"--host", "127.0.0.1", "--host", host}).find(host), std::string::npos);
        EXPECT_EQ(trouble({"--host", host, "--insecure"}), "nothing");
        EXPECT_EQ(trouble({"--host", host, "--api-key-file", "keys"}), "nothing");
    }
    for (const char* host : {"127.0.0.1", "::1", "localhost"})
        EXPECT_EQ(trouble({"--host", host}), "nothing");
}

// Risk: a flag is taken for another, or a value that cannot be meant is taken.
TEST(ServeOptions, ReadsItsFlags) {
    const auto plain = serve({});
    ASSERT_TRUE(plain.ok());
    EXPECT_EQ(plain.value().port, 8080);
    EXPECT_FALSE(plain.value().context || plain.value().slots || plain.value().kv_memory);
    const auto full =
        serve({"--port", "0", "--ctx", "4096", "--slots", "4", "--kv-memory", "2G", "--alias", "a", "--alias",
               "b", "--unix", "s", "--grace", "5", "--log-format", "json", "--deterministic"});
    ASSERT_TRUE(full.ok()) << full.error().message;
    EXPECT_EQ(full.value().kv_memory, int64_t(2) << 30);
    EXPECT_EQ(full.value().aliases, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(full.value().log_format, LogFormat::json);
    EXPECT_EQ(trouble({"--port", "70000"}), "--port is '70000', expected a whole number from 0 to 65535");
    EXPECT_EQ(trouble({"--chunk", "100"}), "--chunk is '100', expected a multiple of 64");
    EXPECT_EQ(trouble({"--tls-cert", "c"}),
              "--tls-cert and --tls-key belong together, only --tls-cert is given");
    EXPECT_EQ(trouble({"--log-format", "xml"}), "--log-format is 'xml', expected text or json");
    EXPECT_EQ(trouble({"--alias", ""}), "--alias is empty, expected a text");
    EXPECT_NE(trouble({"--slots", "0"}), "nothing");
    EXPECT_NE(trouble({"--unix", ""}), "nothing");
    EXPECT_NE(trouble({"--host", ""}), "nothing");
}

// Risk: gigabytes are taken for bytes, or a number too large wraps round.
TEST(ServeOptions, Bytes) {
    EXPECT_EQ(parse_bytes("--x", "1000").value(), 1000);
    EXPECT_EQ(parse_bytes("--x", "4K").value(), 4096);
    EXPECT_EQ(parse_bytes("--x", "3M").value(), 3 << 20);
    EXPECT_EQ(parse_bytes("--x", "8G").value(), int64_t(8) << 30);
    EXPECT_EQ(parse_bytes("--x", "1T").value(), int64_t(1) << 40);
    for (const char* bad : {"", "G", "-1", "1.5G", "1GB", "1 G", "9223372036854775807", "9999999T", "x"})
        EXPECT_FALSE(parse_bytes("--x", bad).ok()) << bad;
}

}  // namespace
}  // namespace sparkinfer
