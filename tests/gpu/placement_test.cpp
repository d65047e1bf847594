// placement_test.cpp — weights as they lie on the GPU, decoded on the host, against the files' own blocks.
// Risk: a tensor of several blocks, or one whose experts lie apart in the files, is put together wrongly; a
// scale that does not survive is used; a failure half-way leaves the backend unusable.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <random>

#include "cuda/backend.h"
#include "quant/decode.h"

namespace sparkinfer::test {
namespace {

struct HostBytes final : ByteSource {
    Result<void> read(const void* view, std::span<std::byte> to) override {
        if (fail_at >= 0 && reads++ >= fail_at) return bad_input("model.bin: a read fails in a test");
        std::memcpy(to.data(), view, to.size());
        return {};
    }
    int64_t fail_at = -1;
    std::atomic<int64_t> reads = 0;
};

// The formats with slabs, and where a block has its FP16 scales.
struct Kind {
    Quant quant;
    int block, d_at, m_at;  // bytes; -1: none
};
constexpr Kind kKinds[] = {
    {Quant::q4_k, 144, 0, 2},    {Quant::q5_k, 176, 0, 2},   {Quant::q6_k, 210, 208, -1},
    {Quant::q8_0, 34, 0, -1},    {Quant::q4_0, 18, 0, -1},   {Quant::q4_1, 20, 0, 2},
    {Quant::iq4_xs, 136, 0, -1}, {Quant::mxfp4, 17, -1, -1},
};
const Kind& kind_of(Quant q) {
    return *std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.quant == q; });
}

// Matrices whose bytes stay where they are.
class Matrices {
  public:
    // Random bits with scales of 2^-12 … 2^-2. `lossy`: with scales too far apart for one power of two.
    Weight add(Quant quant, int experts, int out, int in, bool lossy = false) {
        const Kind& k = kind_of(quant);
        std::vector<std::byte>& bytes =
            bytes_.emplace_back(size_t(experts) * size_t(out) * row_bytes(quant, in));
        for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
            const uint64_t word = random_();
            std::memcpy(&bytes[at], &word, 8);
        }
        for (size_t at = 0; at < bytes.size(); at += size_t(k.block)) {
            if (k.quant == Quant::mxfp4) bytes[at] &= std::byte(127);
            for (const int field : {k.d_at, k.m_at}) {
                if (field < 0) continue;
                const uint64_t bits = random_();
                uint16_t half = uint16_t((3 + bits % 11) << 10 | (bits >> 8 & 1023));
                if (lossy && field == k.d_at) half = at == 0 ? 0x7b53 : 0x0001;  // 60,000 and 2^-24
                std::memcpy(&bytes[at + size_t(field)], &half, 2);
            }
        }
        Weight w;
        w.data = bytes.data();
        w.experts = experts, w.out = out, w.in = in, w.quant = quant;
        return w;
    }
    // A gate and an up that follow each other in each expert of one tensor.
    std::pair<Weight, Weight> add_fused(Quant quant, int experts, int out, int in, bool lossy = false) {
        Weight gate = add(quant, experts, 2 * out, in, lossy);
        gate.out = out;
        gate.expert_rows = 2 * out;
        Weight up = gate;
        up.data = static_cast<const std::byte*>(gate.data) + out * row_bytes(gate);
        return {gate, up};
    }

  private:
    std::mt19937_64 random_{17};
    std::deque<std::vector<std::byte>> bytes_;
};

WeightGroup alone(const Weight& w) { return {OpCode::linear_add, {w}}; }
WeightGroup pair(const Weight& gate, const Weight& up) { return {OpCode::moe_glu, {Weight{}, gate, up}}; }

std::vector<std::byte> fetch(Backend& backend, const void* from, int64_t bytes) {
    std::vector<std::byte> to(static_cast<size_t>(bytes));
    const Ticket ticket = backend.copy(to, {static_cast<const std::byte*>(from), to.size()}, {}).value();
    EXPECT_TRUE(backend.done(ticket, true).value());
    return to;
}

// Every row of a small matrix, of a large one those round the borders of blocks and some between.
void expect_same_values(Backend& backend, const Weight& placed, const Weight& file, const std::string& what) {
    Weight here = placed;
    const int64_t rows = int64_t(placed.experts) * placed.out * (placed.pairing == Pairing::none ? 1 : 2);
    const std::vector<std::byte> bytes = fetch(backend, placed.data, rows * row_bytes(file));
    here.data = bytes.data();
    std::vector<std::byte> factors;
    if (placed.scale) {
        factors = fetch(backend, placed.scale, 8);
        here.scale = reinterpret_cast<const float*>(factors.data());
    }
    std::vector<float> got(size_t(file.in)), want(size_t(file.in));
    for (int expert = 0; expert < file.experts; ++expert)
        for (int row = 0; row < file.out; ++row) {
            const bool border = row < 8 || row >= file.out - 8;
            if (rows > 5000 && row % 41 != expert % 41 && !border) continue;
            decode_row(here, expert, row, got.data());
            decode_row(file, expert, row, want.data());
            ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0)
                << what << ": expert " << expert << ", row " << row;
        }
}

struct Case {
    std::string name;
    WeightGroup group;
    bool lossy;
};

