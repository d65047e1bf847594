#include <algorithm>

#include "cli/connect.h"
#include "cli/connect_toml.h"
#include "core/env.h"
#include "core/json.h"

namespace sparkinfer {

namespace {

constexpr const char* kKeyVariable = "SPARKINFER_API_KEY";
// Clients that insist on a key get this one from a server that asks for none.
constexpr const char* kNoKey = "none";

const char* key_or_none(const ServerAccess& server) {
    return server.key.empty() ? kNoKey : server.key.c_str();
}

// Objects are merged field by field, everything else is replaced.
void merge(JsonObject& to, const JsonObject& from) {
    for (const auto& [key, value] : from) {
        Json& field = to[key];
        if (field.is_object() && value.is_object())
            merge(field.get_object(), value.get_object());
        else
            field = value;
    }
}

JsonObject claude_settings(const ServerAccess& s) {
    JsonObject env = {{"ANTHROPIC_BASE_URL", s.url}, {"ANTHROPIC_AUTH_TOKEN", key_or_none(s)}};
    for (const char* name :
         {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
          "ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"})
        env[name] = s.model;
    env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1";
    env["DISABLE_TELEMETRY"] = "1";
    if (s.context > 0) env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = fmt::format("{}", s.context);
    // A line that differs from start to start at the front of the prompt: nothing behind it could be reused.
    env["CLAUDE_CODE_ATTRIBUTION_HEADER"] = "0";
    return {{"env", std::move(env)}};
}

JsonObject opencode_settings(const ServerAccess& s) {
    JsonObject models;
    JsonObject model = {{"name", s.model}};
    if (s.context > 0)
        model["limit"] = JsonObject{{"context", s.context}, {"output", std::max<int64_t>(1, s.context / 4)}};
    models[s.model] = std::move(model);
    JsonObject provider = {{"npm", "@ai-sdk/openai-compatible"},
                           {"name", "sparkinfer"},
                           {"options", JsonObject{{"baseURL", s.url + "/v1"}, {"apiKey", key_or_none(s)}}},
                           {"models", std::move(models)}};
    return {{"$schema", "https://opencode.ai/config.json"},
            {"model", "sparkinfer/" + s.model},
            {"provider", JsonObject{{"sparkinfer", std::move(provider)}}}};
}

JsonObject qwen_settings(const ServerAccess& s, const JsonObject& existing) {
    JsonObject ours = {
        {"id", s.model}, {"name", s.model}, {"baseUrl", s.url + "/v1"}, {"envKey", kKeyVariable}};
    if (s.context > 0) ours["generationConfig"] = JsonObject{{"contextWindowSize", s.context}};
    // Of the list that is there, ours is replaced and the others stay.
    JsonArray list{ours};
    const Json* providers = json_find(existing, "modelProviders");
    const Json* known =
        providers && providers->is_object() ? json_find(providers->get_object(), "openai") : nullptr;
    for (const Json& entry : known && known->is_array() ? known->get_array() : JsonArray{}) {
        const Json* variable = entry.is_object() ? json_find(entry.get_object(), "envKey") : nullptr;
        if (!variable || *variable != Json(kKeyVariable)) list.push_back(entry);
    }
    return {{"security", JsonObject{{"auth", JsonObject{{"selectedType", "openai"}}}}},
            {"model", JsonObject{{"name", s.model}}},
            {"modelProviders", JsonObject{{"openai", std::move(list)}}},
            {"env", JsonObject{{kKeyVariable, key_or_none(s)}}}};
}

Result<std::string> json_config(AgentClient client, const ServerAccess& server, const std::string& existing) {
    JsonObject settings;
    if (existing.find_first_not_of(" \t\r\n") != std::string::npos) {
        TRY(const Json parsed, parse_json(existing, "the existing configuration"));
        TRY(const JsonObject* object, json_object(parsed, "the existing configuration"));
        settings = *object;
    }
    if (client == AgentClient::claude) merge(settings, claude_settings(server));
    if (client == AgentClient::opencode) merge(settings, opencode_settings(server));
    if (client == AgentClient::qwen) merge(settings, qwen_settings(server, settings));
    return to_json_pretty(settings) + "\n";
}

Result<std::string> codex_config(const ServerAccess& s, const std::string& existing) {
    // Keep-alives are no events to this client: a long prompt must not look like a dead server.
    std::string section = fmt::format(
        "[model_providers.sparkinfer]\nname = \"sparkinfer\"\nbase_url = {}\nwire_api = \"responses\"\n"
        "stream_idle_timeout_ms = 1800000\n",
        json_quote(s.url + "/v1"));
    if (!s.key.empty()) section += fmt::format("env_key = \"{}\"\n", kKeyVariable);
    std::vector<std::pair<std::string, std::string>> root = {{"model", json_quote(s.model)},
                                                             {"model_provider", "\"sparkinfer\""}};
    if (s.context > 0) root.emplace_back("model_context_window", fmt::format("{}", s.context));
    return merge_toml(existing, root, "model_providers.sparkinfer", section);
}

// Top-level keys of a YAML mapping are lines; their values may go on in lines that are indented.
Result<std::string> aider_config(const ServerAccess& s, const std::string& existing) {
    const std::pair<const char*, std::string> ours[] = {{"model", json_quote("openai/" + s.model)},
                                                        {"openai-api-base", json_quote(s.url + "/v1")},
                                                        {"openai-api-key", json_quote(key_or_none(s))}};
    std::string kept;
    bool dropping = false;
    for (size_t at = 0; at < existing.size();) {
        const size_t end = std::min(existing.find('\n', at), existing.size() - 1) + 1;
        const std::string_view line = std::string_view(existing).substr(at, end - at);
        at = end;
        if (line[0] != ' ' && line[0] != '\t' && line[0] != '-') {
            dropping = std::any_of(std::begin(ours), std::end(ours), [&](const auto& field) {
                const std::string_view key = field.first;
                const size_t colon = line.find_first_not_of(" \t", key.size());
                return line.starts_with(key) && colon != std::string_view::npos && line[colon] == ':';
            });
        }
        if (!dropping) kept += line;
    }
    if (!kept.empty() && kept.back() != '\n') kept += '\n';
    for (const auto& [key, value] : ours) kept += fmt::format("{}: {}\n", key, value);
    return kept;
}

}  // namespace

Result<AgentClient> agent_client(std::string_view name) {
    constexpr std::string_view kNames[] = {"claude", "codex", "opencode", "qwen", "aider"};
    for (size_t i = 0; i < std::size(kNames); ++i)
        if (name == kNames[i]) return AgentClient(i);
    return usage_error("the client is '{}', expected claude, codex, opencode, qwen or aider", name);
}

Result<std::string> server_url(const std::string& typed) {
    std::string url = typed;
    const auto drop = [&](std::string_view end) {
        if (url.ends_with(end)) url.resize(url.size() - end.size());
    };
    drop("/");
    drop("/v1");
    const size_t host = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : std::string::npos;
    const bool plain = std::all_of(url.begin(), url.end(), [](char c) {
        return c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '\'';
    });
    if (host == std::string::npos || url.size() == host || url.find_first_of("/?#", host) == host || !plain)
        return usage_error("--url is '{}', expected http://HOST:PORT or https://HOST:PORT", typed);
    return url;
}

Result<std::string> first_key(const std::string& text, const std::string& path) {
    bool hashed = false;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        std::string_view line = std::string_view(text).substr(at, end - at);
        at = end + 1;
        const size_t first = line.find_first_not_of(" \t\r");
        if (first == std::string_view::npos || line[first] == '#') continue;
        line = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
        if (line.starts_with("sha256:")) {
            hashed = true;
            continue;
        }
        return std::string(line);
    }
    return bad_input("{}: {}", path,
                     hashed ? "holds only hashes of keys, expected a line with a key itself"
                            : "holds no key, expected one in a line");
}

Result<std::string> agent_config_path(AgentClient client) {
    const auto home = env_home();
    if (!home) return usage_error("HOME is not set: where the client's configuration lies is unknown");
    switch (client) {
        case AgentClient::claude: return *home + "/.claude/settings.json";
        case AgentClient::codex: return *home + "/.codex/config.toml";
        case AgentClient::opencode:
            return env_config_home().value_or(*home + "/.config") + "/opencode/opencode.json";
        case AgentClient::qwen: return *home + "/.qwen/settings.json";
        case AgentClient::aider: return *home + "/.aider.conf.yml";
    }
    return usage_error("no such client");
}

Result<std::string> agent_config(AgentClient client, const ServerAccess& server,
                                 const std::string& existing) {
    if (client == AgentClient::codex) return codex_config(server, existing);
    if (client == AgentClient::aider) return aider_config(server, existing);
    return json_config(client, server, existing);
}

std::vector<std::string> agent_hints(AgentClient client, const ServerAccess& server) {
    if (client == AgentClient::codex && !server.key.empty())
        return {fmt::format("codex reads the key from {}: set that before it is started", kKeyVariable)};
    return {};
}

}  // namespace sparkinfer
