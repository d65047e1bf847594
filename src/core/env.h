// env.h — the few environment variables that are read, all of them here. None changes a result or a speed.
#pragma once
#include <optional>
#include <string>

namespace sparkinfer {

// NO_COLOR set and not empty (no-color.org), or TERM=dumb: output is never coloured.
bool env_no_color();

// The user's home folder; nothing when HOME is unset or empty.
std::optional<std::string> env_home();

// XDG_CONFIG_HOME: where programs keep their configuration instead of ~/.config; nothing unless it is an
// absolute path.
std::optional<std::string> env_config_home();

}  // namespace sparkinfer
