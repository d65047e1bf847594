// check.h — CHECK(condition, "format", values…): we are wrong, not the world. Always on; prints and aborts.
#pragma once
#ifndef __CUDACC__
#include <fmt/core.h>
#endif

#include <string>
#include <string_view>

namespace sparkinfer {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& detail);

#ifdef __CUDACC__  // nvcc cannot read fmt: the sentence stays as it is written
template <class... Args>
std::string check_detail(const char* format, Args&&...) {
    return format;
}
#else
template <class... Args>
std::string check_detail(fmt::format_string<Args...> format, Args&&... args) {
    return fmt::format(format, std::forward<Args>(args)...);
}
#endif
inline std::string check_detail() { return {}; }

#define CHECK(condition, ...)                                                    \
    do {                                                                         \
        if (!(condition)) [[unlikely]]                                           \
            ::sparkinfer::check_failed(__FILE__, __LINE__, #condition,           \
                                       ::sparkinfer::check_detail(__VA_ARGS__)); \
    } while (false)

}  // namespace sparkinfer
