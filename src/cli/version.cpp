#include "cli/version.h"

#include <fmt/core.h>
#include <gnu/libc-version.h>

#include <boost/version.hpp>

#include "generated/commit.h"  // written by tools/commit.cmake at every build

namespace sparkinfer {

namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

std::string cuda_text() {
    const std::string targets = SPARKINFER_BUILT_TARGETS;  // "90a,120f"
    if (targets.empty()) return "";
    std::string text = ", cuda for sm_";
    for (const char c : targets) text += c == ',' ? std::string(" and sm_") : std::string(1, c);
    return text;
}

}  // namespace

std::string build_commit() { return SPARKINFER_COMMIT; }

std::string version_text() {
    return fmt::format("sparkinfer {} (commit {})", SPARKINFER_VERSION, build_commit());
}

std::string build_text() {
    const std::string kind = SPARKINFER_BUILD_TYPE, sanitizers = SPARKINFER_SANITIZERS;
    return fmt::format(
        "{}\nbuilt      {}{}, by {}\nbackends   cpu (code for AVX2 and AVX-512, chosen at run "
        "time){}\nlibraries  fmt {}.{}.{}, "
        "Boost {}.{}.{}\nsystem     Linux x86-64, built with glibc {}.{}, running on {}\n",
        version_text(), kind.empty() ? "without a build type" : kind,
        sanitizers.empty() ? "" : ", sanitizers " + sanitizers, kCompiler, cuda_text(), FMT_VERSION / 10000,
        FMT_VERSION / 100 % 100, FMT_VERSION % 100, BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
        BOOST_VERSION % 100, __GLIBC__, __GLIBC_MINOR__, ::gnu_get_libc_version());
}

}  // namespace sparkinfer
