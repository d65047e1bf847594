#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace sparkinfer {

void check_failed(const char* file, int line, const char* expression, const std::string& detail) {
    std::fprintf(stderr, "internal error: %s:%d: CHECK(%s) failed%s%s\n", file, line, expression,
                 detail.empty() ? "" : ": ", detail.c_str());
    std::abort();
}

}  // namespace sparkinfer
