// connect.h — what coding agents have to be told of a server, each in its own configuration file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

// The server as a client is to use it.
struct ServerAccess {
    std::string url = {};    // "http://127.0.0.1:8080": no slash at the end, no /v1
    std::string model = {};  // a name that the server knows
    std::string key = {};    // empty: it asks for none
    int64_t context = 0;     // most tokens of a request; 0: not said
};

enum class AgentClient { claude, codex, opencode, qwen, aider };

// A client by the name of its program. Errors: usage, with the names that there are.
Result<AgentClient> agent_client(std::string_view name);

// Checks and shortens what was typed as the server's address; "/v1" at the end is taken off.
Result<std::string> server_url(const std::string& typed);

// The first key of a key file that is one: of keys of which it has the hash alone, nobody can make a key.
Result<std::string> first_key(const std::string& key_file_text, const std::string& path);

// Where the client's configuration lies, below the user's home or, for opencode, XDG_CONFIG_HOME.
Result<std::string> agent_config_path(AgentClient client);

// The client's configuration with what it has to be told; everything else of `existing` (empty: no file yet)
// stays. Errors: a file that is not what the client reads, or that says the same thing in a way that cannot
// be replaced safely.
Result<std::string> agent_config(AgentClient client, const ServerAccess& server, const std::string& existing);

// What the user has to do besides, one line each.
std::vector<std::string> agent_hints(AgentClient client, const ServerAccess& server);

// Replaces the file by `text`, for this user's eyes alone, all or nothing; links are followed. What it was
// before is kept beside it, under the first free of FILE.bak, FILE.bak.1, …: the path of that is given back,
// or nothing when there was no file.
Result<std::string> replace_private_file(const std::string& path, const std::string& text);

}  // namespace sparkinfer
