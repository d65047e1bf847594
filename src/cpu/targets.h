// targets.h — code that is compiled for instruction sets that the machine may lack, and chosen at run time.
//
// Between TARGET_BEGIN and TARGET_END every function is compiled for the set named. No lambdas: they would
// not inherit it.
#pragma once
#include <cstddef>

#define INLINE __attribute__((always_inline)) inline

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, within GCC's own immintrin.h
#endif
#include <immintrin.h>

#define SPARKINFER_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TARGET_BEGIN(set) \
    SPARKINFER_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define TARGET_END SPARKINFER_PRAGMA(clang attribute pop)
#else
#define TARGET_BEGIN(set) SPARKINFER_PRAGMA(GCC push_options) SPARKINFER_PRAGMA(GCC target(set))
#define TARGET_END SPARKINFER_PRAGMA(GCC pop_options)
#endif

namespace sparkinfer {
INLINE __m128i bytes_at(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
}  // namespace sparkinfer
#endif
