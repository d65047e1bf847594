#include "cpu/decode_rows.h"

#include <cstring>

#include "quant/decode.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false, within GCC's own immintrin.h
#endif
#include <immintrin.h>
#endif

namespace sparkinfer {
namespace {

// blocks of one row -> 32 values each
using DecodeBlocks = void (*)(const std::byte* from, int64_t blocks, float* to);

#if defined(__x86_64__)
#define V4 __attribute__((target("arch=x86-64-v4")))
#define V3 __attribute__((target("arch=x86-64-v3")))

// The 16-bit float at p, in every lane.
V4 inline __m512 half_512(const std::byte* p) {
    uint16_t bits;
    memcpy(&bits, p, 2);
    return _mm512_set1_ps(_cvtsh_ss(bits));
}
V3 inline __m256 half_256(const std::byte* p) {
    uint16_t bits;
    memcpy(&bits, p, 2);
    return _mm256_set1_ps(_cvtsh_ss(bits));
}

V4 void q4_1_v4(const std::byte* from, int64_t blocks, float* to) {
    const __m512 steps = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t i = 0; i < blocks; ++i, from += 20, to += 32) {
        // The sixteen values of the block, and places in them: a place is its low four bits.
        const __m512 values = _mm512_add_ps(_mm512_mul_ps(half_512(from), steps), half_512(from + 2));
        const __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4)));
        _mm512_storeu_ps(to, _mm512_permutexvar_ps(q, values));
        _mm512_storeu_ps(to + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(q, 4), values));
    }
}

V3 void q4_1_v3(const std::byte* from, int64_t blocks, float* to) {
    const __m128i low = _mm_set1_epi8(15);
    for (int64_t i = 0; i < blocks; ++i, from += 20, to += 32) {
        const __m256 d = half_256(from), m = half_256(from + 2);
        const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4));
        const __m128i halves[2] = {_mm_and_si128(q, low), _mm_and_si128(_mm_srli_epi16(q, 4), low)};
        for (int j = 0; j < 4; ++j) {
            const __m128i bytes = j % 2 ? _mm_srli_si128(halves[j / 2], 8) : halves[j / 2];
            const __m256 a = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
            _mm256_storeu_ps(to + 8 * j, _mm256_add_ps(_mm256_mul_ps(d, a), m));
        }
    }
}

V4 void q8_0_v4(const std::byte* from, int64_t blocks, float* to) {
    for (int64_t i = 0; i < blocks; ++i, from += 34, to += 32) {
        const __m512 d = half_512(from);
        for (int j = 0; j < 2; ++j) {
            const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 + 16 * j));
            _mm512_storeu_ps(to + 16 * j, _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q))));
        }
    }
}

V3 void q8_0_v3(const std::byte* from, int64_t blocks, float* to) {
    for (int64_t i = 0; i < blocks; ++i, from += 34, to += 32) {
        const __m256 d = half_256(from);
        for (int j = 0; j < 4; ++j) {
            const __m128i q = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 2 + 8 * j));
            _mm256_storeu_ps(to + 8 * j, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q))));
        }
    }
}
#endif

struct ShortCuts {
    DecodeBlocks q4_1 = nullptr, q8_0 = nullptr;
};

ShortCuts choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return {q4_1_v4, q8_0_v4};
    if (__builtin_cpu_supports("x86-64-v3")) return {q4_1_v3, q8_0_v3};
#endif
    return {};
}

DecodeBlocks short_cut(const Weight& w) {
    static const ShortCuts chosen = choose();
    if (w.scale_count != 0) return nullptr;
    return w.quant == Quant::q4_1 ? chosen.q4_1 : w.quant == Quant::q8_0 ? chosen.q8_0 : nullptr;
}

}  // namespace

void decode_rows(const Weight& w, int expert, int first, int rows, float* out, int64_t stride) {
    const DecodeBlocks decode = short_cut(w);
    for (int r = 0; r < rows; ++r, out += stride) {
        if (!decode) {
            decode_row(w, expert, first + r, out);
            continue;
        }
        const int64_t at = weight_row(w, expert, first + r) * row_bytes(w);
        decode(static_cast<const std::byte*>(w.data) + at, w.in / 32, out);
    }
}

}  // namespace sparkinfer
