// half_test.cpp — the small float formats. Risk: a rounding tie, a subnormal or a NaN handled differently
// from IEEE.
#include "core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace sparkinfer {
namespace {

// value of an f16 pattern from its definition, in double
double f16_value(uint16_t h) {
    const int exponent = (h >> 10) & 31, mantissa = h & 1023;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

TEST(Half, EveryF16Pattern) {
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = f16_to_f32(uint16_t(h));
        if ((h & 0x7c00) != 0x7c00) {
            ASSERT_EQ(double(f), f16_value(uint16_t(h))) << h;
            ASSERT_EQ(std::signbit(f), (h & 0x8000) != 0);
            ASSERT_EQ(f32_to_f16(f), h);
        } else if ((h & 0x3ff) == 0) {
            ASSERT_TRUE(std::isinf(f));
            ASSERT_EQ(f32_to_f16(f), h);
        } else {
            ASSERT_TRUE(std::isnan(f));
            ASSERT_EQ(f32_to_f16(f), h | 0x200);
        }
    }
}

// Nearest even by search: between every two neighbours the middle goes to the even one, and the floats next
// to the middle go to the nearer one.
TEST(Half, F16RoundsToNearestEven) {
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const double low = f16_value(uint16_t(h)), high = h == 0x7bff ? 65536.0 : f16_value(uint16_t(h + 1));
        const auto middle = float((low + high) / 2);
        ASSERT_EQ(double(middle), (low + high) / 2);
        ASSERT_EQ(f32_to_f16(middle), h & 1 ? h + 1 : h) << h;
        ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), h);
        ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), h + 1);
        ASSERT_EQ(f32_to_f16(-std::nextafter(middle, 1e9f)), (h + 1) | 0x8000);
    }
    EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
    EXPECT_EQ(f32_to_f16(-INFINITY), 0xfc00);
}

TEST(Half, Bf16) {
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = bf16_to_f32(uint16_t(h));
        ASSERT_EQ(bits_of_float(f), h << 16);
        ASSERT_EQ(f32_to_bf16(f), std::isnan(f) ? h | 0x40 : h);
    }
    std::mt19937 random(5);
    for (int i = 0; i < 1000000; i++) {
        const auto bits = uint32_t(random());
        const float f = float_of_bits(bits);
        if (std::isnan(f)) {
            ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f))));
            continue;
        }
        const uint32_t low = bits >> 16, rest = bits & 0xffff;
        const uint32_t expected = rest > 0x8000 || (rest == 0x8000 && low % 2 == 1) ? low + 1 : low;
        ASSERT_EQ(f32_to_bf16(f), expected) << bits;
    }
    EXPECT_EQ(f32_to_bf16(float_of_bits(0x7fffffff)), 0x7fff);  // a NaN with all bits set must not wrap
}

TEST(Half, E4m3E2m1Ue8m0) {
    for (int c = 0; c < 256; c++) {
        const int exponent = (c >> 3) & 15, mantissa = c & 7;
        const float f = e4m3_to_f32(uint8_t(c));
        if ((c & 0x7f) == 0x7f) {
            EXPECT_TRUE(std::isnan(f));
            continue;
        }
        const double magnitude =
            exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
        EXPECT_EQ(double(f), c & 128 ? -magnitude : magnitude) << c;
    }
    for (int c = 0; c < 256; c++)
        if ((c & 0x7f) != 0x7f) {
            EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(uint8_t(c))), c);
        }
    const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint32_t c = 0; c < 16; c++)
        EXPECT_EQ(e2m1_to_f32(c), c & 8 ? -magnitudes[c & 7] : magnitudes[c & 7]) << c;
    for (int c = 0; c < 255; c++) EXPECT_EQ(double(ue8m0_to_f32(uint8_t(c))), std::ldexp(1.0, c - 127)) << c;
    EXPECT_TRUE(std::isnan(ue8m0_to_f32(255)));
}

// The nearest of all codes, ties to the even one.
TEST(Half, FloatsToE4m3) {
    std::mt19937 random(6);
    const auto expect_nearest = [](float f) {
        int best = 0;
        for (int c = 1; c < 0x7f; c++) {
            const double now = std::abs(double(e4m3_to_f32(uint8_t(c))) - std::abs(double(f)));
            const double least = std::abs(double(e4m3_to_f32(uint8_t(best))) - std::abs(double(f)));
            if (now < least || (now == least && c % 2 == 0)) best = c;
        }
        ASSERT_EQ(f32_to_e4m3(f), best | (std::signbit(f) ? 0x80 : 0)) << f;
    };
    for (int i = 0; i < 20000; i++) {
        const float f = float_of_bits((random() & 0x807fffffu) | (110 + random() % 27) << 23);
        expect_nearest(f);
        expect_nearest(float_of_bits(bits_of_float(f) & 0xfff80000u));  // ties among them
    }
    for (float f : {0.0f, -0.0f, 0x1p-10f, 0x1.8p-9f, 0x1p-149f, 447.9f, 448.0f, 464.0f, 1e30f})
        expect_nearest(f);
    EXPECT_EQ(f32_to_e4m3(INFINITY), 0x7e);
    EXPECT_EQ(f32_to_e4m3(-INFINITY), 0xfe);
    EXPECT_EQ(f32_to_e4m3(NAN) & 0x7f, 0x7f);
}

}  // namespace
}  // namespace sparkinfer
