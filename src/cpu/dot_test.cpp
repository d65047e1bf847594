#include "cpu/dot.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "cpu/decode_rows.h"
#include "quant/decode.h"

namespace sparkinfer {
namespace {

std::vector<float> normals(std::mt19937& random, size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random);
    return values;
}

// Risk: tiles of different shapes sum in different orders. Every result of a large product equals the product
// alone, for widths around the vector length and the block of 1024.
TEST(DotRows, BitsDoNotDependOnTheTile) {
    std::mt19937 random(1);
    for (const int64_t k : {1, 15, 16, 17, 40, 576, 1023, 1024, 1025, 3000}) {
        const int rows = 19, columns = 23;
        const auto w = normals(random, size_t(rows * k)), x = normals(random, size_t(columns * k));
        std::vector<const float*> pointers;
        pointers.reserve(size_t(columns));
        for (int c = 0; c < columns; ++c) pointers.push_back(&x[size_t(c * k)]);
        std::vector<float> all(size_t(rows) * size_t(columns));
        dot_rows(w.data(), k, rows, pointers.data(), columns, k, all.data(), rows);
        for (int r = 0; r < rows; ++r)
            for (int c = 0; c < columns; ++c) {
                float alone;
                dot_rows(&w[size_t(r * k)], k, 1, &pointers[size_t(c)], 1, k, &alone, 1);
                const float tiled = all[size_t(c) * size_t(rows) + size_t(r)];
                ASSERT_EQ(std::bit_cast<uint32_t>(alone), std::bit_cast<uint32_t>(tiled))
                    << k << " " << r << " " << c;
                double want = 0, size = 0;
                for (int64_t i = 0; i < k; ++i) {
                    const double p = double(w[size_t(r * k + i)]) * double(x[size_t(c * k + i)]);
                    want += p;
                    size += std::abs(p);
                }
                ASSERT_NEAR(double(alone), want, 3e-7 * size) << k;
            }
    }
}

// Risk: a short cut that rounds otherwise than the decoder that defines the format. All bytes are tried:
// subnormal, infinite and NaN scales too.
TEST(DecodeRows, ShortCutsGiveTheDecodersBits) {
    std::mt19937 random(3);
    for (Quant quant : {Quant::q4_1, Quant::q8_0, Quant::q4_0, Quant::f16}) {
        Weight w;
        w.quant = quant;
        w.experts = 3;
        w.out = 40;
        w.in = 96;
        w.expert_rows = 50;
        std::vector<std::byte> data(size_t(row_bytes(w)) * 150);
        for (std::byte& b : data) b = std::byte(random() & 255);
        w.data = data.data();
        for (int expert = 0; expert < 3; ++expert) {
            std::vector<float> rows(40 * 100, -7.0f), one(96);
            decode_rows(w, expert, 1, 39, rows.data(), 100);
            for (int r = 0; r < 39; ++r) {
                decode_row(w, expert, 1 + r, one.data());
                for (int i = 0; i < 96; ++i) {
                    const float want = one[size_t(i)], got = rows[size_t(r) * 100 + size_t(i)];
                    const bool same = std::isnan(want)
                                          ? std::isnan(got)
                                          : std::bit_cast<uint32_t>(got) == std::bit_cast<uint32_t>(want);
                    ASSERT_TRUE(same) << quant_name(quant) << " " << r << " " << i;
                }
                ASSERT_EQ(rows[size_t(r) * 100 + 96], -7.0f);
            }
        }
    }
}

}  // namespace
}  // namespace sparkinfer
