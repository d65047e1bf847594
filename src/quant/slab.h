// slab.h — the device layout of Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0, IQ4_XS and MXFP4: the file's codes and
// scales in another order, at the file's bits per weight. docs/formats.md draws it; cuda/repack.cu makes it.
//
//   tensor = [expert] [slab: 16 rows] [item: 256 columns], all contiguous
//   unit u = 64 columns of an item, lane = 4·g + t: rows g and g+8 of the slab, columns {0, 8, 1, 9} + 2t +
//   16j of the unit: the order in which the lanes of a tensor-core fragment want them.
//
// Scales are fp16 times a power of two that is one for the tensor, so that rows 8…15, whose nibbles lie four
// bits higher, can have theirs divided by 16 without loss: Weight::scale[0] undoes it, Weight::scale[1]
// relates the minima's power to it.
#pragma once
#include "quant/block.h"
#include "quant/e2m1.h"
#include "quant/iq4.h"

namespace sparkinfer {

constexpr int kSlabRows = 16, kSlabColumns = 256;

// Where element (row of 16, column of 256) has its code.
struct SlabPlace {
    int unit, lane, word, byte;  // 64 columns; 4g + t; 16 columns; byte of the word
    int half;                    // 0: rows 0…7, 1: rows 8…15
};
HD constexpr SlabPlace slab_place(int row, int column) {
    const int k = column % 64, in16 = k % 16;
    return {column / 64, 4 * (row % 8) + in16 % 8 / 2, k / 16, 2 * (in16 & 1) + (in16 >> 3), row / 8};
}
// The column of a unit that byte `byte` of word `word` holds in a lane with t = lane % 4.
HD constexpr int slab_column(int t, int word, int byte) {
    return 16 * word + 2 * t + (byte & 1) * 8 + (byte >> 1);
}

HD inline uint32_t slab_load(const std::byte* p) {
    const auto* b = reinterpret_cast<const uint8_t*>(p);
    return uint32_t(b[0]) | uint32_t(b[1]) << 8 | uint32_t(b[2]) << 16 | uint32_t(b[3]) << 24;
}

// The item of a weight that holds (expert, row, column), and the row's place in it.
struct SlabItem {
    const std::byte* bytes;
    int row, column;
};
HD inline SlabItem slab_item(const Weight& w, int item_bytes, int expert, int row, int column) {
    const int paired =
        w.pairing == Pairing::none ? row : 16 * (row / 8) + row % 8 + (w.pairing == Pairing::up ? 8 : 0);
    const int64_t rows = w.pairing == Pairing::none ? w.out : 2 * int64_t(w.out);
    const int64_t slab = (expert * rows + paired) / kSlabRows;
    return {static_cast<const std::byte*>(w.data) +
                (slab * (w.in / kSlabColumns) + column / kSlabColumns) * item_bytes,
            paired % kSlabRows, column % kSlabColumns};
}

template <int kBytes>
struct SlabFormat : SplitFormat {
    static constexpr int block = kSlabColumns, bytes = kBytes, item = kBytes * kSlabRows;
    static int64_t scale_bytes(int64_t, int64_t, int64_t) { return 0; }
};

// Q4_K and Q5_K share the words of scales: 64 bytes a unit, {row g, row g+8} per g: bits 0–5 scale of the
// first 32 columns, 6–11 of the second, 12–15 nibble `unit` of D; 16–27 the same of the minima, 28–31 nibble
// `unit` of M.
struct SlabScales {
    float d, m;          // D and M
    int scale, minimum;  // of one group of 32
};
HD inline SlabScales slab_scales(const std::byte* scales, const SlabPlace& p, int column) {
    uint32_t d = 0, m = 0, own = 0;
    for (int u = 0; u < 4; ++u) {
        const uint32_t w = slab_load(scales + 64 * u + 8 * (p.lane / 4) + 4 * p.half);
        d |= (w >> 12 & 15) << (4 * u);
        m |= (w >> 28) << (4 * u);
        if (u == p.unit) own = w;
    }
    const int shift = 6 * (column % 64 / 32);
    return {f16_to_f32(uint16_t(d)) * (p.half ? 16.0f : 1.0f), f16_to_f32(uint16_t(m)),
            int(own >> shift & 63), int(own >> (16 + shift) & 63)};
}

template <class F>
void slab_decode_row(const Weight& w, int expert, int row, float* out) {
    for (int k = 0; k < w.in; ++k) out[k] = F::decode(w, expert, row, k);
}

template <>
struct Format<Quant::q4_k_slab> : SlabFormat<144> {
    static constexpr int unit = 512, scales_at = 4 * unit;
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const SlabItem i = slab_item(w, item, expert, row, col);
        const SlabPlace p = slab_place(i.row, i.column);
        const uint32_t code =
            slab_load(i.bytes + unit * p.unit + 16 * p.lane + 4 * p.word) >> (8 * p.byte + 4 * p.half) & 15;
        const SlabScales s = slab_scales(i.bytes + scales_at, p, i.column);
        return s.d * float(s.scale) * float(code) + s.m * w.scale[1] * float(s.minimum);
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

template <>
struct Format<Quant::q5_k_slab> : SlabFormat<176> {
    static constexpr int unit = 640, scales_at = 4 * unit;
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const SlabItem i = slab_item(w, item, expert, row, col);
        const SlabPlace p = slab_place(i.row, i.column);
        const std::byte* u = i.bytes + unit * p.unit;
        const uint32_t low = slab_load(u + 16 * p.lane + 4 * p.word) >> (8 * p.byte + 4 * p.half) & 15;
        // Bit of row g at 8i+4+j, of row g+8 one byte on, at 8((i+1)&3)+j.
        const int bit = p.half ? 8 * ((p.byte + 1) & 3) + p.word : 8 * p.byte + 4 + p.word;
        const uint32_t high = slab_load(u + 512 + 4 * p.lane) >> bit & 1;
        const SlabScales s = slab_scales(i.bytes + scales_at, p, i.column);
        return s.d * float(s.scale) * float(low | high << 4) + s.m * w.scale[1] * float(s.minimum);
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

// Scales: signed bytes + 128, per g and 32 columns {16 of row g, of row g+8, next 16 of row g, of row g+8};
// then half2 of D per g.
template <>
struct Format<Quant::q6_k_slab> : SlabFormat<210> {
    static constexpr int unit = 768, scales_at = 4 * unit, d_at = scales_at + 256;
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const SlabItem i = slab_item(w, item, expert, row, col);
        const SlabPlace p = slab_place(i.row, i.column);
        const std::byte* u = i.bytes + unit * p.unit;
        const uint32_t low = slab_load(u + 16 * p.lane + 4 * p.word) >> (8 * p.byte + 4 * p.half) & 15;
        const int bit =
            p.half ? 8 * ((p.byte + 1) & 3) + 2 * (p.word & 1) : 8 * p.byte + 4 + 2 * (p.word & 1);
        const uint32_t high = slab_load(u + 512 + 8 * p.lane + 4 * (p.word >> 1)) >> bit & 3;
        const int g = p.lane / 4;
        const uint32_t word = slab_load(i.bytes + scales_at + 64 * p.unit + 8 * g + 4 * (p.word >> 1));
        const int scale = int(word >> (16 * (p.word & 1) + 8 * p.half) & 255) - 128;
        const uint32_t d = slab_load(i.bytes + d_at + 4 * g) >> (16 * p.half) & 0xffff;
        return f16_to_f32(uint16_t(d)) * (p.half ? 16.0f : 1.0f) * float(scale) *
               float(int(low | high << 4) - 32);
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

// Codes + 128: per 32 columns 16 bytes a lane {row g, row g+8 of the first 16; of the second}; then half2 of
// d per g and 32.
template <>
struct Format<Quant::q8_0_slab> : SlabFormat<272> {
    static constexpr int unit = 1088, scales_in_unit = 1024;
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const SlabItem i = slab_item(w, item, expert, row, col);
        const SlabPlace p = slab_place(i.row, i.column);
        const std::byte* u = i.bytes + unit * p.unit;
        const int half = p.word >> 1, at = 512 * half + 16 * p.lane + 8 * (p.word & 1) + 4 * p.half;
        const int code = int(slab_load(u + at) >> (8 * p.byte) & 255) - 128;
        const uint32_t d =
            slab_load(u + scales_in_unit + 8 * (p.lane / 4) + 4 * half) >> (16 * p.half) & 0xffff;
        return f16_to_f32(uint16_t(d)) * float(code);
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

// What the formats with nothing but nibbles in their units share: Q4_K's code words, 512 bytes a unit.
template <int kBytes>
struct NibbleSlab : SlabFormat<kBytes> {
    static constexpr int unit = 512, scales_at = 4 * unit;
    struct Found {
        SlabItem item;
        SlabPlace place;
        uint32_t code;  // 0…15
        HD uint32_t word(int at) const { return slab_load(item.bytes + scales_at + at); }
        HD int g() const { return place.lane / 4; }
        HD int odd() const { return item.column % 64 / 32; }  // second group of 32 of the unit
    };
    HD static Found find(const Weight& w, int expert, int row, int col) {
        const SlabItem i = slab_item(w, SlabFormat<kBytes>::item, expert, row, col);
        const SlabPlace p = slab_place(i.row, i.column);
        return {
            i, p,
            slab_load(i.bytes + unit * p.unit + 16 * p.lane + 4 * p.word) >> (8 * p.byte + 4 * p.half) & 15};
    }
    HD static float half_of(uint32_t word, int half) {
        return f16_to_f32(uint16_t(word >> (16 * half) & 0xffff));
    }
};

// Scales: 64 bytes a unit, per g {half2 of D of rows g, g+8 for the first 32 columns; for the second}.
template <>
struct Format<Quant::q4_0_slab> : NibbleSlab<144> {
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const Found f = find(w, expert, row, col);
        const float d = half_of(f.word(64 * f.place.unit + 8 * f.g() + 4 * f.odd()), f.place.half);
        return d * (f.place.half ? 16.0f : 1.0f) * float(int(f.code) - 8);
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

// Scales: 128 bytes a unit, per g {half2 of D for the first 32 columns, for the second; of M likewise}.
template <>
struct Format<Quant::q4_1_slab> : NibbleSlab<160> {
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const Found f = find(w, expert, row, col);
        const int at = 128 * f.place.unit + 16 * f.g() + 4 * f.odd();
        const float d = half_of(f.word(at), f.place.half) * (f.place.half ? 16.0f : 1.0f);
        return d * float(f.code) + half_of(f.word(at + 8), f.place.half) * w.scale[1];
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

// Scales: a word per unit and g; its low half is row g's, its high half row g+8's: bits 0–5 scale of the
// first 32 columns, 6–11 of the second, 12–15 nibble `unit` of D.
template <>
struct Format<Quant::iq4_xs_slab> : NibbleSlab<136> {
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const Found f = find(w, expert, row, col);
        uint32_t d = 0;
        for (int u = 0; u < 4; ++u)
            d |= (f.word(32 * u + 4 * f.g()) >> (16 * f.place.half + 12) & 15) << (4 * u);
        const uint32_t own = f.word(32 * f.place.unit + 4 * f.g()) >> (16 * f.place.half);
        const int scale = int(own >> (6 * f.odd()) & 63) - 32;
        return f16_to_f32(uint16_t(d)) * float(scale) * iq4_value(f.code);
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

// Scales: exponent bytes, per unit and g {row g, row g+8 of the first 32 columns; of the second}. Values are
// doubled, so that they are integers; Weight::scale[0] is 1/2.
template <>
struct Format<Quant::mxfp4_slab> : NibbleSlab<136> {
    static constexpr int greatest_exponent = 251;  // 12 · 2^(251 − 127) is still finite
    // 2^(e − 127); 2^-127 is subnormal.
    HD static float scale_of(uint32_t e) { return float_of_bits(e ? e << 23 : 0x00400000u); }
    HD static float decode(const Weight& w, int expert, int row, int col) {
        const Found f = find(w, expert, row, col);
        const uint32_t e = f.word(32 * f.place.unit + 4 * f.g()) >> (16 * f.odd() + 8 * f.place.half) & 255;
        return scale_of(e) * e2m1_doubled(f.code);
    }
    static void decode_row(const Weight& w, int expert, int row, float* out) {
        slab_decode_row<Format>(w, expert, row, out);
    }
};

static_assert(Format<Quant::q4_0_slab>::item == 2304 && Format<Quant::q4_1_slab>::item == 2560);
static_assert(Format<Quant::iq4_xs_slab>::item == 2176 && Format<Quant::mxfp4_slab>::item == 2176);
static_assert(Format<Quant::q4_k_slab>::item == 2304 && Format<Quant::q5_k_slab>::item == 2816);
static_assert(Format<Quant::q6_k_slab>::item == 3360 && Format<Quant::q8_0_slab>::item == 4352);

}  // namespace sparkinfer
