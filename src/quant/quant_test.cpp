// quant_test.cpp — decoders against the golden digests of the `gguf` Python package (tools/goldens_quant.py
// says how blocks and digests are made). Risk: a wrong bit of a rare scale pattern, or a fast path that
// differs from the defining decoder.
#include "quant/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "quant/decode.h"
#include "quant/formats.h"

namespace sparkinfer {
namespace {

constexpr int kFinite = 63488;  // finite f16 bit patterns
constexpr int kShown = 8;       // blocks of each format in blocks.f32

uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

std::vector<int> half_offsets(Quant q) {
    switch (q) {
        case Quant::f16:
        case Quant::q4_0:
        case Quant::q5_0:
        case Quant::q8_0:
        case Quant::iq4_nl:
        case Quant::iq4_xs: return {0};
        case Quant::q4_1:
        case Quant::q5_1:
        case Quant::q4_k:
        case Quant::q5_k: return {0, 2};
        case Quant::q2_k: return {80, 82};
        case Quant::q3_k: return {108};
        case Quant::q6_k: return {208};
        default: return {};
    }
}

// n blocks as the golden script makes them.
std::vector<std::byte> golden_blocks(Quant q, uint32_t type_id, int n, int size) {
    std::vector<std::byte> blocks((size_t(n) * size + 7) / 8 * 8);
    for (size_t i = 0; i < blocks.size() / 8; i++) {
        const uint64_t word = mix((uint64_t(type_id) << 40) + i);
        std::memcpy(blocks.data() + 8 * i, &word, 8);
    }
    const std::vector<int> offsets = half_offsets(q);
    for (int k = 0; k < n; k++) {
        for (size_t j = 0; j < offsets.size(); j++) {
            const int index = (k + 31337 * int(j)) % kFinite;
            const auto half = uint16_t(index % (kFinite / 2) | index / (kFinite / 2) << 15);
            std::memcpy(blocks.data() + size_t(k) * size + offsets[j], &half, 2);
        }
        const auto pattern = uint16_t(k);
        if (q == Quant::bf16) std::memcpy(blocks.data() + size_t(k) * 2, &pattern, 2);
    }
    return blocks;
}

uint64_t digest(const std::vector<float>& values) {
    uint64_t total = 0;
    for (size_t e = 0; e < values.size(); e++) total += mix(bits_of_float(values[e]) + (uint64_t(e) << 32));
    return total;
}

Weight one_row(Quant q, const std::vector<std::byte>& blocks, int64_t in) {
    Weight w;
    w.data = blocks.data();
    w.experts = w.out = 1;
    w.in = int32_t(in);
    w.quant = q;
    return w;
}

struct Golden {
    uint32_t type_id;
    std::string label;
    int blocks;
    uint64_t digest;
    std::vector<float> shown;  // the first kShown blocks
};

std::vector<Golden> read_goldens() {
    const std::string folder = std::string(SPARKINFER_SOURCE_DIR) + "/tests/data/quant/";
    std::ifstream list(folder + "blocks.txt"), values(folder + "blocks.f32", std::ios::binary);
    std::vector<Golden> goldens;
    Golden g;
    while (list >> g.type_id >> g.label >> g.blocks >> std::hex >> g.digest >> std::dec) {
        int elements = 0, bytes = 0;
        EXPECT_TRUE(ggml_type_geometry(g.type_id, &elements, &bytes));
        g.shown.resize(size_t(kShown) * elements);
        values.read(reinterpret_cast<char*>(g.shown.data()), std::streamsize(g.shown.size() * 4));
        EXPECT_TRUE(values.good());
        goldens.push_back(g);
    }
    return goldens;
}

TEST(Quant, EveryBlockFormatHasAGolden) {
    const std::vector<Golden> goldens = read_goldens();
    EXPECT_EQ(goldens.size(), 17u);
#define X(name, text, id)                                                                        \
    if ((id) >= 0) {                                                                             \
        int count = 0;                                                                           \
        for (const Golden& g : goldens) count += g.type_id == uint32_t(id) && g.label == (text); \
        EXPECT_EQ(count, 1) << (text);                                                           \
    }
    FOREACH_QUANT(X)
#undef X
}

TEST(Quant, FastRowsEqualTheGoldenBitForBit) {
    for (const Golden& g : read_goldens()) {
        Quant q{};
        ASSERT_TRUE(quant_from_ggml(g.type_id, &q)) << g.label;
        const int block = quant_block(q), size = int(row_bytes(q, block));
        const std::vector<std::byte> blocks = golden_blocks(q, g.type_id, g.blocks, size);
        std::vector<float> values(size_t(g.blocks) * block);
        decode_row(one_row(q, blocks, int64_t(values.size())), 0, 0, values.data());
        for (size_t i = 0; i < g.shown.size(); i++)
            ASSERT_EQ(bits_of_float(values[i]), bits_of_float(g.shown[i])) << g.label << " element " << i;
        EXPECT_EQ(digest(values), g.digest) << g.label;
    }
}

TEST(Quant, DefiningDecodersEqualTheGoldenBitForBit) {
    for (const Golden& g : read_goldens()) {
        Quant q{};
        ASSERT_TRUE(quant_from_ggml(g.type_id, &q)) << g.label;
        const uint64_t found = with_format(q, [&](auto f) -> uint64_t {
            using F = decltype(f);
            if constexpr (F::split) {
                return 0;
            } else {
                const std::vector<std::byte> blocks = golden_blocks(q, g.type_id, g.blocks, F::bytes);
                std::vector<float> values(size_t(g.blocks) * F::block);
                for (int k = 0; k < g.blocks; k++)
                    for (int i = 0; i < F::block; i++)
                        values[size_t(k) * F::block + i] =
                            F::decode_block(blocks.data() + size_t(k) * F::bytes, i);
                return digest(values);
            }
        });
        EXPECT_EQ(found, g.digest) << g.label;
    }
}

// Random matrices of every format, split ones included: bulk rows equal single elements, scales of the right
// expert apply, neighbours of the row stay untouched.
TEST(Quant, RowsEqualElementsForEveryFormat) {
    std::mt19937 random(3);
    for (int format = 0; format <= int(Quant::fp8_block); format++) {
        Weight w;
        w.quant = Quant(format);
        w.experts = 2;
        w.out = 131;
        w.in = 768;
        const int64_t plane = int64_t(w.experts) * w.out * row_bytes(w);
        std::vector<std::byte> codes(size_t(plane) + 1), scales(size_t(weight_bytes(w) - plane));
        for (std::byte& b : codes) b = std::byte(random());
        const bool floats = w.quant == Quant::fp8_channel || w.quant == Quant::fp8_block;
        for (size_t i = 0; i < scales.size(); i += floats ? 4 : 1) {
            const float scale = float(random() % 1000) / 512;
            if (floats)
                std::memcpy(&scales[i], &scale, 4);
            else
                scales[i] = std::byte(random() % 127);
        }
        const float factors[2] = {0.5f, 3.0f};
        w.data = codes.data() + 1;  // blocks may lie at odd addresses
        w.scales = scales.data();
        w.scale = factors;
        w.scale_count = 2;
        std::vector<float> row(size_t(w.in) + 2, 12345.0f);
        for (const int r : {0, 1, 127, 128, 130}) {
            const int expert = r % 2;
            decode_row(w, expert, r, row.data() + 1);
            for (int c = 0; c < w.in; c++) {
                const float element = decode_element(w, expert, r, c);
                if (std::isnan(element))
                    ASSERT_TRUE(std::isnan(row[size_t(c) + 1]));
                else
                    ASSERT_EQ(bits_of_float(row[size_t(c) + 1]), bits_of_float(element))
                        << quant_name(w.quant) << c;
            }
            ASSERT_EQ(row.front(), 12345.0f);
            ASSERT_EQ(row.back(), 12345.0f);
        }
    }
}

TEST(Quant, NamesAndGeometry) {
    Quant q{};
    EXPECT_TRUE(quant_from_ggml(12, &q));
    EXPECT_EQ(q, Quant::q4_k);
    EXPECT_FALSE(quant_from_ggml(16, &q));            // IQ2_XXS: known, not decoded
    EXPECT_FALSE(quant_from_ggml(uint32_t(-1), &q));  // the mark of formats that are not GGUF's
    EXPECT_STREQ(ggml_type_name(16), "IQ2_XXS");
    EXPECT_STREQ(ggml_type_name(5), "unknown");
    EXPECT_EQ(row_bytes(Quant::q6_k, 512), 420);
    Weight w;
    w.quant = Quant::nvfp4_split;
    w.experts = 2, w.out = 3, w.in = 32;
    EXPECT_EQ(weight_bytes(w), 2 * 3 * 16 + 2 * 3 * 2);
}

double cpu_seconds() {
    timespec t = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// Prints GB of float output per second of one core; asserts nothing, run with
// --gtest_also_run_disabled_tests.
TEST(Quant, DISABLED_Throughput) {
    for (int format = 0; format <= int(Quant::fp8_block); format++) {
        Weight w;
        w.quant = Quant(format);
        w.experts = 1, w.out = 64, w.in = 4096;
        std::vector<std::byte> codes(size_t(row_bytes(w) * w.out)), scales(size_t(weight_bytes(w)));
        std::mt19937 random(1);
        for (std::byte& b : codes) b = std::byte(random() & 0x3f);
        for (std::byte& b : scales) b = std::byte(0x38);
        w.data = codes.data();
        w.scales = scales.data();
        std::vector<float> row(size_t(w.in));
        double best = 1e9;  // seconds of CPU time for all rows
        for (int round = 0; round < 400; round++) {
            const double start = cpu_seconds();
            for (int r = 0; r < w.out; r++) decode_row(w, 0, r, row.data());
            best = std::min(best, cpu_seconds() - start);
        }
        std::printf("%-12s %6.1f GB/s\n", quant_name(w.quant), double(w.out) * w.in * 4 / best * 1e-9);
    }
}

}  // namespace
}  // namespace sparkinfer
