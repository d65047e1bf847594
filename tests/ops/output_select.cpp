// output_select.cpp — tokens, alternatives and cursors against cpu/sampler.h, under every setting of Sampling
// at once.
//
// The logits are exact in float32 on every machine, whatever order it sums in: rows of ±1, norms of 1, and
// heads of small multiples of a power of two. That makes ties frequent.
#include <algorithm>
#include <cmath>

#include "cpu/sampler.h"
#include "harness.h"

namespace sparkinfer::test {
namespace {

constexpr int kWidth = 16, kPages = 5, kHistory = kPages * kPageTokens;

struct Sampled {
    int vocabulary, slots;
    float grain;  // the head's values are multiples of it: a coarse one makes ties at the top
};

template <class T>
T pick(Random& random, std::initializer_list<T> list) {
    return list.begin()[random.below(int(list.size()))];
}

Sampling random_sampling(Random& random, int slot, int vocabulary) {
    Sampling s{};
    s.temperature = slot % 4 ? random.uniform(0.3f, 2.0f) : 0;
    s.top_k = pick(random, {0, 0, 1, 5, 20, 40, 64, 65, 300, vocabulary + 5});
    s.top_p = pick(random, {1.0f, 1.0f, 0.9137f, 0.5111f, 0.9993f, 0.0f});
    s.min_p = pick(random, {0.0f, 0.0f, 0.0513f, 0.3171f});
    s.repeat_penalty = pick(random, {1.0f, 1.0f, 1.17f, 0.8f});
    s.repeat_last_n = pick(random, {-1, 0, 7, 64});
    s.presence_penalty = pick(random, {0.0f, 0.0f, 0.7f});
    s.frequency_penalty = pick(random, {0.0f, 0.0f, 0.31f, -0.2f});
    s.seed[0] = uint32_t(random.below(1 << 30));
    s.seed[1] = uint32_t(random.below(1 << 30));
    s.top_logprobs = pick(random, {0, 1, 7, kMaxTopLogprobs});
    s.mask = slot % 3 == 1 ? slot : -1;
    s.biases = pick(random, {0, 0, 6, kMaxBias});
    return s;
}

// One row a slot, each with a record, a history and perhaps a mask of its own.
struct Scene {
    Sampled shape;
    OwnedWeight norm, head;
    Floats x, logits;  // [slots, kWidth], [slots, vocabulary]
    StepImage step;
    std::vector<Slot> slots;
    std::vector<std::vector<int32_t>> history;
    std::vector<std::vector<uint32_t>> masks;  // empty: none

