// slab_test.cpp — the decoders of the slab layouts against the decoders of the files' blocks. Slabs are made
// here, byte by byte, from the tables of docs/formats.md. Risk: a decoder and the layout that the GPU reads
// drift apart.
#include "quant/slab.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "quant/decode.h"
#include "quant/formats.h"

namespace sparkinfer {
namespace {

constexpr int kIn = 512, kExperts = 2;

struct SlabKind {
    Quant file, slab;
    int item, unit;  // bytes
    int d_at;        // of FP16 d in a file's block; dmin or m follows where there is one; -1: none
};
constexpr SlabKind kKinds[] = {
    {Quant::q4_k, Quant::q4_k_slab, 2304, 512, 0},     {Quant::q5_k, Quant::q5_k_slab, 2816, 640, 0},
    {Quant::q6_k, Quant::q6_k_slab, 3360, 768, 208},   {Quant::q8_0, Quant::q8_0_slab, 4352, 1088, 0},
    {Quant::q4_0, Quant::q4_0_slab, 2304, 512, 0},     {Quant::q4_1, Quant::q4_1_slab, 2560, 512, 0},
    {Quant::iq4_xs, Quant::iq4_xs_slab, 2176, 512, 0}, {Quant::mxfp4, Quant::mxfp4_slab, 2176, 512, -1},
};
bool has_minima(const SlabKind& k) { return k.file == Quant::q4_k || k.file == Quant::q5_k; }
// Bytes before the nibbles of a block of 32; 0: the format has others.
int nibbles_at(const SlabKind& k) {
    switch (k.file) {
        case Quant::q4_0: return 2;
        case Quant::q4_1: return 4;
        case Quant::mxfp4: return 1;
        default: return 0;
    }
}

using Bytes = std::vector<uint8_t>;

uint16_t half_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }
void put_half(uint8_t* p, uint16_t v) { p[0] = uint8_t(v), p[1] = uint8_t(v >> 8); }
void put_word(uint8_t* p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = uint8_t(v >> (8 * i));
}

// [kExperts, out, kIn] of random bits. Scales are random FP16 of either sign, 2^-12 … 2^-2, some of them 0.
Bytes random_blocks(const SlabKind& k, int out, uint32_t seed) {
    std::mt19937 random(seed);
    Bytes bytes(size_t(kExperts * out) * row_bytes(k.file, kIn));
    for (uint8_t& b : bytes) b = uint8_t(random());
    const size_t block = size_t(row_bytes(k.file, quant_block(k.file)));
    for (size_t at = 0; at < bytes.size(); at += block) {
        if (k.file == Quant::mxfp4) bytes[at] = uint8_t(random() % 252);  // 12 · 2^(251 - 127) is finite
        for (int i = 0; i < (k.d_at < 0 ? 0 : has_minima(k) || k.file == Quant::q4_1 ? 2 : 1); i++) {
            const uint32_t exponent = 3 + random() % 11, bits = random();
            const auto half = uint16_t((bits & 0x8000) | exponent << 10 | (bits & 0x3ff));
            put_half(&bytes[at + size_t(k.d_at) + 2 * size_t(i)], random() % 16 == 0 ? 0 : half);
        }
    }
    return bytes;
}

// The item's code of one row, as the file's block, or its first block of 32, has it. Not of Q8_0.
uint32_t code_of(const SlabKind& k, const uint8_t* block, int column) {
    const int l = column % 32, group = column / 32;
    if (nibbles_at(k) || k.file == Quant::iq4_xs) {
        const uint8_t* qs =
            nibbles_at(k) ? block + group * row_bytes(k.file, 32) + nibbles_at(k) : block + 8 + 16 * group;
        return uint32_t(qs[l % 16] >> (4 * (l / 16)) & 15);
    }
    if (k.file == Quant::q6_k) {
        const int half = column / 128, quarter = group % 4;
        const int low = block[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
        return uint32_t(low | (block[128 + 32 * half + l] >> (2 * quarter) & 3) << 4);
    }
    const bool fifth = k.file == Quant::q5_k;
    const uint8_t* qs = block + (fifth ? 48 : 16);
    const int low = qs[32 * (group / 2) + l] >> (4 * (group % 2)) & 15;
    return uint32_t(low | (fifth ? (block[16 + l] >> group & 1) << 4 : 0));
}

// d or dmin times 2^power in FP16. A test whose scales do not survive that would prove nothing.
uint32_t scaled(uint16_t half, int power, bool negate) {
    const float wanted = std::ldexp(f16_to_f32(half), power) * (negate ? -1.0f : 1.0f);
    const uint16_t stored = f32_to_f16(wanted);
    EXPECT_EQ(f16_to_f32(stored), wanted) << "a scale is not exact";
    return stored;
}

struct Powers {
    int d, m;
};

// Codes of all but Q8_0: four words a lane, the higher bits beside them.
void pack_codes(const SlabKind& k, const uint8_t* const* blocks, uint8_t* item) {
    for (int unit = 0; unit < 4; unit++)
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4;
            uint32_t words[4] = {}, fifth = 0, pairs[2] = {};
            for (int j = 0; j < 4; j++)
                for (int i = 0; i < 4; i++) {
                    const int offset[] = {0, 8, 1, 9}, column = 64 * unit + 16 * j + 2 * t + offset[i];
                    const uint32_t a = code_of(k, blocks[g], column), b = code_of(k, blocks[g + 8], column);
                    words[j] |= ((a & 15) | (b & 15) << 4) << (8 * i);
                    fifth |= (a >> 4 & 1) << (8 * i + 4 + j) | (b >> 4 & 1) << (8 * ((i + 1) % 4) + j);
                    const int p = j % 2;
                    pairs[j / 2] |= (a >> 4) << (8 * i + 4 + 2 * p) | (b >> 4) << (8 * ((i + 1) % 4) + 2 * p);
                }
            uint8_t* to = item + k.unit * unit;
            for (int j = 0; j < 4; j++) put_word(to + 16 * lane + 4 * j, words[j]);
            if (k.file == Quant::q5_k) put_word(to + 512 + 4 * lane, fifth);
            if (k.file == Quant::q6_k)
                for (int i = 0; i < 2; i++) put_word(to + 512 + 8 * lane + 4 * i, pairs[i]);
        }
}

// Q4_K and Q5_K: a word a row and unit.
void pack_k_scales(const SlabKind& k, const uint8_t* const* blocks, Powers powers, uint8_t* item) {
    for (int row = 0; row < 16; row++) {
        const uint8_t* block = blocks[row];
        const uint32_t d = scaled(half_at(block), powers.d - (row < 8 ? 0 : 4), false);
        const uint32_t m = scaled(half_at(block + 2), powers.m, true);
        for (int unit = 0; unit < 4; unit++) {
            uint32_t word = (d >> (4 * unit) & 15) << 12 | (m >> (4 * unit) & 15) << 28;
            for (int i = 0; i < 2; i++) {
                int scale = 0, minimum = 0;
                k_scale_min(block + 4, 2 * unit + i, &scale, &minimum);
                word |= uint32_t(scale) << (6 * i) | uint32_t(minimum) << (16 + 6 * i);
            }
            put_word(item + 4 * k.unit + 64 * unit + 8 * (row % 8) + 4 * (row / 8), word);
        }
    }
}

void pack_q6_k_scales(const uint8_t* const* blocks, Powers powers, uint8_t* item) {
    for (int row = 0; row < 16; row++) {
        const int g = row % 8, high = row / 8;
        for (int group = 0; group < 16; group++)  // of 16 columns
            item[3072 + 64 * (group / 4) + 8 * g + 4 * (group / 2 % 2) + 2 * (group % 2) + high] =
                uint8_t(int8_t(blocks[row][192 + group]) + 128);
        put_half(item + 3328 + 4 * g + 2 * high,
                 uint16_t(scaled(half_at(blocks[row] + 208), powers.d - 4 * high, false)));
    }
}

// Q4_0 and Q4_1: FP16 a row and group of 32.
void pack_halves(const SlabKind& k, const uint8_t* const* blocks, Powers powers, uint8_t* item) {
    const bool minima = k.file == Quant::q4_1;
    for (int row = 0; row < 16; row++)
        for (int group = 0; group < 8; group++) {
            const uint8_t* block = blocks[row] + group * row_bytes(k.file, 32);
            uint8_t* to = item + 2048 + (minima ? 128 : 64) * (group / 2) + (minima ? 16 : 8) * (row % 8) +
                          4 * (group % 2) + 2 * (row / 8);
            put_half(to, uint16_t(scaled(half_at(block), powers.d - (row < 8 ? 0 : 4), false)));
            if (minima) put_half(to + 8, uint16_t(scaled(half_at(block + 2), powers.m, false)));
        }
}

// IQ4_XS: 16 bits a row and unit, two scales of 6 bits and a nibble of D.
void pack_iq4_xs_scales(const uint8_t* const* blocks, Powers powers, uint8_t* item) {
    for (int row = 0; row < 16; row++) {
        const uint8_t* block = blocks[row];
        const uint32_t d = scaled(half_at(block), powers.d, false), upper = half_at(block + 2);
        const auto scale = [&](int group) {
            return uint32_t(block[4 + group / 2] >> (4 * (group % 2)) & 15) | (upper >> (2 * group) & 3) << 4;
        };
        for (int unit = 0; unit < 4; unit++)
            put_half(item + 2048 + 32 * unit + 4 * (row % 8) + 2 * (row / 8),
                     uint16_t(scale(2 * unit) | scale(2 * unit + 1) << 6 | (d >> (4 * unit) & 15) << 12));
    }
}

void pack_mxfp4_scales(const uint8_t* const* blocks, uint8_t* item) {
    for (int row = 0; row < 16; row++)
        for (int group = 0; group < 8; group++)
            item[2048 + 32 * (group / 2) + 4 * (row % 8) + 2 * (group % 2) + row / 8] =
                blocks[row][17 * group];
}

void pack_q8_0(const uint8_t* const* blocks, Powers powers, uint8_t* item) {
    for (int unit = 0; unit < 4; unit++)
        for (int half = 0; half < 2; half++) {
            uint8_t* to = item + 1088 * unit;
            const auto block = [&](int row) { return blocks[row] + 34 * (2 * unit + half); };
            for (int lane = 0; lane < 32; lane++)
                for (int word = 0; word < 4; word++)  // row g, row g+8; 16 columns on: row g, row g+8
                    for (int i = 0; i < 4; i++) {
                        const int offset[] = {0, 8, 1, 9};
                        const int column = 16 * (word / 2) + 2 * (lane % 4) + offset[i];
                        const auto code = int8_t(block(lane / 4 + 8 * (word % 2))[2 + column]);
                        to[512 * half + 16 * lane + 4 * word + i] = uint8_t(code + 128);
                    }
            for (int row = 0; row < 16; row++)
                put_half(to + 1024 + 8 * (row % 8) + 4 * half + 2 * (row / 8),
                         uint16_t(scaled(half_at(block(row)), powers.d, false)));
        }
}

// `rows`: raw rows in the order of the slabs, 16 a slab.
Bytes slabs_of(const SlabKind& k, const std::vector<const uint8_t*>& rows, Powers powers) {
    const int items = kIn / kSlabColumns;
    Bytes slabs(rows.size() / 16 * size_t(items * k.item));
    for (size_t slab = 0; slab < rows.size() / 16; slab++)
        for (int i = 0; i < items; i++) {
            const uint8_t* blocks[16];
            for (int r = 0; r < 16; r++)
                blocks[r] = rows[slab * 16 + size_t(r)] + i * row_bytes(k.file, kSlabColumns);
            uint8_t* item = &slabs[(slab * size_t(items) + size_t(i)) * size_t(k.item)];
            if (k.file == Quant::q8_0) {
                pack_q8_0(blocks, powers, item);
                continue;
            }
            pack_codes(k, blocks, item);
            if (has_minima(k)) pack_k_scales(k, blocks, powers, item);
            if (k.file == Quant::q6_k) pack_q6_k_scales(blocks, powers, item);
            if (k.file == Quant::q4_0 || k.file == Quant::q4_1) pack_halves(k, blocks, powers, item);
            if (k.file == Quant::iq4_xs) pack_iq4_xs_scales(blocks, powers, item);
            if (k.file == Quant::mxfp4) pack_mxfp4_scales(blocks, item);
        }
    return slabs;
}

Weight matrix(Quant quant, const Bytes& bytes, int out) {
    Weight w;
    w.data = bytes.data();
    w.experts = kExperts;
    w.out = out;
    w.in = kIn;
    w.quant = quant;
    return w;
}

// The greatest scale is below 2^-1 and the slabs' below 2^15; the minima get another power, to see it undone.
constexpr Powers kPowers = {15, 13};
const float kFactors[2] = {std::ldexp(1.0f, -kPowers.d), std::ldexp(1.0f, kPowers.d - kPowers.m)};

void expect_same(const Weight& file, Weight slab) {
    ASSERT_EQ(weight_bytes(slab), weight_bytes(file));
    const float half[2] = {0.5f, 1.0f};  // MXFP4's values are doubled
    slab.scale = file.quant == Quant::mxfp4 ? half : kFactors;
    slab.scale_count = 1;
    std::vector<float> row(kIn);
    for (int e = 0; e < kExperts; e++)
        for (int r = 0; r < file.out; r++) {
            decode_row(slab, e, r, row.data());
            for (int c = 0; c < kIn; c++) {
                const uint32_t wanted = bits_of_float(decode_element(file, e, r, c));
                ASSERT_EQ(bits_of_float(decode_element(slab, e, r, c)), wanted) << e << " " << r << " " << c;
                ASSERT_EQ(bits_of_float(row[size_t(c)]), wanted) << "row " << e << " " << r << " " << c;
            }
        }
}

TEST(Slab, DecodesWhatTheFileHolds) {
    for (const SlabKind& k : kKinds) {
        SCOPED_TRACE(quant_name(k.slab));
        const int out = 48;
        const Bytes file = random_blocks(k, out, 1);
        std::vector<const uint8_t*> rows;
        rows.reserve(size_t(kExperts) * out);
        for (int i = 0; i < kExperts * out; i++) rows.push_back(&file[size_t(i * row_bytes(k.file, kIn))]);
        const Bytes slabs = slabs_of(k, rows, kPowers);
        expect_same(matrix(k.file, file, out), matrix(k.slab, slabs, out));
    }
}

TEST(Slab, DecodesGateAndUpThatShareSlabs) {
    for (const SlabKind& k : kKinds) {
        SCOPED_TRACE(quant_name(k.slab));
        const int out = 24;  // not a multiple of 16: each gives 8 rows to a slab
        const Bytes gate = random_blocks(k, out, 2), up = random_blocks(k, out, 3);
        std::vector<const uint8_t*> rows;
        for (int slab = 0; slab < kExperts * out / 8; slab++)
            for (const Bytes* from : {&gate, &up})
                for (int r = 0; r < 8; r++)
                    rows.push_back(&(*from)[size_t((8 * slab + r) * row_bytes(k.file, kIn))]);
        const Bytes slabs = slabs_of(k, rows, kPowers);
        Weight w = matrix(k.slab, slabs, out);
        w.pairing = Pairing::gate;
        expect_same(matrix(k.file, gate, out), w);
        w.pairing = Pairing::up;
        expect_same(matrix(k.file, up, out), w);
    }
}

}  // namespace
}  // namespace sparkinfer
