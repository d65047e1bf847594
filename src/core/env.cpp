#include "core/env.h"

#include <cstdlib>

namespace sparkinfer {

static std::optional<std::string> variable(const char* name) {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    return value;
}

bool env_no_color() { return variable("NO_COLOR").has_value() || variable("TERM") == "dumb"; }

std::optional<std::string> env_home() { return variable("HOME"); }

std::optional<std::string> env_config_home() {
    auto folder = variable("XDG_CONFIG_HOME");
    return folder && folder->starts_with("/") ? folder : std::nullopt;
}

}  // namespace sparkinfer
