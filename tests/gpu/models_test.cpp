// models_test.cpp — whole models on the GPU against the CPU reference. Run on a machine with a GPU:
//     gpu_test --models=FOLDER      every *.gguf in FOLDER, and folders of safetensors
// Risk: an op that is right alone but not in its place, state or pages that go wrong over many steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "cpu/backend.h"
#include "cuda/backend.h"
#include "engine/engine.h"
#include "model/model.h"

namespace sparkinfer {
namespace {

std::string folder;

std::vector<std::string> models() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".gguf" || std::filesystem::exists(entry.path() / "config.json"))
            found.push_back(entry.path().string());
    std::sort(found.begin(), found.end());
    return found;
}

std::vector<TokenId> prompt_of(int32_t vocabulary, int n) {
    std::vector<TokenId> ids;
    uint32_t x = 12345;
    for (int i = 0; i < n; ++i) {
        x = x * 1664525u + 1013904223u;
        ids.push_back(TokenId(int32_t((x >> 8) % uint32_t(vocabulary))));
    }
    return ids;
}

struct Scores {
    std::vector<std::vector<float>> logits;
};

Scores score(const std::string& path, Backend& backend, const std::vector<TokenId>& ids, int32_t chunk) {
    EngineOptions options;
    options.context = int32_t(ids.size()) + 64;
    options.chunk = chunk;
    auto engine = Engine::open(path, backend, options);
    if (!engine.ok()) ADD_FAILURE() << engine.error().message;
    if (!engine.ok()) return {};
    Scores s;
    ScoreRequest request;
    request.tokens = ids;
    request.on_logits = [&](int32_t, std::span<const float> row) -> Result<void> {
        s.logits.emplace_back(row.begin(), row.end());
        return {};
    };
    auto done = (*engine)->score(request);
    if (!done.ok()) ADD_FAILURE() << done.error().message;
    return s;
}

struct Decoded {
    std::vector<TokenId> ids;     // prompt and answer
    std::vector<float> logprobs;  // of the answer
};

// Greedy answers to `count` prompts decoded side by side, each step with `count` rows.
std::vector<Decoded> decode(const std::string& path, Backend& backend, int count, int prompt, int n) {
    EngineOptions options;
    options.context = prompt + n + 64;
    options.slots = count;
    auto engine = Engine::open(path, backend, options);
    if (!engine.ok()) ADD_FAILURE() << engine.error().message;
    if (!engine.ok()) return {};
    std::map<RequestId, int> index;
    std::vector<Decoded> out(count);
    for (int i = 0; i < count; ++i) {
        Request request;
        request.prompt = prompt_of(500, prompt + i);
        std::rotate(request.prompt.begin(), request.prompt.begin() + 3 * i, request.prompt.end());
        out[i].ids = request.prompt;
        request.max_tokens = n;
        request.sampling.temperature = 0;
        request.logprobs = 0;
        auto id = (*engine)->submit(request);
        if (!id.ok())
            ADD_FAILURE() << id.error().message;
        else
            index[*id] = i;
    }
    while (!(*engine)->idle()) {
        auto events = (*engine)->step();
        if (!events.ok()) {
            ADD_FAILURE() << events.error().message;
            return out;
        }
        for (const Event& e : *events) {
            if (!e.token) continue;
            out[index[e.request]].ids.push_back(*e.token);
            out[index[e.request]].logprobs.push_back(e.logprobs ? e.logprobs->logprob : NAN);
        }
    }
    return out;
}

// The CPU's log-probability of each token of an answer, given all before it.
std::vector<float> reference_logprobs(const std::string& path, Backend& cpu, const Decoded& d) {
    const Scores s = score(path, cpu, d.ids, 512);
    std::vector<float> out;
    for (size_t i = d.ids.size() - d.logprobs.size(); i < d.ids.size(); ++i) {
        const auto& row = s.logits.at(i - 1);
        double most = -1e30, sum = 0;
        for (float x : row) most = std::max(most, double(x));
        for (float x : row) sum += std::exp(x - most);
        out.push_back(float(row[raw(d.ids[i])] - most - std::log(sum)));
    }
    return out;
}

std::vector<int32_t> greedy(const std::string& path, Backend& backend, std::vector<TokenId> ids, int n) {
    EngineOptions options;
    options.context = int32_t(ids.size()) + n + 64;
    auto engine = Engine::open(path, backend, options);
    if (!engine.ok()) ADD_FAILURE() << engine.error().message;
    if (!engine.ok()) return {};
    Request request;
    request.prompt = std::move(ids);
    request.max_tokens = n;
    request.sampling.temperature = 0;
    std::vector<int32_t> out;
    auto id = (*engine)->submit(request);
    if (!id.ok()) ADD_FAILURE() << id.error().message;
    while (!(*engine)->idle()) {
        auto events = (*engine)->step();
        if (!events.ok()) {
            ADD_FAILURE() << events.error().message;
            break;
        }
        for (const Event& e : *events)
            if (e.token) out.push_back(raw(*e.token));
    }
    return out;
}

