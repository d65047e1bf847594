// format.cpp — the one translation unit that compiles fmt's definitions (Debian ships fmt as a shared library
// only, and the binary should carry everything but libc).
#include <fmt/format-inl.h>
