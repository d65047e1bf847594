#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include "engine/test_backend.h"
#include "engine/test_model.h"

namespace sparkinfer {
namespace {

constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

// A 35B on a large GPU: what grows with the context is KV pages and a little of the rest.
MemoryPlan plan_at(int32_t context) {
    MemoryPlan p;
    p.backend = "cuda";
    p.context = context;
    p.weights = 20 * kGiB;
    p.staging = 34 * kMiB;
    p.kv = int64_t((context + 63) / 64) * 64 * 20480;
    p.state = 126 * kMiB;
    p.arena = 30 * kMiB;
    p.scratch = 12 * kMiB;
    p.graphs = 100 * kMiB;
    p.rest = kMiB + context * 4;
    p.available = 24 * kGiB;
    return p;
}

// Risk: a part is left out of the sum, or counted beside what is given back before it.
TEST(MemoryPlan, CountsWhatIsThereAtOnce) {
    MemoryPlan p;
    int64_t sum = 0, next = 1;
    for (int64_t* part : {&p.weights, &p.kv, &p.state, &p.arena, &p.scratch, &p.graphs, &p.rest}) {
        *part = next;
        sum += next;
        next *= 2;
    }
    EXPECT_EQ(p.kept(), sum);
    p.staging = sum - p.weights;
    EXPECT_EQ(p.most(), sum) << "staging is given back before the rest is taken";
    p.staging += 5;
    EXPECT_EQ(p.most(), sum + 5);
}

// Risk: a number that the user needs is not in the line.
TEST(MemoryPlan, SaysEveryPart) {
    MemoryPlan p = plan_at(65536);
    EXPECT_EQ(memory_plan_text(p),
              "21.5 GiB of 24.0 GiB free: weights 20.0 GiB, KV pages 1.2 GiB, recurrent states 126.0 MiB, "
              "temporaries 30.0 MiB, kernel scratch 12.0 MiB, graphs 100.0 MiB, the rest 1.2 MiB; "
              "while loading 34.0 MiB of scratch");
    p = {};
    p.kv = 3 * kMiB;
    p.rest = kMiB / 2;
    EXPECT_EQ(memory_plan_text(p), "3.5 MiB: KV pages 3.0 MiB, the rest 0.5 MiB");
}

// Risk: refuses what fits to the byte, or lets a byte too many through.
TEST(MemoryPlan, RefusesFromTheFirstByteTooMany) {
    MemoryPlan p = plan_at(65536);
    p.available = p.most();
    EXPECT_TRUE(check_memory(p, plan_at).ok());
    --p.available;
    EXPECT_FALSE(check_memory(p, plan_at).ok());
    p.available = -1;
    EXPECT_TRUE(check_memory(p, plan_at).ok()) << "unknown";
}

// Risk: advice that is wrong: the context named does not fit, or a larger one does.
TEST(MemoryPlan, NamesTheLargestContextThatFits) {
    const auto refused = check_memory(plan_at(262144), plan_at);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::resources);
    const std::string& text = refused.error().message;
    EXPECT_TRUE(
        text.starts_with("1 sequence of 262144 tokens needs 25.3 GiB (weights 20.0 GiB, KV pages 5.0 GiB, "))
        << text;
    EXPECT_NE(text.find("and cuda has 24.0 GiB free: a context of "), std::string::npos) << text;
    const size_t at = text.find("a context of ") + 13;
    const int32_t named = std::stoi(text.substr(at));
    EXPECT_EQ(text.substr(at), fmt::format("{} tokens fits", named));
    EXPECT_LE(plan_at(named).most(), 24 * kGiB);
    EXPECT_GT(plan_at(named + 64).most(), 24 * kGiB);
}

// Risk: a context of nothing is advised where the model itself is too large.
TEST(MemoryPlan, SaysWhenNoContextHelps) {
    const auto with = [](int64_t available) {
        return [available](int32_t context) {
            MemoryPlan p = plan_at(context);
            p.available = available;
            p.sequences = 2;
            return p;
        };
    };
    const auto weights = check_memory(with(10 * kGiB)(4096), with(10 * kGiB));
    ASSERT_FALSE(weights.ok());
    EXPECT_TRUE(weights.error().message.ends_with("and cuda has 10.0 GiB free: the weights alone do not fit"))
        << weights.error().message;
    const int64_t tight = 20 * kGiB + 100 * kMiB;
    const auto rest = check_memory(with(tight)(4096), with(tight));
    ASSERT_FALSE(rest.ok());
    EXPECT_TRUE(rest.error().message.ends_with("free: no context fits")) << rest.error().message;
    EXPECT_TRUE(rest.error().message.starts_with("2 sequences of 4096 tokens need ")) << rest.error().message;
    const auto fewer = check_memory(with(21 * kGiB)(262144), with(21 * kGiB));
    EXPECT_TRUE(fewer.error().message.ends_with(" tokens fits, and so may fewer sequences"))
        << fewer.error().message;
}

// Counts what it is asked for, and needs memory of its own as a device does.
class CountingBackend final : public OverCpu {
  public:
    Result<Memory> allocate(int64_t bytes, MemoryKind kind) override {
        taken[kind] += bytes;
        return cpu_->allocate(bytes, kind);
    }
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource&) override {
        EXPECT_TRUE(taken.empty()) << "weights come before everything else";
        placed = true;
        return group.weights;
    }
    Result<MemoryNeed> plan(std::span<const WeightGroup> groups, std::span<const Tape> tapes) override {
        TRY(MemoryNeed need, cpu_->plan(groups, tapes));
        need.weights = weights;
        need.available = available;
        for (const WeightGroup& group : groups) weights_planned += group.weights.size();
        for (const Tape& tape : tapes)
            for (const Instr& i : tape.instrs())
                if (i.code == OpCode::embed) rows.insert(i.embed.y.rows());
        return need;
    }

