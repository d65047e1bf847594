// format.cpp — the one translation unit that compiles fmt's definitions (Debian ships fmt as a shared library
// only, and the binary should carry everything but libc).
#include <fmt/format-inl.h>

// fmt/format.h declares these `extern template`; gcc inlines them, clang at -O1 wants them somewhere.
template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl<char>(locale_ref);
template char fmt::detail::decimal_point_impl<char>(locale_ref);
