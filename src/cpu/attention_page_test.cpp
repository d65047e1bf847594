#include "cpu/attention_page.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

namespace sparkinfer {
namespace {

std::vector<float> normals(std::mt19937& random, size_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> values(n);
    for (float& v : values) v = normal(random);
    return values;
}

// Risk: keys lost at the end of a page, and bits that depend on the queries beside.
TEST(AttentionPage, Scores) {
    std::mt19937 random(1);
    for (const int d : {16, 64, 66, 256})
        for (const int count : {1, 16, 17, 64}) {
            const int columns = 31, stride = 64;
            const auto q = normals(random, size_t(columns * d)), k = normals(random, size_t(64 * d));
            std::vector<float> scores(size_t(columns * stride)), alone(64);
            alignas(64) float turned[16 * 256];
            page_scores({q.data(), columns, k.data(), count, d, scores.data(), stride, turned});
            for (int c = 0; c < columns; ++c) {
                std::vector<float> one(static_cast<size_t>(d));
                for (int i = 0; i < d; ++i) one[size_t(i)] = q[size_t(i * columns + c)];
                page_scores({one.data(), 1, k.data(), count, d, alone.data(), stride, turned});
                for (int j = 0; j < count; ++j) {
                    const float got = scores[size_t(c * stride + j)];
                    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(alone[size_t(j)]));
                    double want = 0;
                    for (int i = 0; i < d; ++i) want += double(one[size_t(i)]) * double(k[size_t(j * d + i)]);
                    ASSERT_NEAR(double(got), want, 5e-5) << d << " " << count << " " << c << " " << j;
                }
            }
        }
}

// Risk: columns lost at the end of a row that no vector length divides; bits that depend on the queries
// beside.
TEST(AttentionPage, Sums) {
    std::mt19937 random(2);
    for (const int width : {1, 16, 63, 64, 100, 256}) {
        const int rows = 61, stride = width + 3, columns = 9;
        const auto p = normals(random, size_t(columns * rows)), v = normals(random, size_t(rows * stride));
        std::vector<std::vector<float>> out(columns, std::vector<float>(size_t(width) + 1, -7.0f));
        std::vector<const float*> weights;
        std::vector<float*> to;
        for (int c = 0; c < columns; ++c) {
            weights.push_back(&p[size_t(c * rows)]);
            to.push_back(out[size_t(c)].data());
        }
        page_sums({weights.data(), columns, v.data(), stride, rows, width, to.data()});
        for (int c = 0; c < columns; ++c) {
            EXPECT_EQ(out[size_t(c)].back(), -7.0f) << "written behind the end";
            std::vector<float> alone(static_cast<size_t>(width));
            float* single = alone.data();
            page_sums({&weights[size_t(c)], 1, v.data(), stride, rows, width, &single});
            for (int i = 0; i < width; ++i) {
                const float got = out[size_t(c)][size_t(i)];
                ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(alone[size_t(i)]));
                double want = 0;
                for (int j = 0; j < rows; ++j)
                    want += double(weights[size_t(c)][j]) * double(v[size_t(j * stride + i)]);
                ASSERT_NEAR(double(got), want, 2e-5) << width << " " << i;
            }
        }
    }
}

}  // namespace
}  // namespace sparkinfer
