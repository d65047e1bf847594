// connect_toml.h — a few keys and one table put into a TOML file; the rest stays as it is written, comments
// and all.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

// `keys` (name, value as TOML) replace those of the file's root, `section` (a table with its header) replaces
// the table of that name and its sub-tables. Errors: text that is not TOML as far as it was read, or the
// table in a form that cannot be replaced as lines.
Result<std::string> merge_toml(const std::string& existing,
                               const std::vector<std::pair<std::string, std::string>>& keys,
                               const std::string& table, const std::string& section);

}  // namespace sparkinfer
