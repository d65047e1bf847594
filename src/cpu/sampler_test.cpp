#include "cpu/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "ops/philox.h"

namespace sparkinfer {
namespace {

Sampling neutral(float temperature) {
    Sampling s{};
    s.temperature = temperature;
    s.top_p = 1;
    s.repeat_penalty = 1;
    s.repeat_last_n = 64;
    s.mask = -1;
    return s;
}

// One row of logits with room to sample.
struct Sampler {
    std::vector<float> logits;
    std::vector<float> room;
    std::vector<int32_t> counts;
    std::vector<Candidate> candidates;
    SampleInput in;
    Sampling sampling = neutral(0);

    explicit Sampler(std::vector<float> row)
        : logits(std::move(row)), room(logits.size()), counts(logits.size(), 0), candidates(logits.size()) {}
    int32_t draw(int32_t index = 0) {
        in.logits = logits;
        in.sampling = &sampling;
        in.index = index;
        const int32_t token = sample(in, {room.data(), counts.data(), candidates.data()});
        EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int32_t c) { return c == 0; }))
            << "counts left behind";
        return token;
    }
    // How often each token comes up in n draws at successive indices.
    std::vector<int> histogram(int n) {
        std::vector<int> hits(logits.size(), 0);
        for (int i = 0; i < n; ++i) ++hits[size_t(draw(i))];
        return hits;
    }
};

// Pearson's statistic over the tokens that can come up; tokens that cannot must not.
double chi_square(const std::vector<int>& hits, const std::vector<double>& probability, int n) {
    double x = 0;
    for (size_t i = 0; i < hits.size(); ++i) {
        const double want = probability[i] * n;
        if (want == 0)
            EXPECT_EQ(hits[i], 0) << "token " << i;
        else
            x += (hits[i] - want) * (hits[i] - want) / want;
    }
    return x;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature = 1) {
    std::vector<double> p;
    double sum = 0;
    for (float x : logits) p.push_back(std::exp(double(x) / temperature)), sum += p.back();
    for (double& x : p) x /= sum;
    return p;
}

