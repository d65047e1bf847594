// env.h — the few environment variables that are read, all of them here. None changes a result or a speed.
#pragma once
#include <optional>
#include <string>

namespace sparkinfer {

// NO_COLOR set and not empty (no-color.org), or TERM=dumb: output is never coloured.
bool env_no_color();

// TERM=dumb: a terminal that cannot move its cursor.
bool env_dumb_terminal();

// The user's home folder; nothing unless HOME is an absolute path.
std::optional<std::string> env_home();

// XDG_CONFIG_HOME: where programs keep their configuration instead of ~/.config; nothing unless it is an
// absolute path.
std::optional<std::string> env_config_home();

// XDG_STATE_HOME, instead of ~/.local/state: what a program remembers from one run to the next. Absolute, or
// nothing.
std::optional<std::string> env_state_home();

// XDG_DATA_HOME, instead of ~/.local/share: what a user has obtained for a program. Absolute, or nothing.
std::optional<std::string> env_data_home();

}  // namespace sparkinfer
