#include "core/env.h"

#include <cstdlib>

namespace sparkinfer {

static std::optional<std::string> variable(const char* name) {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    return value;
}

static std::optional<std::string> absolute_folder(const char* name) {
    auto folder = variable(name);
    return folder && folder->starts_with("/") ? folder : std::nullopt;
}

bool env_no_color() { return variable("NO_COLOR").has_value() || env_dumb_terminal(); }

bool env_dumb_terminal() { return variable("TERM") == "dumb"; }

std::optional<std::string> env_home() { return absolute_folder("HOME"); }

std::optional<std::string> env_config_home() { return absolute_folder("XDG_CONFIG_HOME"); }

std::optional<std::string> env_state_home() { return absolute_folder("XDG_STATE_HOME"); }

std::optional<std::string> env_data_home() { return absolute_folder("XDG_DATA_HOME"); }

}  // namespace sparkinfer
