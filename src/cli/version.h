// version.h — which program this is.
#pragma once
#include <string>

namespace sparkinfer {

// The commit it was built from, "2ff3c0d"; "2ff3c0d-dirty" with changes that are not committed; "unknown"
// outside of git.
std::string build_commit();

// "sparkinfer 0.1.0 (commit 2ff3c0d)"
std::string version_text();

// What --version prints: that line, and how the program was built: compiler, kind, backends, libraries.
std::string build_text();

}  // namespace sparkinfer
