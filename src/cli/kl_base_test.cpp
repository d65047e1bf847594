// kl_base_test.cpp — saved log-probabilities and what is made of them. Risk: a file that llama-perplexity
// reads otherwise, statistics that are off where nobody recomputes them, a damaged file that is believed.
#include "cli/kl_base.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace sparkinfer {
namespace {

std::string scratch(const char* name) { return std::string(::testing::TempDir()) + "kl_base_" + name; }

std::vector<float> log_softmax(const std::vector<float>& logits) {
    double sum = 0;
    for (const float x : logits) sum += std::exp(double(x));
    std::vector<float> result = logits;
    for (float& x : result) x = float(double(x) - std::log(sum));
    return result;
}

std::vector<float> random_logits(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> logits(n);
    for (float& x : logits) x = normal(random);
    return logits;
}

constexpr int64_t kWindow = 6, kVocab = 7;  // 2 rows a window, an odd vocabulary

std::vector<TokenId> tokens() {
    std::vector<TokenId> ids(2 * kWindow);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = TokenId(i % kVocab);
    return ids;
}

std::string written(const char* name) {
    const std::string path = scratch(name);
    auto writer = KlBaseWriter::create(path, tokens(), kWindow, kVocab);
    EXPECT_TRUE(writer.ok());
    for (uint32_t row = 0; row < 4; ++row)
        EXPECT_TRUE(writer.value().write_row(random_logits(size_t(kVocab), row)).ok());
    EXPECT_TRUE(writer.value().commit().ok());
    return path;
}

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

TEST(KlBase, BytesLieWhereTheFormatSays) {
    const std::string bytes = bytes_of(written("layout"));
    ASSERT_EQ(bytes.size(), size_t(20 + 12 * 4 + 4 * (8 + 16)));
    EXPECT_EQ(bytes.substr(0, 8), "_logits_");
    const auto word = [&](size_t at) {
        int32_t value;
        std::memcpy(&value, bytes.data() + at, 4);
        return value;
    };
    EXPECT_EQ(word(8), kWindow);
    EXPECT_EQ(word(12), kVocab);
    EXPECT_EQ(word(16), 2);
    EXPECT_EQ(word(20 + 4 * 8), 1);  // token 8
    uint16_t padding;
    std::memcpy(&padding, bytes.data() + 20 + 48 + 8 + 14, 2);
    EXPECT_EQ(padding, 0);
}

TEST(KlBase, WhatIsReadIsWhatWasSaved) {
    const auto base = KlBase::open(written("round"));
    ASSERT_TRUE(base.ok()) << base.error().message;
    EXPECT_EQ(base.value().tokens(), tokens());
    EXPECT_EQ(base.value().window(), kWindow);
    for (uint32_t row = 0; row < 4; ++row) {
        std::vector<float> found(kVocab, 0.0f);
        ASSERT_TRUE(base.value().log_probabilities(row, found).ok());
        const std::vector<float> expected = log_softmax(random_logits(size_t(kVocab), row));
        for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 16.0 / 65535);
    }
}

TEST(KlBase, FarBelowTheBestIsCutAtSixteen) {
    const std::vector<float> logits = {0, -100, -3};
    std::vector<std::byte> row(size_t(kl_row_bytes(3)));
    encode_kl_row(logits, row.data());
    float numbers[2];
    std::memcpy(numbers, row.data(), sizeof numbers);
    EXPECT_NEAR(numbers[0], 16.0 / 65535, 1e-8);
    EXPECT_NEAR(numbers[1], -16 - std::log1p(std::exp(-3)), 1e-5);
    uint16_t codes[3];
    std::memcpy(codes, row.data() + 8, sizeof codes);
    EXPECT_EQ(codes[0], 65535);
    EXPECT_EQ(codes[1], 0);
    EXPECT_EQ(codes[2], 53247);  // 13 / 16 of the way
    const std::vector<float> flat = {2, 2};
    encode_kl_row(flat, row.data());
    std::memcpy(numbers, row.data(), sizeof numbers);
    EXPECT_EQ(numbers[0], 0);
    EXPECT_NEAR(numbers[1], -std::log(2), 1e-6);
}

TEST(KlBase, DamagedFilesAreRefused) {
    const std::string path = written("whole"), whole = bytes_of(path), bad = scratch("bad");
    for (size_t length = 0; length < whole.size(); length += length < 24 ? 1 : 13) {
        write_bytes(bad, whole.substr(0, length));
        EXPECT_FALSE(KlBase::open(bad).ok()) << length;
    }
    write_bytes(bad, whole + "x");
    EXPECT_FALSE(KlBase::open(bad).ok());
    for (const size_t at : {size_t(8), size_t(12), size_t(16), size_t(20)})  // header numbers, a token
        for (const int32_t value : {-1, 0x7fffffff}) {
            std::string changed = whole;
            std::memcpy(changed.data() + at, &value, 4);
            write_bytes(bad, changed);
            EXPECT_FALSE(KlBase::open(bad).ok()) << at << " " << value;
        }
    std::string changed = whole;
    const float nan = NAN;
    std::memcpy(changed.data() + 20 + 48, &nan, 4);  // the first row's scale
    write_bytes(bad, changed);
    const auto base = KlBase::open(bad);
    ASSERT_TRUE(base.ok());
    std::vector<float> row(kVocab, 0.0f);
    EXPECT_FALSE(base.value().log_probabilities(0, row).ok());
    EXPECT_TRUE(base.value().log_probabilities(1, row).ok());
}

TEST(KlStatistics, FiguresOfTwoPositionsByHand) {
    KlStatistics statistics;
    // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = 1/2·ln 2 − 1/4·ln 2 = ln 2 / 4; then q = p: 0.
    const float half = float(std::log(0.5)), quarter = float(std::log(0.25));
    const std::vector<float> base = {half, quarter, quarter}, other = {quarter, half, quarter};
    statistics.add(other, base, TokenId(1));
    statistics.add(base, base, TokenId(0));
    EXPECT_EQ(statistics.count(), 2);
    const std::string text = statistics.report();
    const auto has = [&](const char* line) {
        EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
    };
    has("Mean    KLD:   0.086643");  // ln 2 / 8
    has("Maximum KLD:   0.173287");
    has("Median  KLD:   0.086643");
    has("99.9%   KLD:   0.1731");  // 0.999 of the way from 0 to the maximum
    has("Mean    Δp: 12.500");     // (1/2 − 1/4, 0)
    has("Same top p: 50.000");
    has("Mean PPL(Q)                   :   2.000000");
    has("Mean PPL(base)                :   2.828427");  // √(4·2)
}

}  // namespace
}  // namespace sparkinfer