    Scene(const Sampled& s, Random& random) : shape(s) {
        norm = f32_weight(Floats(kWidth, 1.0f), 1, kWidth);
        Floats h = random.normals(int64_t(s.vocabulary) * kWidth);
        for (float& v : h) v = std::round(v / s.grain) * s.grain;
        for (int i = 0; i < s.slots * kWidth; ++i) x.push_back(random.below(2) ? 1.0f : -1.0f);
        for (int t = 0; t < s.slots; ++t)
            for (int v = 0; v < s.vocabulary; ++v) {
                float sum = 0;
                for (int i = 0; i < kWidth; ++i)
                    sum += x[size_t(t) * kWidth + size_t(i)] * h[size_t(v) * kWidth + size_t(i)];
                logits.push_back(sum);
            }
        head = f32_weight(h, s.vocabulary, kWidth);
        for (int t = 0; t < s.slots; ++t) add_slot(random, t);
    }
    std::span<const float> row(int t) const {
        return {&logits[size_t(t) * size_t(shape.vocabulary)], size_t(shape.vocabulary)};
    }
    void add_slot(Random& random, int t) {
        Candidate best[kMaxTopLogprobs];
        const int found = top_logits(row(t), kMaxTopLogprobs, best);
        const auto token = [&] {  // often one that matters, sometimes none at all
            const int kind = random.below(8);
            if (kind == 0) return pick(random, {-1, shape.vocabulary, 1 << 30});
            return kind < 5 ? best[random.below(std::min(found, 4))].token : random.below(shape.vocabulary);
        };
        Slot slot{};
        slot.sampling = random_sampling(random, t, shape.vocabulary);
        const int length = 1 + random.below(pick(random, {4, kHistory}));
        slot.cursor = {0, length - 1, 3, 1000, 0, 2, random.below(length + 1), 0};
        for (Bias& b : slot.bias) b = {token(), random.uniform(-3, 3)};
        slot.bias[1].token = slot.bias[0].token;
        slot.bias[5].token = slot.bias[0].token;
        slots.push_back(slot);
        history.emplace_back();
        for (int i = 0; i < length; ++i) history.back().push_back(token());
        masks.emplace_back();
        if (slot.sampling.mask >= 0) {
            masks.back().assign(size_t((shape.vocabulary + 31) / 32), 0);
            const int allowed = pick(random, {0, 1, 3, 50, shape.vocabulary / 2});
            for (int i = 0; i < allowed; ++i) {
                const auto id = uint32_t(random.below(shape.vocabulary));
                masks.back()[id / 32] |= 1u << (id % 32);
            }
        }
        const int at = length - 1;
        step.rows.push_back({0, t, at, {at, at, at}, kRowOutput | (t % 2 ? kRowFromCursor : 0u), -1});
        step.outputs.push_back(t);
    }
    int32_t chosen(int t) const {
        Floats scratch(row(t).size());
        std::vector<int32_t> counts(row(t).size(), 0);
        std::vector<Candidate> candidates(row(t).size());
        const Slot& s = slots[size_t(t)];
        return sample({.logits = row(t),
                       .sampling = &s.sampling,
                       .bias = {s.bias, size_t(s.sampling.biases)},
                       .mask = masks[size_t(t)].empty() ? nullptr : masks[size_t(t)].data(),
                       .history = history[size_t(t)],
                       .prompt = s.cursor.prompt,
                       .index = int32_t(history[size_t(t)].size())},
                      {scratch.data(), counts.data(), candidates.data()});
    }
};

class OutputSelect : public testing::TestWithParam<Sampled> {};

void expect_selected(const std::string& what, const Scene& scene, int t, const Selected& got) {
    const Sampling& s = scene.slots[size_t(t)].sampling;
    EXPECT_EQ(got.token, scene.chosen(t))
        << what << ": temperature " << s.temperature << " top_k " << s.top_k << " top_p " << s.top_p
        << " min_p " << s.min_p << " mask " << s.mask << " biases " << s.biases;
    const double sum = log_sum_exp(scene.row(t));
    ASSERT_TRUE(got.token >= 0 && got.token < scene.shape.vocabulary) << what;
    EXPECT_NEAR(double(got.logprob), double(scene.row(t)[size_t(got.token)]) - sum, 1e-5) << what;
    Candidate best[kMaxTopLogprobs];
    ASSERT_EQ(got.tops, top_logits(scene.row(t), s.top_logprobs, best)) << what;
    for (int i = 0; i < got.tops; ++i) {
        EXPECT_EQ(got.top[i].token, best[i].token) << what << " alternative " << i;
        EXPECT_NEAR(double(got.top[i].value), double(best[i].logit) - sum, 1e-5) << what;
    }
}

// Risk: a filter applied in another order or off by one, ties that go to the higher id, a slice of the
// vocabulary left out, penalties counted twice or over the wrong part of the history, biases of one token
// added in another order.
TEST_P(OutputSelect, EverySettingAsTheSampler) {
    Random random(fmt::format("output select {}", GetParam().vocabulary));
    const Scene scene(GetParam(), random);
    const int count = GetParam().slots;
    for (Machine* m : machines()) {
        m->reset();
        const SlotsView slots = m->slots(count, kPages, GetParam().vocabulary, count);
        for (int t = 0; t < count; ++t) {
            m->set_slot(slots, t, scene.slots[size_t(t)]);
            m->set_history(slots, t, scene.history[size_t(t)]);
            const auto& mask = scene.masks[size_t(t)];
            if (!mask.empty())
                m->write(slots.masks + t * slots.mask_words, mask.data(), slots.mask_words * 4);
        }
        Output op{m->step(),
                  slots,
                  m->tensor(scene.x, count, kWidth),
                  scene.norm,
                  scene.head,
                  0,
                  OutputKind::select,
                  0,
                  m->tensor(count, GetParam().vocabulary),
                  m->bytes(count * int64_t(sizeof(Selected))),
                  {}};
        m->run(op, scene.step);
        std::vector<Selected> got(static_cast<size_t>(count));
        m->read(got.data(), op.results, int64_t(got.size() * sizeof(Selected)));
        for (int t = 0; t < count; ++t) {
            const Selected& r = got[size_t(t)];
            EXPECT_TRUE(r.row == t && r.slot == t && r.stopped == kRunning);
            expect_selected(fmt::format("{} row {}", m->name, t), scene, t, r);
            const Cursor c = m->slot(slots, t).cursor;
            EXPECT_EQ(c.next_token, r.token);
            EXPECT_EQ(c.index, int(scene.history[size_t(t)].size()));
            EXPECT_EQ(c.generated, 4);
            EXPECT_EQ(c.accepted, 0);
        }
    }
}

// 64 rows of a vocabulary that fills no slice; one of several slices; one of more than the chunks of a row.
INSTANTIATE_TEST_SUITE_P(Vocabularies, OutputSelect,
                         testing::Values(Sampled{1003, 64, 0x1p-8f}, Sampled{40011, 48, 0x1p-4f},
                                         Sampled{270001, 12, 1.0f}),
                         [](const auto& info) { return fmt::format("V{}", info.param.vocabulary); });

}  // namespace
}  // namespace sparkinfer::test
