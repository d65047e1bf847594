// result.h — errors of the world as values: Result<T> holds a T or one sentence an operator understands.
//
//     Result<File> open(const std::string& path);
//     TRY(File file, open(path));        // propagates the Error, otherwise binds the value
//     TRY_VOID(check(file));             // the same for Result<void>
#pragma once
#include <fmt/core.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace sparkinfer {

// What kind of trouble it is; the values are the process's exit codes.
enum class ErrorKind : int {
    usage = 2,      // the caller's words are off: flags, parameters, ranges
    bad_input = 3,  // a file, a prompt or a request says something impossible
    resources = 4,  // memory, disk, context: it would work on a bigger machine
    internal = 5,   // the device failed or we did
};

struct Error {
    ErrorKind kind;
    std::string message;  // one sentence: what, where, found, expected
};

template <class... Args>
[[nodiscard]] Error usage_error(fmt::format_string<Args...> format, Args&&... args) {
    return {ErrorKind::usage, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[nodiscard]] Error bad_input(fmt::format_string<Args...> format, Args&&... args) {
    return {ErrorKind::bad_input, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[nodiscard]] Error out_of_resources(fmt::format_string<Args...> format, Args&&... args) {
    return {ErrorKind::resources, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[nodiscard]] Error internal_error(fmt::format_string<Args...> format, Args&&... args) {
    return {ErrorKind::internal, fmt::format(format, std::forward<Args>(args)...)};
}

// E: what failed, where one sentence is not enough to say it; it has a `message`.
template <class T, class E = Error>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit on purpose
    Result(E error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }
    T& value() & { return get(); }
    const T& value() const& { return const_cast<Result*>(this)->get(); }
    T value() && { return std::move(get()); }
    T& operator*() { return get(); }
    T* operator->() { return &get(); }
    const E& error() const { return std::get<1>(state_); }

  private:
    T& get() {
        if (!ok()) {
            fmt::print(stderr, "value() of a failed Result: {}\n", error().message);
            std::abort();
        }
        return std::get<0>(state_);
    }
    std::variant<T, E> state_;
};

template <class E>
class [[nodiscard]] Result<void, E> {
  public:
    Result() = default;
    Result(E error) : error_(std::move(error)) {}  // NOLINT
    bool ok() const { return !error_; }
    explicit operator bool() const { return ok(); }
    const E& error() const { return *error_; }

  private:
    std::optional<E> error_;
};

#define SPARKINFER_JOIN2(a, b) a##b
#define SPARKINFER_JOIN(a, b) SPARKINFER_JOIN2(a, b)
#define TRY(declaration, expression) TRY_IMPL(declaration, expression, SPARKINFER_JOIN(try_, __LINE__))
#define TRY_IMPL(declaration, expression, temp) \
    auto temp = (expression);                   \
    if (!temp.ok()) return temp.error();        \
    declaration = std::move(temp).value()
#define TRY_VOID(expression)                                       \
    do {                                                           \
        auto try_void_result = (expression);                       \
        if (!try_void_result.ok()) return try_void_result.error(); \
    } while (false)

}  // namespace sparkinfer
