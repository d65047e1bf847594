#include "cli/connect.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/json.h"

namespace sparkinfer {
namespace {

namespace fs = std::filesystem;

const ServerAccess kServer{"http://127.0.0.1:8080", "qwen-\"x\"", "secret", 0};

std::string config(AgentClient client, const std::string& existing, const ServerAccess& server = kServer) {
    const auto text = agent_config(client, server, existing);
    EXPECT_TRUE(text.ok()) << (text.ok() ? "" : text.error().message);
    return text.ok() ? text.value() : "";
}
std::string trouble(AgentClient client, const std::string& existing) {
    const auto text = agent_config(client, kServer, existing);
    return text.ok() ? "nothing" : text.error().message;
}
std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}
std::string field(const std::string& text, const std::string& pointer) {
    const auto json = parse_json(text, "test");
    EXPECT_TRUE(json.ok()) << text;
    const Json* at = json.ok() ? &json.value() : nullptr;
    std::stringstream path(pointer);
    for (std::string key; at && std::getline(path, key, '/');) {
        if (key.empty()) continue;
        if (at->is_array())
            at = std::stoul(key) < at->get_array().size() ? &at->get_array()[std::stoul(key)] : nullptr;
        else
            at = at->is_object() ? json_find(at->get_object(), key) : nullptr;
    }
    return at ? to_json(*at) : "missing";
}

// Risk: the user's own settings are lost.
TEST(Connect, JsonKeepsEverythingElse) {
    const std::string claude =
        config(AgentClient::claude, R"({"permissions":{"allow":["Bash"]},"env":{"A":"1",)"
                                    R"("ANTHROPIC_BASE_URL":"https://old"}})");
    EXPECT_EQ(field(claude, "permissions/allow/0"), "\"Bash\"");
    EXPECT_EQ(field(claude, "env/A"), "\"1\"");
    EXPECT_EQ(field(claude, "env/ANTHROPIC_BASE_URL"), "\"http://127.0.0.1:8080\"");
    EXPECT_EQ(field(claude, "env/ANTHROPIC_AUTH_TOKEN"), "\"secret\"");
    EXPECT_EQ(field(claude, "env/ANTHROPIC_MODEL"), R"("qwen-\"x\"")");

    const std::string opencode =
        config(AgentClient::opencode,
               R"({"theme":"x","provider":{"other":{"a":1},"sparkinfer":{"models":{"old":{}}}}})");
    EXPECT_EQ(field(opencode, "theme"), "\"x\"");
    EXPECT_EQ(field(opencode, "provider/other/a"), "1");
    EXPECT_EQ(field(opencode, "provider/sparkinfer/options/baseURL"), "\"http://127.0.0.1:8080/v1\"");
    EXPECT_EQ(field(opencode, "provider/sparkinfer/models/old"), "{}");

    const std::string qwen = config(
        AgentClient::qwen, R"({"modelProviders":{"openai":[{"id":"a","envKey":"A"},{"id":"b","envKey":)"
                           R"("SPARKINFER_API_KEY"}],"gemini":[]},"security":{"auth":{"x":1}}})");
    EXPECT_EQ(field(qwen, "modelProviders/openai/0/baseUrl"), "\"http://127.0.0.1:8080/v1\"");
    EXPECT_EQ(field(qwen, "modelProviders/openai/1/id"), "\"a\"");
    EXPECT_EQ(field(qwen, "modelProviders/openai/2"), "missing");
    EXPECT_EQ(field(qwen, "modelProviders/gemini"), "[]");
    EXPECT_EQ(field(qwen, "security/auth/x"), "1");
}

// Risk: every run adds to the file, or a second one finds its own work unreadable.
TEST(Connect, TwiceIsOnce) {
    for (const AgentClient client : {AgentClient::claude, AgentClient::codex, AgentClient::opencode,
                                     AgentClient::qwen, AgentClient::aider})
        for (const char* before : {"", "\n"}) {
            const std::string once = config(client, before);
            EXPECT_EQ(config(client, once), once) << int(client);
        }
    const std::string old = "# mine\nmodel = \"gpt\"\n\n[mcp_servers.a]\ncommand = \"x\"\n";
    const std::string once = config(AgentClient::codex, old);
    EXPECT_EQ(config(AgentClient::codex, once), once);
}

// Risk: a TOML file is cut in the middle of a string, loses tables, or gets a key into the wrong table.
TEST(Connect, TomlIsMergedByStatements) {
    const std::string ours =
        "[model_providers.sparkinfer]\nname = \"sparkinfer\"\nbase_url = \"http://127.0.0.1:8080/v1\"\n"
        "wire_api = \"responses\"\nstream_idle_timeout_ms = 1800000\nenv_key = \"SPARKINFER_API_KEY\"\n";
    const std::string root = "model = \"qwen-\\\"x\\\"\"\nmodel_provider = \"sparkinfer\"\n";
    EXPECT_EQ(config(AgentClient::codex, ""), root + "\n" + ours);
    EXPECT_EQ(
        config(
            AgentClient::codex,
            "# about me\nmodel = \"gpt\" # old\nnotify = [\n  \"[a]\", # ]\n  [\"b\"],\n]\n"
            "text = \"\"\"\n[model_providers.sparkinfer]\nmodel = 1\n\"\"\"\n"
            "[ model_providers . \"sparkinfer\" ]\nname = \"old\"\n# gone\n"
            "[model_providers.sparkinfer.http_headers]\na = \"b\"\n\n# stays\n[profiles.x]\nmodel = \"y\""),
        root +
            "# about me\nnotify = [\n  \"[a]\", # ]\n  [\"b\"],\n]\n"
            "text = \"\"\"\n[model_providers.sparkinfer]\nmodel = 1\n\"\"\"\n"
            "\n# stays\n[profiles.x]\nmodel = \"y\"\n\n" +
            ours);
    EXPECT_EQ(trouble(AgentClient::codex, "a = \"b\n"),
              "the existing configuration: is not TOML: the string at byte 4 has no end");
    const std::string form =
        " in a form that cannot be replaced, expected a table [model_providers.sparkinfer]";
    EXPECT_EQ(trouble(AgentClient::codex, "model_providers = { sparkinfer = { name = \"x\" } }\n"),
              "the existing configuration: gives model_providers" + form);
    EXPECT_EQ(trouble(AgentClient::codex, "model_providers.sparkinfer.name = \"x\"\n"),
              "the existing configuration: gives model_providers.sparkinfer.name" + form);
    EXPECT_EQ(trouble(AgentClient::codex, "[model_providers]\nsparkinfer = { name = \"x\" }\n"),
              "the existing configuration: gives model_providers.sparkinfer" + form);
    EXPECT_EQ(trouble(AgentClient::codex, "[model_providers]\nother = { name = \"x\" }\n"), "nothing");
}

// Risk: a client that does not know the context's size fills it until it is refused.
TEST(Connect, TellsTheContext) {
    ServerAccess server = kServer;
    server.model = "m";
    server.context = 8192;
    EXPECT_EQ(field(config(AgentClient::claude, "", server), "env/CLAUDE_CODE_MAX_CONTEXT_TOKENS"),
              "\"8192\"");
    EXPECT_EQ(field(config(AgentClient::opencode, "", server), "provider/sparkinfer/models/m/limit"),
              R"({"context":8192,"output":2048})");
    EXPECT_EQ(field(config(AgentClient::qwen, "", server),
                    "modelProviders/openai/0/generationConfig/contextWindowSize"),
              "8192");
    EXPECT_EQ(config(AgentClient::codex, "model_context_window = 1\n", server)
                  .find("model_context_window = 8192\n"),
              std::string("model = \"m\"\nmodel_provider = \"sparkinfer\"\n").size());
}

// Risk: lines of a YAML file that only look like ours are taken out.
TEST(Connect, YamlKeysAreReplaced) {
    EXPECT_EQ(config(AgentClient::aider,
                     "# a\nmodel-settings-file: x\nmodel: gpt\nread: [a]\nopenai-api-base : >\n  "
                     "http://old\nlint: true"),
              "# a\nmodel-settings-file: x\nread: [a]\nlint: true\nmodel: \"openai/qwen-\\\"x\\\"\"\n"
              "openai-api-base: \"http://127.0.0.1:8080/v1\"\nopenai-api-key: \"secret\"\n");
    EXPECT_NE(config(AgentClient::aider, "", {"http://a", "m", "", 0}).find("openai-api-key: \"none\""),
              std::string::npos);
}

// Risk: a file that could not be read is written over.
TEST(Connect, RefusesWhatItCannotRead) {
    EXPECT_NE(trouble(AgentClient::claude, "{ // a comment\n}").find("is not JSON"), std::string::npos);
    EXPECT_EQ(trouble(AgentClient::claude, "[]"),
              "the existing configuration: the text is an array, expected an object");
}

// Risk: an address that works nowhere, or one that ends the string it is put into.
TEST(Connect, ChecksTheAddress) {
    EXPECT_EQ(server_url("http://a:1/").value(), "http://a:1");
    EXPECT_EQ(server_url("https://a/v1/").value(), "https://a");
    EXPECT_EQ(server_url("https://a/v1").value(), "https://a");
    EXPECT_EQ(server_url("http://[::1]:8080").value(), "http://[::1]:8080");
    for (const char* bad :
         {"", "a:1", "ftp://a", "http://", "http:///v1", "http://a b", "http://a\"", "http://a\n"})
        EXPECT_FALSE(server_url(bad).ok()) << bad;
}

// Risk: a hash is sent as a key.
TEST(Connect, TakesTheFirstRealKey) {
    EXPECT_EQ(first_key("# keys\n\nsha256:00\n  k-1 \r\nk-2\n", "f").value(), "k-1");
    EXPECT_EQ(first_key("sha256:00\n", "f").error().message,
              "f: holds only hashes of keys, expected a line with a key itself");
    EXPECT_EQ(first_key("\n", "f").error().message, "f: holds no key, expected one in a line");
}

// Risk: a key in a file that others may read; a lost original; a link that is replaced by a file.
TEST(Connect, FilesArePrivateAndKept) {
    const fs::path folder = fs::temp_directory_path() / ("connect_test_" + std::to_string(::getpid()));
    fs::create_directories(folder);
    const std::string path = (folder / "a" / "b" / "c.json").string();
    const auto mode = [](const fs::path& p) {
        struct stat s;
        EXPECT_EQ(::stat(p.c_str(), &s), 0) << p;
        return s.st_mode & 0777;
    };
    EXPECT_EQ(replace_private_file(path, "one").value(), "");
    EXPECT_EQ(read(path), "one");
    EXPECT_EQ(mode(path), 0600u);
    ::chmod(path.c_str(), 0644);
    EXPECT_EQ(replace_private_file(path, "two").value(), path + ".bak");
    EXPECT_EQ(replace_private_file(path, "three").value(), path + ".bak.1");
    EXPECT_EQ(read(path), "three");
    EXPECT_EQ(read(path + ".bak"), "one");
    EXPECT_EQ(read(path + ".bak.1"), "two");
    for (const char* end : {"", ".bak", ".bak.1"}) EXPECT_EQ(mode(path + end), 0600u) << end;
    const std::string link = (folder / "link").string();
    fs::create_symlink(path, link);
    EXPECT_TRUE(replace_private_file(link, "four").ok());
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_EQ(read(path), "four");
    for (const auto& entry : fs::directory_iterator(folder / "a" / "b"))
        EXPECT_EQ(entry.path().string().find(".new-"), std::string::npos) << "a half-written file is left";
    EXPECT_FALSE(replace_private_file("/proc/no/such/file", "x").ok());
    fs::remove_all(folder);
}

}  // namespace
}  // namespace sparkinfer
