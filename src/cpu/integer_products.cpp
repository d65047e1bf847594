#include "cpu/integer_products.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "cpu/targets.h"
#include "quant/formats.h"

namespace sparkinfer {
namespace {

#if defined(__x86_64__)
// Sixteen rows of blocks.
struct RowSet {
    const std::byte* row[kTileRows];
    NextTile next;
};

// The part of the next tile whose turn it is at step g of `groups`.
INLINE void fetch_ahead(const NextTile& next, int g, int groups) {
    for (int line = next.lines * g / groups; line < next.lines * (g + 1) / groups; ++line)
#pragma GCC unroll 16
        for (int r = 0; r < kTileRows; ++r) __builtin_prefetch(next.row + r * next.stride + line * 64);
}

// The sixteen values of four-bit codes that are not numbers themselves, plus `offset`.
struct CodeTable {
    alignas(16) uint8_t value[16];
    float offset;
};
constexpr CodeTable kIq4 = {{1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}, 128};
constexpr CodeTable kE2m1 = {{12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}, 12};

#define KERNELS "cpu/integer_kernels.inl"
#include "cpu/both_targets.inl"
#endif

IntegerForm choose() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni"))
        return IntegerForm::avx512;
    if (__builtin_cpu_supports("x86-64-v3")) return IntegerForm::avx2;
#endif
    return IntegerForm::none;
}

}  // namespace

IntegerForm integer_form() {
    static const IntegerForm chosen = choose();
    return chosen;
}

bool has_integer_form(const Weight& w) {
    if (w.scale_count != 0 || integer_form() == IntegerForm::none) return false;
    switch (w.quant) {
        case Quant::q4_0:
        case Quant::q4_1:
        case Quant::q5_0:
        case Quant::q5_1:
        case Quant::q8_0:
        case Quant::q4_k:
        case Quant::q5_k:
        case Quant::q6_k:
        case Quant::iq4_nl:
        case Quant::iq4_xs:
        case Quant::mxfp4: return true;
        default: return false;
    }
}

bool has_half_scales(Quant quant) { return quant == Quant::q6_k; }

void pack_tile([[maybe_unused]] const Weight& w, [[maybe_unused]] const TilePlace& place,
               [[maybe_unused]] PackedGroup* to, [[maybe_unused]] const NextTile& next,
               [[maybe_unused]] IntegerForm form) {
#if defined(__x86_64__)
    RowSet rows;
    rows.next = next;
    const int64_t bytes = row_bytes(w);
    const auto* first =
        static_cast<const std::byte*>(w.data) + weight_row(w, place.expert, place.row) * bytes;
    for (int r = 0; r < kTileRows; ++r) rows.row[r] = first + std::min(r, place.rows - 1) * bytes;
    if (form == IntegerForm::avx512) return avx512::pack(w.quant, rows, place.first_group, place.groups, to);
    if (form == IntegerForm::avx2) return avx2::pack(w.quant, rows, place.first_group, place.groups, to);
#endif
    CHECK(false, "no integer products on this machine");
}

NextTile next_tile(const Weight& w, const TilePlace& place) {
    const int64_t bytes = row_bytes(w), from = row_bytes(w.quant, int64_t(place.first_group) * kGroup),
                  length = row_bytes(w.quant, int64_t(place.groups) * kGroup);
    const auto* row =
        static_cast<const std::byte*>(w.data) + weight_row(w, place.expert, place.row) * bytes + from;
    NextTile next{row + length, bytes, int((length + 63) / 64)};
    if (from + length == bytes) {
        next.row = row - from + kTileRows * bytes;
        if (place.row + kTileRows >= w.out) next.lines = 0;
    }
    return next;
}

void multiply_tile([[maybe_unused]] const TileProduct& p, [[maybe_unused]] IntegerForm form) {
#if defined(__x86_64__)
    if (form == IntegerForm::avx512) return avx512::multiply(p);
    if (form == IntegerForm::avx2) return avx2::multiply(p);
#endif
    CHECK(false, "no integer products on this machine");
}

void make_integers([[maybe_unused]] const float* x, [[maybe_unused]] int64_t k,
                   [[maybe_unused]] Activations kind, [[maybe_unused]] IntegerGroup* to,
                   [[maybe_unused]] IntegerForm form) {
#if defined(__x86_64__)
    const float limit = kind == Activations::int16 ? 32639 : 127;
    if (form == IntegerForm::avx512) return avx512::make_groups(x, k / kGroup, limit, to);
    if (form == IntegerForm::avx2) return avx2::make_groups(x, k / kGroup, limit, to);
#endif
    CHECK(false, "no integer products on this machine");
}

}  // namespace sparkinfer
