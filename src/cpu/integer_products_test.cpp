#include "cpu/integer_products.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "quant/decode.h"

namespace sparkinfer {
namespace {

constexpr Quant kFormats[] = {Quant::q4_0,   Quant::q4_1,   Quant::q5_0, Quant::q5_1,
                              Quant::q8_0,   Quant::q4_k,   Quant::q5_k, Quant::q6_k,
                              Quant::iq4_nl, Quant::iq4_xs, Quant::mxfp4};

std::vector<IntegerForm> forms() {
    std::vector<IntegerForm> list;
    for (const IntegerForm f : {IntegerForm::avx2, IntegerForm::avx512})
        if (f <= integer_form()) list.push_back(f);
    return list;
}

// A matrix of random bytes, but for the bits that would make its 16-bit scales large or not finite.
struct RandomWeight {
    std::vector<std::byte> data;
    Weight w;
    RandomWeight(std::mt19937& random, Quant quant, int rows, int in) {
        w.quant = quant;
        w.out = rows;
        w.in = in;
        data.resize(size_t(row_bytes(w) * rows));
        for (std::byte& b : data) b = std::byte(random() & 255);
        const auto block = size_t(row_bytes(quant, quant_block(quant)));
        for (size_t at = 0; at < data.size(); at += block) {
            const auto tame = [&](size_t i) { data[at + i + 1] &= std::byte(0xb3); };
            if (quant == Quant::mxfp4)
                data[at] = std::byte(100 + random() % 20);
            else
                tame(quant == Quant::q6_k ? 208 : 0);
            if (quant == Quant::q4_1 || quant == Quant::q5_1 || quant == Quant::q4_k || quant == Quant::q5_k)
                tame(2);
        }
        w.data = data.data();
    }
};

struct Rows {
    std::vector<std::vector<IntegerGroup>> groups;
    std::vector<const IntegerGroup*> pointers;
    Rows(const std::vector<float>& x, int64_t k, Activations kind, IntegerForm form) {
        for (size_t at = 0; at < x.size(); at += size_t(k)) {
            groups.emplace_back(size_t(k / kGroup));
            make_integers(&x[at], k, kind, groups.back().data(), form);
        }
        for (const auto& g : groups) pointers.push_back(g.data());
    }
};

// [tokens, rows], in tiles of kTileGroups groups.
std::vector<float> product(const Weight& w, int row, int rows, const IntegerGroup* const* x, int tokens,
                           Activations kind, IntegerForm form) {
    std::vector<PackedGroup> tile(kTileGroups);
    std::vector<float> out(size_t(tokens) * size_t(rows) + 1, -7.0f);
    const int groups = w.in / kGroup;
    for (int g = 0; g < groups; g += kTileGroups) {
        const int count = std::min(kTileGroups, groups - g);
        const TilePlace place{.expert = 0, .row = row, .rows = rows, .first_group = g, .groups = count};
        pack_tile(w, place, tile.data(), next_tile(w, place), form);
        multiply_tile({.tile = tile.data(),
                       .x = x,
                       .tokens = tokens,
                       .rows = rows,
                       .first_group = g,
                       .groups = count,
                       .halves = has_half_scales(w.quant),
                       .planes = kind == Activations::int16,
                       .out = out.data(),
                       .out_stride = rows,
                       .next = next_tile(w, place)},
                      form);
    }
    EXPECT_EQ(out.back(), -7.0f) << "written behind the end";
    out.pop_back();
    return out;
}

// Risk: a code, a scale or a column in the wrong place. Activations that are integers already are multiplied
// without loss, so what is left is the rounding of float32 sums.
TEST(IntegerProducts, AreTheDecodersProducts) {
    std::mt19937 random(1);
    const int k = 1024, rows = 16, tokens = 3;
    for (const Activations kind : {Activations::int16, Activations::int8}) {
        const int limit = kind == Activations::int16 ? 32639 : 127;
        std::vector<float> x(size_t(tokens) * k);
        for (size_t i = 0; i < x.size(); ++i)
            x[i] = i % kGroup == 7 ? float(limit) : float(int(random() % unsigned(2 * limit + 1)) - limit);
        for (const IntegerForm form : forms())
            for (const Quant quant : kFormats) {
                const RandomWeight weight(random, quant, rows, k);
                const Rows integers(x, k, kind, form);
                const auto got = product(weight.w, 0, rows, integers.pointers.data(), tokens, kind, form);
                std::vector<float> w(k);
                for (int r = 0; r < rows; ++r) {
                    decode_row(weight.w, 0, r, w.data());
                    for (int t = 0; t < tokens; ++t) {
                        double want = 0, size = 0;
                        for (int i = 0; i < k; ++i) {
                            const double p = double(w[size_t(i)]) * double(x[size_t(t * k + i)]);
                            want += p, size += std::abs(p);
                        }
                        ASSERT_NEAR(double(got[size_t(t * rows + r)]), want, 2e-6 * size)
                            << quant_name(quant) << " form " << int(form) << " row " << r << " token " << t;
                    }
                }
            }
    }
}

// Risk: bits that depend on the rows beside, on the tokens beside, or on the instructions.
TEST(IntegerProducts, BitsDependOnTheTwoRowsAlone) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    const int rows = 13, tokens = 19;
    for (const Quant quant : kFormats)
        for (const int k : {256, 1792}) {
            const RandomWeight weight(random, quant, rows, k);
            std::vector<float> x(size_t(tokens) * size_t(k));
            for (float& v : x) v = normal(random);
            for (const Activations kind : {Activations::int16, Activations::int8}) {
                std::vector<float> first;
                for (const IntegerForm form : forms()) {
                    const Rows integers(x, k, kind, form);
                    const IntegerGroup* const* p = integers.pointers.data();
                    const auto all = product(weight.w, 0, rows, p, tokens, kind, form);
                    if (first.empty()) first = all;
                    for (int t = 0; t < tokens; ++t)
                        for (int r = 0; r < rows; ++r) {
                            const float alone = product(weight.w, r, 1, p + t, 1, kind, form)[0];
                            const auto at = size_t(t * rows + r);
                            ASSERT_EQ(std::bit_cast<uint32_t>(alone), std::bit_cast<uint32_t>(all[at]))
                                << quant_name(quant) << " " << k << " " << t << " " << r;
                            ASSERT_EQ(std::bit_cast<uint32_t>(first[at]), std::bit_cast<uint32_t>(all[at]))
                                << quant_name(quant) << " form " << int(form);
                        }
                }
            }
        }
}

// Risk: values that are not finite, or vanish, become ordinary integers.
TEST(IntegerRows, ExtremesAndErrors) {
    for (const IntegerForm form : forms()) {
        std::vector<float> x(kGroup, 1.0f);
        IntegerGroup g;
        for (const float bad : {INFINITY, -INFINITY, NAN}) {
            x[5] = bad;
            make_integers(x.data(), kGroup, Activations::int16, &g, form);
            EXPECT_TRUE(std::isnan(g.scale));
            EXPECT_TRUE(std::isnan(g.sum_all));
        }
        std::fill(x.begin(), x.end(), 0.0f);
        make_integers(x.data(), kGroup, Activations::int16, &g, form);
        EXPECT_EQ(g.scale, 0.0f);
        EXPECT_EQ(g.sum_all, 0.0f);
        for (int i = 0; i < kGroup; ++i) x[size_t(i)] = i % 2 ? 3.0e38f : -3.0e38f;
        make_integers(x.data(), kGroup, Activations::int16, &g, form);
        EXPECT_NEAR(double(g.scale), 3.0e38 / 32639, 1e29);
        EXPECT_NEAR(double(g.sum_all), 0, 0);
        x.assign(kGroup, 2.0f);
        x[31] = -2.0f;
        make_integers(x.data(), kGroup, Activations::int8, &g, form);
        EXPECT_FLOAT_EQ(g.sum[0], 32.0f);
        EXPECT_FLOAT_EQ(g.sum[1], 28.0f);
        EXPECT_FLOAT_EQ(g.sum_all, 60.0f);
    }
}

}  // namespace
}  // namespace sparkinfer