    int64_t weights = 7 * kMiB, available = kGiB;
    std::map<MemoryKind, int64_t> taken;
    std::set<int32_t> rows;
    size_t weights_planned = 0;
    bool placed = false;
};

Result<std::unique_ptr<LiveEngine>> open_on(Backend& backend, const EngineOptions& options,
                                            const OpenObserver& observer) {
    return LiveEngine::make(nullptr, std::make_unique<TinyModel>(TinyKind::hybrid), backend, options,
                            {.pad_to_bucket = true}, observer);
}

// Risk: the plan and what is then allocated drift apart.
TEST(MemoryPlan, IsWhatTheEngineThenTakes) {
    CountingBackend backend;
    std::vector<MemoryPlan> plans;
    const auto planned = [&](const MemoryPlan& p) {
        EXPECT_TRUE(backend.taken.empty() && !backend.placed) << "planned before anything is taken";
        plans.push_back(p);
    };
    const auto engine = open_on(backend, {.context = 512, .slots = 3, .chunk = 128}, {.planned = planned});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    ASSERT_EQ(plans.size(), 1u);
    const MemoryPlan& p = plans[0];
    EXPECT_EQ(p.kv, backend.taken[MemoryKind::kv]);
    EXPECT_EQ(p.state, backend.taken[MemoryKind::state]);
    EXPECT_EQ(p.arena, backend.taken[MemoryKind::arena]);
    EXPECT_EQ(p.rest, backend.taken[MemoryKind::slots] + backend.taken[MemoryKind::step] +
                          backend.taken[MemoryKind::results]);
    EXPECT_EQ(p.weights, 7 * kMiB);
    EXPECT_EQ(p.context, 512);
    EXPECT_EQ(p.sequences, 3);
    // Every tape of the everyday and the largest was told, so that their scratch is in the plan.
    EXPECT_EQ(backend.rows, (std::set<int32_t>{1, 4, 8, 16, 32, 64, 136}));
    EXPECT_GT(backend.weights_planned, 20u);
    EXPECT_GT(p.scratch, 0);
}

// Risk: something is taken, or a plan is announced, for a model that is then refused; the context that the
// refusal names is refused too.
TEST(MemoryPlan, WhatIsRefusedTakesNothing) {
    int announced = 0;
    const OpenObserver observer{.planned = [&](const MemoryPlan&) { ++announced; }};
    EngineOptions options{.context = 1024, .slots = 2, .chunk = 64};
    CountingBackend large, backend;
    const auto fits = open_on(
        large, options, {.planned = [&](const MemoryPlan& p) { backend.available = p.most() - p.kv / 2; }});
    ASSERT_TRUE(fits.ok()) << fits.error().message;
    const auto refused = open_on(backend, options, observer);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().kind, ErrorKind::resources);
    EXPECT_EQ(announced, 0);
    EXPECT_TRUE(backend.taken.empty());
    EXPECT_FALSE(backend.placed);
    const std::string& text = refused.error().message;
    const size_t at = text.find("a context of ");
    ASSERT_NE(at, std::string::npos) << text;
    options.context = std::stoi(text.substr(at + 13));
    EXPECT_GE(options.context, 384);
    const auto opened = open_on(backend, options, observer);
    EXPECT_TRUE(opened.ok()) << text << " / " << opened.error().message;
    EXPECT_EQ(announced, 1);
}

}  // namespace
}  // namespace sparkinfer
