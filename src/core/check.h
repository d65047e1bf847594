// check.h — CHECK(condition, "format", values…): we are wrong, not the world. Always on; prints and aborts.
#pragma once
#include <fmt/core.h>

#include <string>
#include <string_view>

namespace sparkinfer {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& detail);

template <class... Args>
std::string check_detail(fmt::format_string<Args...> format, Args&&... args) {
    return fmt::format(format, std::forward<Args>(args)...);
}
inline std::string check_detail() { return {}; }

#define CHECK(condition, ...)                                                    \
    do {                                                                         \
        if (!(condition)) [[unlikely]]                                           \
            ::sparkinfer::check_failed(__FILE__, __LINE__, #condition,           \
                                       ::sparkinfer::check_detail(__VA_ARGS__)); \
    } while (false)

}  // namespace sparkinfer
