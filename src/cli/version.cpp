#include "cli/version.h"

#include <fmt/core.h>

#include "generated/commit.h"  // written by tools/commit.cmake at every build

namespace sparkinfer {

std::string build_commit() { return SPARKINFER_COMMIT; }

std::string version_text() {
    return fmt::format("sparkinfer {} (commit {})", SPARKINFER_VERSION, build_commit());
}

}  // namespace sparkinfer
