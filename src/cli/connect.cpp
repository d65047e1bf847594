// connect.cpp — `sparkinfer connect`: tells a coding agent where the server is.
#include "cli/connect.h"

#include <filesystem>

#include "cli/commands.h"
#include "core/file.h"
#include "core/log.h"

namespace sparkinfer {

constexpr uint64_t kMaxConfigBytes = 16 << 20;

Result<int> run_command(const ConnectOptions& o, Session& session) {
    TRY(const AgentClient client, agent_client(o.client));
    ServerAccess server;
    server.model = o.model;
    server.context = o.context.value_or(0);
    TRY(server.url, server_url(o.url));
    if (o.key_file) {
        TRY(const std::string text, read_text_file(*o.key_file, 1 << 20));
        TRY(server.key, first_key(text, *o.key_file));
    }
    TRY(const std::string path, agent_config_path(client));
    if (!o.write) {
        TRY(const std::string text, agent_config(client, server, ""));
        log_info("this belongs into {}; --write puts it there and keeps the rest of the file", path);
        TRY_VOID(session.out.write(text));
    } else {
        std::error_code none;
        std::string existing;
        if (std::filesystem::exists(path, none)) {
            TRY(existing, read_text_file(path, kMaxConfigBytes));
        }
        auto merged = agent_config(client, server, existing);
        if (!merged.ok()) return Error{merged.error().kind, path + ": " + merged.error().message};
        if (merged.value() == existing) {
            log_info("{} says so already", path);
        } else {
            TRY(const std::string backup, replace_private_file(path, merged.value()));
            log_info("wrote {}{}", path, backup.empty() ? "" : "; as it was before: " + backup);
        }
    }
    for (const std::string& hint : agent_hints(client, server)) log_info("{}", hint);
    return 0;
}

}  // namespace sparkinfer
