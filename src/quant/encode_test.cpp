// encode_test.cpp — encoders against the `gguf` package's bytes where the format determines them
// (tools/goldens_quant.py), and against bounds that follow from the format where a search decides. Risk: a
// code in the wrong bits, a scale that loses more than it must, a rare block (zeros, one outlier, no
// importance) that becomes nonsense.
#include "quant/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/half.h"
#include "quant/decode.h"
#include "quant/formats.h"

namespace sparkinfer {
namespace {

uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// As the golden script makes them.
std::vector<float> source_values(int64_t n) {
    std::vector<float> values(size_t(n), 0.0f);
    for (int64_t i = 0; i < n; i++)
        if (i / 32 % 97 != 96)
            values[size_t(i)] =
                float(std::ldexp(double(int64_t(mix(uint64_t(i)) >> 40) - (1 << 23)), int(i / 32 % 20) - 37));
    return values;
}

std::vector<std::byte> encoded(Quant q, const std::vector<float>& x, const float* importance = nullptr) {
    std::vector<std::byte> bytes(size_t(row_bytes(q, int64_t(x.size()))));
    encode_row(q, x.data(), int64_t(x.size()), importance, bytes.data());
    return bytes;
}

std::vector<float> decoded(Quant q, const std::vector<std::byte>& bytes, size_t n) {
    Weight w;
    w.data = bytes.data();
    w.out = 1;
    w.in = int32_t(n);
    w.quant = q;
    std::vector<float> values(n);
    decode_row(w, 0, 0, values.data());
    return values;
}

TEST(Encode, BytesOfTheReferenceWhereTheFormatDecides) {
    std::ifstream list(std::string(SPARKINFER_SOURCE_DIR) + "/tests/data/quant/encoded.txt");
    uint32_t type_id = 0;
    std::string name, digest;
    int64_t n = 0;
    int kinds = 0;
    while (list >> type_id >> name >> n >> digest) {
        Quant q{};
        ASSERT_TRUE(quant_from_ggml(type_id, &q));
        const std::vector<std::byte> bytes = encoded(q, source_values(n));
        uint64_t total = 0;
        for (size_t e = 0; e < bytes.size(); e++) total += mix(uint64_t(bytes[e]) + (uint64_t(e) << 32));
        EXPECT_EQ(fmt::format("{:016x}", total), digest) << name;
        kinds++;
    }
    EXPECT_EQ(kinds, 7);
}

constexpr Quant kAll[] = {Quant::q4_0, Quant::q4_1, Quant::q5_0, Quant::q5_1,
                          Quant::q8_0, Quant::q4_k, Quant::q5_k, Quant::q6_k};

std::vector<float> normal_values(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> x(n);
    for (float& v : x) v = normal(random);
    return x;
}

// Relative root of the mean square error.
double loss(const std::vector<float>& x, const std::vector<float>& y, const float* w = nullptr) {
    double error = 0, all = 0;
    for (size_t i = 0; i < x.size(); i++) {
        const double weight = w ? double(w[i]) : 1, diff = double(x[i]) - double(y[i]);
        error += weight * diff * diff;
        all += weight * double(x[i]) * double(x[i]);
    }
    return std::sqrt(error / all);
}

// Bounds a tenth above what ggml's quantiser loses on normally distributed weights, by llama.cpp's own
// figures.
TEST(Encode, NormalWeightsLoseNoMoreThanTheFormatCosts) {
    const std::vector<float> x = normal_values(1 << 16, 1);
    const auto bound = [](Quant q) {
        switch (q) {
            case Quant::q4_0: return 0.0902;
            case Quant::q4_1: return 0.0819;
            case Quant::q5_0: return 0.0449;
            case Quant::q5_1: return 0.0397;
            case Quant::q8_0: return 0.00563;
            case Quant::q4_k: return 0.0748;
            case Quant::q5_k: return 0.0379;
            default: return 0.0187;
        }
    };
    for (const Quant q : kAll) {
        const double lost = loss(x, decoded(q, encoded(q, x), x.size()));
        EXPECT_LT(lost, bound(q)) << quant_name(q);
        EXPECT_GT(lost, bound(q) / 2) << quant_name(q) << ": a bound that says nothing";
    }
}

// Encoding what a block decodes to changes nothing where the scale is taken from the extreme code, which is
// there.
TEST(Encode, WhatWasDecodedComesBack) {
    for (const Quant q : {Quant::q8_0, Quant::q4_0, Quant::q5_0, Quant::q4_1, Quant::q5_1}) {
        const std::vector<float> x = normal_values(1 << 14, 2);
        const std::vector<float> once = decoded(q, encoded(q, x), x.size());
        const std::vector<float> twice = decoded(q, encoded(q, once), x.size());
        EXPECT_LT(loss(once, twice), 5e-4) << quant_name(q);
    }
    for (const Quant q : {Quant::q4_k, Quant::q5_k, Quant::q6_k}) {
        const std::vector<float> x = normal_values(1 << 14, 3);
        const std::vector<float> once = decoded(q, encoded(q, x), x.size());
        const std::vector<float> twice = decoded(q, encoded(q, once), x.size());
        EXPECT_LT(loss(once, twice), loss(x, once) / 3) << quant_name(q);
    }
}

TEST(Encode, ImportanceMovesTheErrorToWhereItCostsLeast) {
    const std::vector<float> x = normal_values(1 << 14, 4);
    std::vector<float> importance(x.size());
    for (size_t i = 0; i < x.size(); i++) importance[i] = i % 8 == 0 ? 50.0f : 0.1f;
    for (const Quant q : kAll) {
        if (q == Quant::q8_0) continue;
        const double plain = loss(x, decoded(q, encoded(q, x), x.size()), importance.data());
        const double weighted =
            loss(x, decoded(q, encoded(q, x, importance.data()), x.size()), importance.data());
        EXPECT_LT(weighted, plain * 0.95) << quant_name(q);
    }
}

TEST(Encode, RareBlocks) {
    std::vector<std::vector<float>> cases;
    cases.emplace_back(256, 0.0f);
    cases.emplace_back(256, 0.37f);
    cases.emplace_back(256, -0.37f);
    cases.emplace_back(256, 1e-20f);
    cases.emplace_back(256, 1e-40f);  // subnormal
    std::vector<float> outlier = normal_values(256, 5);
    outlier[77] = 300;
    cases.push_back(outlier);
    std::vector<float> half(256, 0.0f);
    std::copy_n(normal_values(128, 6).begin(), 128, half.begin() + 128);
    cases.push_back(half);
    const std::vector<float> nobody(256, 0.0f);  // importance 0 everywhere: as none
    for (const Quant q : kAll)
        for (size_t c = 0; c < cases.size(); c++)
            for (const float* importance : {static_cast<const float*>(nullptr), nobody.data()}) {
                const std::vector<float>& x = cases[c];
                const std::vector<float> y = decoded(q, encoded(q, x, importance), x.size());
                const auto [low, high] = std::minmax_element(x.begin(), x.end());
                // The coarsest code is a fifteenth of the range that holds 0.
                const float range = std::max(*high, 0.0f) - std::min(*low, 0.0f);
                for (size_t i = 0; i < x.size(); i++)
                    ASSERT_LE(std::fabs(x[i] - y[i]), range / 14 + 1e-7f)
                        << quant_name(q) << ", case " << c << ", element " << i;
            }
}

// Rows are independent, and blocks within a row are without importance: whoever quantises in parts gets the
// same.
TEST(Encode, PartsOfARowGiveTheSameBytes) {
    const std::vector<float> x = normal_values(1024, 7);
    for (const Quant q : kAll) {
        std::vector<std::byte> parts;
        for (size_t at = 0; at < x.size(); at += 256) {
            const std::vector<std::byte> part =
                encoded(q, {x.begin() + long(at), x.begin() + long(at) + 256});
            parts.insert(parts.end(), part.begin(), part.end());
        }
        EXPECT_EQ(parts, encoded(q, x)) << quant_name(q);
    }
}

}  // namespace
}  // namespace sparkinfer
