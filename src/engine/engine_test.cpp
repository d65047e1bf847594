// Many sequences at once: each must say, bit for bit, what it says alone.
#include "engine/test_model.h"

namespace sparkinfer {
namespace {

// Every way of running that must not show in the answers.
struct Way {
    const char* name;
    TinyKind kind;
    int32_t chunk, slots, pipeline;
    bool pad, lazy;
};
void PrintTo(const Way& w, std::ostream* out) { *out << w.name; }

constexpr Way kWays[] = {
    {"attention_plain", TinyKind::attention, 64, 4, 1, false, false},
    {"attention_queued", TinyKind::attention, 128, 4, 2, true, true},
    {"hybrid_plain", TinyKind::hybrid, 64, 4, 1, false, false},
    {"hybrid_padded", TinyKind::hybrid, 192, 8, 1, true, false},
    {"hybrid_queued", TinyKind::hybrid, 64, 4, 2, true, false},
    {"hybrid_lazy", TinyKind::hybrid, 128, 3, 2, false, true},
    {"hybrid_auto_lazy", TinyKind::hybrid, 64, 4, 0, false, true},
    {"hybrid_deep", TinyKind::hybrid, 64, 4, 4, true, true},
};

TestSetup setup_of(const Way& w, int32_t context = 512) {
    return {.kind = w.kind,
            .options = {.context = context, .slots = w.slots, .chunk = w.chunk},
            .tuning = {.pipeline = w.pipeline, .pad_to_bucket = w.pad},
            .lazy = w.lazy};
}

class EveryWay : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, EveryWay, testing::ValuesIn(kWays),
                         [](const auto& p) { return p.param.name; });

// Risk: rows of one sequence leak into another when chunks and decode rows of many share a step.
TEST_P(EveryWay, RaggedBatchEqualsAlone) {
    TestEngine e = make_engine(setup_of(GetParam()));
    std::map<RequestId, Request> requests;
    Answers answers;
    const int lengths[] = {1, 2, 63, 64, 65, 127, 130, 200, 7, 300};
    uint32_t seed = 1;
    for (int length : lengths) {
        Request r = random_request(length, 3 + int(seed * 5 % 17), seed);
        if (seed % 3 == 1) r.stop_tokens = {TokenId(5), TokenId(17), TokenId(40), TokenId(41), TokenId(42)};
        requests.emplace(e->submit(r).value(), r);
        ++seed;
        step_once(*e.engine, answers);
    }
    run_all(*e.engine, answers);
    for (const auto& [id, request] : requests)
        EXPECT_EQ(answers[id], alone(GetParam().kind, request)) << "request " << int64_t(id);
}

}  // namespace
}  // namespace sparkinfer