// Risk: numbers that differ from the GPU's and everyone else's. The known answers are those of the Random123
// library.
TEST(Philox, KnownAnswers) {
    const auto expect = [](Philox counter, uint32_t k0, uint32_t k1, Philox want) {
        const Philox got = philox4x32_10(counter, k0, k1);
        for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], want.word[i]) << i;
    };
    expect({{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
    expect({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
    expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0,
           {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

// Risk: ties by chance, NaN preferred.
TEST(Sample, GreedyTakesTheLowestOfTheBest) {
    Sampler s({1, 3, NAN, 3, -INFINITY});
    EXPECT_EQ(s.draw(), 1);
    s.logits[4] = INFINITY;
    EXPECT_EQ(s.draw(), 4);
    s.sampling.temperature = 1;  // infinity leaves nothing to draw
    EXPECT_EQ(s.draw(), 4);
}

// Risk: undefined behaviour where there is nothing to choose from.
TEST(Sample, NothingFiniteGivesTheLowestAllowed) {
    for (float temperature : {0.0f, 1.0f}) {
        Sampler s({NAN, -INFINITY, NAN, 7});
        s.sampling = neutral(temperature);
        const uint32_t last_two = 0b0110, none = 0;
        s.in.mask = &last_two;
        EXPECT_EQ(s.draw(), 1);
        s.in.mask = &none;
        EXPECT_EQ(s.draw(), 0);
        s.in.mask = nullptr;
        EXPECT_EQ(s.draw(), 3);
    }
}

// Risk: a draw that does not follow the distribution. 40,000 draws, 7 degrees of freedom: 35 is exceeded by
// chance with probability 1e-5; the seed is fixed.
TEST(Sample, FollowsTheDistribution) {
    for (float temperature : {0.5f, 1.0f, 2.0f}) {
        Sampler s({0.1f, 1.5f, -1.0f, 0.7f, 2.0f, 0.0f, -0.5f, 1.0f});
        s.sampling = neutral(temperature);
        s.sampling.seed[0] = 42;
        EXPECT_LT(chi_square(s.histogram(40000), softmax(s.logits, double(temperature)), 40000), 35)
            << temperature;
    }
}

// Risk: the filters keep one too many or too few, or apply temperature before they cut.
TEST(Sample, FiltersCutWhereTheySay) {
    // Probabilities 0.5, 0.25, 0.15, 0.10 at ids 2, 0, 3, 1.
    Sampler s({std::log(0.25f), std::log(0.10f), std::log(0.5f), std::log(0.15f)});
    const auto support = [&] {
        std::vector<int> seen;
        const auto hits = s.histogram(3000);
        for (size_t i = 0; i < hits.size(); ++i)
            if (hits[i]) seen.push_back(int(i));
        return seen;
    };
    using Ids = std::vector<int>;
    s.sampling = neutral(3.0f);  // a flat distribution: what is kept comes up
    s.sampling.top_k = 2;
    EXPECT_EQ(support(), (Ids{0, 2}));
    s.sampling.top_k = 99;
    EXPECT_EQ(support(), (Ids{0, 1, 2, 3}));
    s.sampling = neutral(3.0f);
    s.sampling.top_p = 0.74f;  // 0.5 + 0.25 reaches it
    EXPECT_EQ(support(), (Ids{0, 2}));
    s.sampling.top_p = 0.76f;
    EXPECT_EQ(support(), (Ids{0, 2, 3}));
    s.sampling.top_p = 0.0f;
    EXPECT_EQ(support(), (Ids{2}));
    s.sampling = neutral(3.0f);
    s.sampling.min_p = 0.29f;  // 0.15 / 0.5 = 0.3
    EXPECT_EQ(support(), (Ids{0, 2, 3}));
    s.sampling.min_p = 0.31f;
    EXPECT_EQ(support(), (Ids{0, 2}));
    s.sampling.min_p = 1.0f;
    EXPECT_EQ(support(), (Ids{2}));
    s.sampling = neutral(3.0f);
    s.sampling.top_k = 3;      // leaves 0.9: top-p counts within it
    s.sampling.top_p = 0.83f;  // 0.75 / 0.9 = 0.8333
    EXPECT_EQ(support(), (Ids{0, 2}));
    s.sampling.top_k = 1;
    EXPECT_EQ(support(), (Ids{2}));
}

// Risk: what is left after the cuts is drawn with the wrong weights.
TEST(Sample, FilteredDrawsFollowTheDistribution) {
    Sampler s({0.0f, 1.0f, 2.0f, 3.0f, 2.5f, -4.0f});
    s.sampling = neutral(1.5f);
    s.sampling.top_k = 4;
    s.sampling.min_p = 0.01f;
    std::vector<float> kept = s.logits;
    kept[0] = kept[5] = -INFINITY;
    EXPECT_LT(chi_square(s.histogram(40000), softmax(kept, 1.5), 40000), 28);  // 3 degrees of freedom, 4e-6
}

// Risk: growing the sorted prefix changes the choice. Compared with a full sort over a vocabulary of real
// size.
TEST(Sample, LargeVocabularyMatchesAFullSort) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> row(30000);
    for (float& x : row) x = std::round(normal(random) * 8) / 8;  // many ties
    Sampler s(row);
    std::vector<int> order(row.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = int(i);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
        const float x = row[size_t(a)], y = row[size_t(b)];
        return x > y || (x == y && a < b);
    });
    for (float temperature : {0.3f, 1.0f, 5.0f}) {
        s.sampling = neutral(temperature);
        const std::vector<double> p = softmax(row, double(temperature));
        for (int index = 0; index < 50; ++index) {
            const double u = double(philox_uniform(s.sampling.seed, uint32_t(index)));
            const int32_t got = s.draw(index);
            // The interval of the chosen token in the cumulative distribution contains u.
            double below = 0;
            for (int id : order) {
                if (id == got) break;
                below += p[size_t(id)];
            }
            EXPECT_LE(below, u + 1e-9) << temperature << " " << index;
            EXPECT_GE(below + p[size_t(got)], u - 1e-9) << temperature << " " << index;
        }
    }
}

// Risk: penalties on the wrong tokens or counted twice.
TEST(Sample, Penalties) {
    const std::vector<int32_t> history = {0, 0, 1, 2, 2, 2};
    Sampler s({4.0f, 3.9f, -1.0f, 2.0f});
    s.in.history = history;
    s.in.prompt = 3;  // 0 0 1 | 2 2 2
    EXPECT_EQ(s.draw(), 0);
    s.sampling.repeat_penalty = 2.5f;  // 4.0 -> 1.6, 3.9 -> 1.56, -1 -> -2.5
    EXPECT_EQ(s.draw(), 3);
    s.sampling.repeat_last_n = 3;  // only 2s: 0 keeps its logit
    EXPECT_EQ(s.draw(), 0);
    s.sampling.repeat_last_n = 4;  // 1 and 2s
    s.logits = {1.5f, 3.9f, 9.0f, 2.0f};
    EXPECT_EQ(s.draw(), 2);  // 9 / 2.5 = 3.6 beats 2
    s.logits[2] = 4.9f;      // once: 1.96; applied for each occurrence it would be 0.3
    EXPECT_EQ(s.draw(), 3);
    s.logits[3] = 1.9f;
    EXPECT_EQ(s.draw(), 2);
    s.sampling.repeat_last_n = -1;
    s.logits = {-1.0f, -3.0f, -1.1f, -2.0f};  // negative logits grow: -2.5, -7.5, -2.75, -2
    EXPECT_EQ(s.draw(), 3);
    s.sampling.repeat_last_n = 0;
    EXPECT_EQ(s.draw(), 0);

    s.sampling = neutral(0);
    s.logits = {1.0f, 0.5f, 3.0f, 0.9f};
    s.sampling.presence_penalty = 1.9f;  // 2 was generated: 3 -> 1.1; the prompt's 0 and 1 are not counted
    EXPECT_EQ(s.draw(), 2);
    s.sampling.presence_penalty = 2.1f;
    EXPECT_EQ(s.draw(), 0);
    s.sampling.presence_penalty = 0;
    s.sampling.frequency_penalty = 0.6f;  // three times: 3 - 1.8
    EXPECT_EQ(s.draw(), 2);
    s.sampling.frequency_penalty = 0.7f;  // 3 - 2.1
    EXPECT_EQ(s.draw(), 0);
    s.sampling.frequency_penalty = -0.5f;
    s.sampling.presence_penalty = -1.0f;
    s.logits = {5.0f, 0, 2.6f, 0};  // 2.6 + 1 + 1.5
    EXPECT_EQ(s.draw(), 2);
}

// Risk: ids outside the vocabulary write elsewhere; a mask that bias can undo.
TEST(Sample, BiasAndMask) {
    const std::vector<int32_t> history = {-5, 1000, 3};
    Sampler s({1.0f, 2.0f, 3.0f, 4.0f});
    s.in.history = history;
    s.sampling.repeat_penalty = 1.01f;
    const std::vector<Bias> bias = {{-1, 50.0f}, {4, 50.0f}, {3, -INFINITY}, {0, 1.5f}, {0, 1.0f}};
    s.in.bias = bias;
    EXPECT_EQ(s.draw(), 0);  // 3.5
    const uint32_t mask = 0b1010;
    s.in.mask = &mask;
    EXPECT_EQ(s.draw(), 1);
    const std::vector<Bias> undo = {{0, INFINITY}, {3, NAN}};
    s.in.bias = undo;
    EXPECT_EQ(s.draw(), 1);
}

// Risk: a choice that depends on what was sampled before, or on the wrong part of (seed, index).
TEST(Sample, IsAFunctionOfSeedAndIndex) {
    Sampler a(std::vector<float>(200, 0.0f)), b(std::vector<float>(200, 0.0f));
    a.sampling = b.sampling = neutral(1);
    a.sampling.seed[0] = b.sampling.seed[0] = 9;
    std::vector<int32_t> forward, backward;
    for (int i = 0; i < 50; ++i) forward.push_back(a.draw(i));
    for (int i = 49; i >= 0; --i) backward.push_back(b.draw(i));
    std::reverse(backward.begin(), backward.end());
    EXPECT_EQ(forward, backward);
    b.sampling.seed[1] = 1;
    int equal = 0;
    for (int i = 0; i < 50; ++i) equal += b.draw(i) == forward[size_t(i)];
    EXPECT_LT(equal, 5);
}

// Risk: overflow, NaN and -inf entries spoil the sum; alternatives out of order.
TEST(LogSumExp, ExtremesAndTops) {
    const std::vector<float> wide = {1000.0f, 1000.0f, -1000.0f, -INFINITY, NAN};
    EXPECT_NEAR(log_sum_exp(wide), 1000 + std::log(2.0), 1e-9);
    const std::vector<float> nothing(5, -INFINITY);
    EXPECT_EQ(log_sum_exp(nothing), -INFINITY);
    const std::vector<float> many(10000, 0.5f);
    EXPECT_NEAR(log_sum_exp(many), 0.5 + std::log(10000.0), 1e-9);

    const std::vector<float> row = {2, NAN, 5, 5, -INFINITY, 1};
    Candidate best[8];
    ASSERT_EQ(top_logits(row, 4, best), 4);
    const int want[] = {2, 3, 0, 5};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(best[i].token, want[i]);
    EXPECT_EQ(top_logits(row, 8, best), 5);
    EXPECT_EQ(top_logits(row, 0, best), 0);
}

}  // namespace
}  // namespace sparkinfer
