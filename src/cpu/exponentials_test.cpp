#include "cpu/exponentials.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace sparkinfer {
namespace {

// Risk: a polynomial used outside its range, ends that are computed otherwise than whole registers, sums over
// blocks of 1024.
TEST(Exponentials, SoftenMatchesFloat64) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-40, 0);
    for (const int n : {1, 15, 16, 17, 64, 1000, 1024, 1025, 5000}) {
        std::vector<float> x(static_cast<size_t>(n));
        for (float& v : x) v = uniform(random);
        x[size_t(n / 2)] = 0;  // the greatest: nothing is subtracted, so that only the exponential rounds
        const std::vector<float> from = x;
        const double sum = soften(x.data(), n, 0.5f);
        double want = 0;
        for (int i = 0; i < n; ++i) {
            const double e = std::exp(0.5 * double(from[size_t(i)]));
            want += e;
            ASSERT_NEAR(double(x[size_t(i)]) / e, 1, 2.5e-7) << from[size_t(i)];
        }
        EXPECT_NEAR(sum / want, 1, 1e-6) << n;
        double all = 0;
        for (const float v : from) all += std::exp(double(v));
        EXPECT_NEAR(sum_of_exponentials(from.data(), n, 0) / all, 1, 1e-6) << n;
    }
}

TEST(Exponentials, ValuesWithoutNumbers) {
    std::vector<float> x = {1, -INFINITY, NAN, 1, -200};
    EXPECT_EQ(greatest_value(x.data(), 5), 1.0f);
    EXPECT_NEAR(sum_of_exponentials(x.data(), 5, 1), 2, 1e-12);
    soften(x.data(), 5, 1);
    EXPECT_EQ(x[0], 1.0f);
    EXPECT_EQ(x[1], 0.0f);
    EXPECT_TRUE(std::isnan(x[2]));
    EXPECT_EQ(x[4], 0.0f);
}

// Risk: bits that depend on how many values are computed together.
TEST(Exponentials, SiluProductIsElementwise) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0, 10);
    const int n = 53;
    std::vector<float> gate(n), up(n);
    for (float& v : gate) v = normal(random);
    for (float& v : up) v = normal(random);
    gate[3] = 120, gate[4] = -120, gate[5] = 0;
    const std::vector<float> from = gate;
    silu_product(gate.data(), up.data(), n);
    for (int i = 0; i < n; ++i) {
        const auto at = size_t(i);
        const double g = double(from[at]), want = g / (1 + std::exp(-g)) * double(up[at]);
        EXPECT_NEAR(double(gate[at]), want, 1e-6 * std::abs(want) + 1e-35) << from[at];
        float alone = from[at];
        silu_product(&alone, &up[at], 1);
        EXPECT_EQ(std::bit_cast<uint32_t>(alone), std::bit_cast<uint32_t>(gate[at]));
    }
}

}  // namespace
}  // namespace sparkinfer