std::vector<Case> cases(Matrices& m) {
    std::vector<Case> all;
    const auto add = [&](const std::string& what, const Weight& w, WeightGroup group, bool lossy = false) {
        all.push_back({fmt::format("{} {} [{}, {}, {}]", what, quant_name(w.quant), w.experts, w.out, w.in),
                       std::move(group), lossy});
    };
    for (const Kind& k : kKinds) {
        const Weight w = m.add(k.quant, 1, 80, 512), gate = m.add(k.quant, 3, 24, 512);
        add("one", w, alone(w));
        add("pair", gate, pair(gate, m.add(k.quant, 3, 24, 512)));
        const auto [g, u] = m.add_fused(k.quant, 3, 24, 512);
        add("fused", g, pair(g, u));
    }
    // Several blocks of 32 MiB, ends of blocks within an expert.
    for (const Quant q : {Quant::q4_k, Quant::q8_0}) {
        const Weight gate = m.add(q, 60, 520, 2048), w = m.add(q, 1, 34000, 2048);
        add("one", w, alone(w));
        add("pair", gate, pair(gate, m.add(q, 60, 520, 2048)));
        const auto [g, u] = m.add_fused(q, 60, 520, 2048);
        add("fused", g, pair(g, u));
    }
    const Weight w = m.add(Quant::q5_k, 1, 64, 512, true), gate = m.add(Quant::q4_k, 5, 16, 512, true);
    add("lossy", w, alone(w), true);
    add("lossy pair", gate, pair(gate, m.add(Quant::q4_k, 5, 16, 512)), true);
    const auto [g, u] = m.add_fused(Quant::q8_0, 3, 24, 512, true);
    add("lossy fused", g, pair(g, u), true);
    std::shuffle(all.begin(), all.end(), std::mt19937(3));
    return all;
}

TEST(Placement, EveryWeightHasTheValuesOfItsFile) {
    const auto backend = make_cuda_backend({}).value();
    Matrices matrices;
    HostBytes source;
    const std::vector<Case> all = cases(matrices);
    std::vector<WeightGroup> groups;
    int lossy = 0;
    for (const Case& c : all) {
        groups.push_back(c.group);
        lossy += c.lossy;
    }
    groups.push_back(groups.front());  // a weight given twice is placed once
    std::vector<std::pair<int64_t, int64_t>> progress;
    auto placed = backend->place_all(
        groups, source, [&](int64_t done, int64_t total) { progress.emplace_back(done, total); });
    ASSERT_TRUE(placed.ok()) << placed.error().message;
    ASSERT_EQ(placed->size(), groups.size());
    for (size_t g = 0; g < all.size(); ++g) {
        const std::vector<Weight>&got = (*placed)[g], &file = groups[g].weights;
        ASSERT_EQ(got.size(), file.size());
        for (size_t i = 0; i < got.size(); ++i) {
            if (!file[i].data) {
                EXPECT_EQ(got[i].data, nullptr) << all[g].name;
                continue;
            }
            EXPECT_EQ(got[i].quant == file[i].quant, all[g].lossy) << all[g].name;
            expect_same_values(*backend, got[i], file[i], all[g].name);
        }
    }
    EXPECT_EQ(placed->back().back().data, placed->front().back().data);
    auto again = backend->place(groups[1], source);
    EXPECT_EQ(again->back().data, (*placed)[1].back().data);
    ASSERT_FALSE(progress.empty());
    EXPECT_EQ(progress.back().first, progress.back().second);
    EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
    ASSERT_FALSE(backend->info().notices.empty());
    EXPECT_TRUE(backend->info().notices[0].starts_with(fmt::format("{} tensors of this model", lossy)))
        << backend->info().notices[0];
}

TEST(Placement, AFailureHalfWayIsAnErrorAndNoMore) {
    const auto backend = make_cuda_backend({}).value();
    Matrices matrices;
    std::vector<WeightGroup> groups;
    for (int i = 0; i < 3; ++i) groups.push_back(alone(matrices.add(Quant::q4_k, 1, 34000, 2048)));
    HostBytes source;
    for (const int64_t fail_at : {0, 7, 13}) {
        source.fail_at = fail_at;
        source.reads = 0;
        const auto failed = backend->place_all(groups, source, {});
        ASSERT_FALSE(failed.ok());
        EXPECT_EQ(failed.error().message, "model.bin: a read fails in a test");
    }
    source.fail_at = -1;
    auto placed = backend->place_all(groups, source, {});
    ASSERT_TRUE(placed.ok()) << placed.error().message;
    for (size_t g = 0; g < groups.size(); ++g)
        expect_same_values(*backend, (*placed)[g][0], groups[g].weights[0], fmt::format("matrix {}", g));
}

// Risk: a load that was promised memory dies with a number of CUDA's, or never says who has taken it.
TEST(Placement, MemoryTakenByOthersMeanwhileIsNamed) {
    const auto backend = make_cuda_backend({}).value(), other = make_cuda_backend({}).value();
    const int64_t free = backend->plan({}, {}).value().available, keep = 512ll << 20;
    ASSERT_GT(free, 4 * keep);
    ASSERT_TRUE(other->allocate(free - keep, MemoryKind::kv).ok());
    const auto refused = backend->allocate(2 * keep, MemoryKind::kv);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::resources);
    const std::string& text = refused.error().message;
    EXPECT_TRUE(text.starts_with("the GPU has ")) << text;
    EXPECT_NE(text.find("1024 MiB more were asked for; "), std::string::npos) << text;
    EXPECT_TRUE(
        text.ends_with("MiB that were free when the model's memory was planned have been taken by another "
                       "process meanwhile"))
        << text;
    EXPECT_TRUE(backend->allocate(keep / 4, MemoryKind::kv).ok()) << "what is left can be had";
}

}  // namespace
}  // namespace sparkinfer::test