// Mean KL(reference ‖ other) and whether the best tokens agree where the reference is sure.
void compare(const Scores& a, const Scores& b, double most_kl, double margin) {
    ASSERT_EQ(a.logits.size(), b.logits.size());
    double kl = 0;
    int differ = 0, sure = 0;
    for (size_t i = 0; i < a.logits.size(); ++i) {
        const auto &x = a.logits[i], &y = b.logits[i];
        double mx = -1e30, my = -1e30, sx = 0, sy = 0, k = 0;
        size_t bx = 0, by = 0;
        float second = -1e30f;
        for (size_t j = 0; j < x.size(); ++j) {
            ASSERT_TRUE(std::isfinite(y[j])) << "row " << i << " token " << j;
            if (x[j] > mx)
                second = float(mx), mx = x[j], bx = j;
            else
                second = std::max(second, x[j]);
            if (y[j] > my) my = y[j], by = j;
        }
        for (size_t j = 0; j < x.size(); ++j) sx += std::exp(x[j] - mx), sy += std::exp(y[j] - my);
        for (size_t j = 0; j < x.size(); ++j) {
            const double px = std::exp(x[j] - mx) / sx;
            k += px * ((x[j] - mx - std::log(sx)) - (y[j] - my - std::log(sy)));
        }
        kl += k;
        if (mx - second > margin) ++sure, differ += bx != by;
    }
    kl /= double(a.logits.size());
    printf("    mean KL %.2e, %d of %d sure tokens differ\n", kl, differ, sure);
    EXPECT_LE(kl, most_kl);
    EXPECT_EQ(differ, 0);
}

class Models : public ::testing::Test {
  protected:
    void SetUp() override {
        auto c = make_cpu_backend({});
        ASSERT_TRUE(c.ok()) << c.error().message;
        cpu = std::move(c).value();
        for (CudaExecutor e : {CudaExecutor::op_by_op, CudaExecutor::graph}) {
            auto g = make_cuda_backend({.executor = e});
            ASSERT_TRUE(g.ok()) << g.error().message;
            (e == CudaExecutor::graph ? graph : op_by_op) = std::move(g).value();
        }
        auto f = make_cuda_backend({.kv_type = DType::f32});
        ASSERT_TRUE(f.ok()) << f.error().message;
        exact = std::move(f).value();
    }
    std::unique_ptr<Backend> cpu, op_by_op, graph, exact;
};

TEST_F(Models, LogitsAgreeWithTheCpu) {
    for (const std::string& path : models()) {
        printf("%s\n", path.c_str());
        auto ids = prompt_of(500, 150);
        const Scores a = score(path, *cpu, ids, 64);
        // Chunks of 64 rows, and of one to eight: other kernels. Random routers magnify what KV BF16 rounds
        // away.
        compare(a, score(path, *exact, ids, 64), 1e-6, 0.05);
        compare(a, score(path, *op_by_op, ids, 64), 1e-2, 0.25);
        compare(a, score(path, *graph, ids, 64), 1e-2, 0.25);
    }
}

// Risk: the kernels of few rows (decode) differ from the reference, or from themselves at another number of
// rows.
TEST_F(Models, DecodeAgreesWithTheCpuAtAnyNumberOfRows) {
    for (const std::string& path : models()) {
        std::vector<Decoded> one;
        for (int count : {1, 3, 8}) {
            const auto many = decode(path, *exact, count, 40, 40);
            double worst = 0;
            for (const Decoded& d : many) {
                const auto want = reference_logprobs(path, *cpu, d);
                ASSERT_EQ(want.size(), 40u);
                for (size_t i = 0; i < want.size(); ++i)
                    worst = std::max(worst, double(std::abs(want[i] - d.logprobs[i])));
            }
            printf("%s, %d rows: log-probabilities within %.1e\n", path.c_str(), count, worst);
            EXPECT_LE(worst, 2e-3) << path;
            if (count == 1) one = many;
            EXPECT_EQ(many[0].ids, one[0].ids) << path << ", " << count << " rows";
            EXPECT_EQ(many[0].logprobs, one[0].logprobs)
                << path << ", " << count << " rows: bits differ from one row's";
        }
    }
}

TEST_F(Models, GreedyTokensOfGraphAndOpByOpAreEqual) {
    for (const std::string& path : models()) {
        const auto ids = prompt_of(500, 70);
        const auto a = greedy(path, *op_by_op, ids, 48), b = greedy(path, *graph, ids, 48);
        EXPECT_EQ(a, b) << path;
        EXPECT_EQ(a.size(), 48u) << path;
        const auto c = greedy(path, *cpu, ids, 48);
        size_t same = 0;
        while (same < c.size() && same < a.size() && c[same] == a[same]) ++same;
        printf("%s: %zu of %zu greedy tokens as on the CPU\n", path.c_str(), same, c.size());
    }
}

}  // namespace
}  // namespace sparkinfer

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    for (int i = 1; i < argc; ++i)
        if (std::string_view(argv[i]).starts_with("--models=")) sparkinfer::folder = argv[i] + 9;
    if (sparkinfer::folder.empty()) {
        fprintf(stderr, "usage: gpu_test --models=FOLDER [--gtest_…]\n");
        return 2;
    }
    return RUN_ALL_TESTS();
}
