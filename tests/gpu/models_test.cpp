// models_test.cpp — whole models on the GPU against the CPU reference and against themselves.
// Risk: an op that is right alone but not in its place, state or pages that go wrong over many steps, kernels
// that overlap in a graph where they must not, results that depend on what else is in a step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "../models/compare_logits.h"
#include "../models/whole_model.h"
#include "../ops/harness.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "gpu_test.h"

namespace sparkinfer::test {
namespace {

// Ids of a fixed formula.
Tokens some_tokens(int n, uint32_t x = 12345, int vocabulary = 500) {
    Tokens ids;
    for (int i = 0; i < n; ++i) {
        x = x * 1664525u + 1013904223u;
        ids.push_back(TokenId(int32_t((x >> 8) % uint32_t(vocabulary))));
    }
    return ids;
}

std::unique_ptr<Backend> gpu(CudaOptions options) {
    options.policy = kernels_chosen_for();
    auto made = make_cuda_backend(options);
    CHECK(made.ok(), "{}", made.error().message);
    return std::move(made).value();
}
std::unique_ptr<Backend> reference() { return make_cpu_backend({.threads = 4}).value(); }

// The bits of rows, in order.
std::vector<float> flat(const LogitRows& rows, size_t first = 1) {
    std::vector<float> all;
    for (size_t i = first; i < rows.size(); ++i) all.insert(all.end(), rows[i].begin(), rows[i].end());
    return all;
}
void expect_same_bits(const std::string& what, const std::vector<float>& got,
                      const std::vector<float>& want) {
    ASSERT_EQ(got.size(), want.size()) << what;
    ASSERT_FALSE(got.empty()) << what;
    for (size_t i = 0; i < got.size(); ++i)
        if (memcmp(&got[i], &want[i], 4) != 0) {
            ADD_FAILURE() << what << ": bits differ at " << i << ": " << got[i] << " for " << want[i];
            return;
        }
}

LogitRows prompt_rows(const std::string& path, Backend& backend, const Tokens& ids, int chunk) {
    LogitRows rows;
    score_prompt(path, backend, ids, chunk, [&](int i, auto row) { keep_row(rows, i, row); });
    return rows;
}
LogitRows decoding_rows(const std::string& path, Backend& backend, const Tokens& ids, int rows_a_step) {
    LogitRows rows;
    score_decoding(path, backend, ids, rows_a_step, [&](int i, auto row) { keep_row(rows, i, row); });
    return rows;
}
void compare(const std::string& what, const LogitRows& want, const LogitRows& got, double most_kl,
             double margin, double share = 0) {
    Comparison comparison(margin);
    ASSERT_EQ(want.size(), got.size()) << what;
    for (size_t i = 0; i < got.size(); ++i)
        if (!got[i].empty()) comparison.add(int(i), want[i], got[i]);
    comparison.expect(what, most_kl, share);
}

// Of the tokens that the reference is sure of: an expert chosen the other way, since the router is random and
// KV BF16 rounds, makes another token.
double share_of_flips(const std::string& path) {
    const std::string name = std::filesystem::path(path).filename().string();  // the folder's is anyone's
    return name.find("moe") != std::string::npos ? 0.01 : 0;
}

class WholeModel : public testing::TestWithParam<std::string> {
  protected:
    const std::string& path() const { return GetParam(); }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WholeModel);

// Random routers magnify what KV BF16, and the operands of 11 bits of a prompt, round away, so bounds are
// wide here; SmolLM2's are tight.
TEST_P(WholeModel, LogitsAreTheReferences) {
    const Tokens ids = some_tokens(330);  // more than five pages
    const LogitRows want = prompt_rows(path(), *reference(), ids, 64);
    const auto exact = gpu({.kv_type = DType::f32}), rounded = gpu({});
    const bool routed = share_of_flips(path()) > 0;
    compare("prompt, KV F32", want, prompt_rows(path(), *exact, ids, 64), routed ? 1e-2 : 2e-4, 0.05,
            share_of_flips(path()));
    compare("prompt, KV BF16", want, prompt_rows(path(), *rounded, ids, 128), 1e-2, 0.25,
            share_of_flips(path()));
    for (const int rows : {1, 4, 8}) {
        const std::string what = fmt::format("decoding {} rows a step, KV ", rows);
        compare(what + "F32", want, decoding_rows(path(), *exact, ids, rows), 1e-5, 0.05);
        compare(what + "BF16", want, decoding_rows(path(), *rounded, ids, rows), 1e-2, 0.25,
                share_of_flips(path()));
    }
}

TEST_P(WholeModel, RowsOfOneSequenceAreThoseOfSingleSteps) {
    const Tokens ids = some_tokens(150, 77);
    const auto backend = gpu({});
    const std::vector<float> one = flat(decoding_rows(path(), *backend, ids, 1));
    for (int rows = 2; rows <= 8; ++rows)
        expect_same_bits(fmt::format("{} rows a step", rows),
                         flat(decoding_rows(path(), *backend, ids, rows)), one);
}

// Requests with prompts of their own, sampled, so that sequences take different ways.
std::vector<Spoken> many(const std::string& path, Backend& backend, int count, int n) {
    std::vector<Request> requests(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
        Request& r = requests[size_t(i)];
        r.prompt = some_tokens(40 + i, uint32_t(100 + i));
        r.max_tokens = n;
        r.sampling = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = uint64_t(i)};
    }
    EngineOptions options;
    options.context = 64 + n + count;
    options.slots = count;
    // Prompts in steps of their own: how many rows a step has chooses their kernels.
    options.deterministic = true;
    return answer(path, backend, options, std::move(requests));
}

TEST_P(WholeModel, RowsOfManySequencesAreThoseOfEachAlone) {
    const auto backend = gpu({});
    const Spoken alone = many(path(), *backend, 1, 48)[0];
    ASSERT_EQ(alone.tokens.size(), 48u);
    for (int count = 2; count <= 8; ++count) {
        const Spoken first = many(path(), *backend, count, 48)[0];
        EXPECT_EQ(first.tokens, alone.tokens) << count << " sequences";
        expect_same_bits(fmt::format("{} sequences", count), first.logprobs, alone.logprobs);
    }
}

// A token may differ from the reference's where the reference's own lead over it is a rounding error: a tie.
void expect_greedy(const std::string& path, Backend& backend, const std::string& what, double tie) {
    Request request;
    request.prompt = some_tokens(70);
    request.max_tokens = 64;
    request.sampling.temperature = 0;
    EngineOptions options;
    options.context = 256;
    const Spoken said = answer(path, backend, options, {request})[0];
    ASSERT_EQ(said.tokens.size(), 64u) << what;
    Tokens all = request.prompt;
    all.insert(all.end(), said.tokens.begin(), said.tokens.end());
    const LogitRows rows = prompt_rows(path, *reference(), all, 64);
    ASSERT_EQ(rows.size(), all.size());
    int equal = 0, ties = 0;
    for (size_t i = 0; i < said.tokens.size(); ++i) {
        const auto& row = rows[request.prompt.size() + i - 1];
        const RowFacts facts(row);
        const size_t chosen = size_t(raw(said.tokens[i]));
        const double behind = facts.first - double(row[chosen]);
        EXPECT_NEAR(double(said.logprobs[i]), double(row[chosen]) - facts.log_sum, 10 * tie)
            << what << " token " << i;
        if (chosen == facts.best) {
            ++equal;
        } else if (behind <= tie) {
            ++ties;
            printf("    %s: token %zu is %zu, the reference's %zu leads by %.2e only: a tie\n", what.c_str(),
                   i, chosen, facts.best, behind);
        } else {
            ADD_FAILURE() << what << ": token " << i << " is " << chosen << ", the reference's " << facts.best
                          << " leads by " << behind;
        }
    }
    printf("    %s: %d of %zu greedy tokens are the reference's, %d ties\n", what.c_str(), equal,
           said.tokens.size(), ties);
}

TEST_P(WholeModel, GreedyTokensAreTheReferences) {
    // The prompt has been read with operands of 11 bits; with random routers a lead of 0.016 was lost to
    // that.
    const bool flips = share_of_flips(path()) > 0;
    expect_greedy(path(), *gpu({.kv_type = DType::f32}), "KV F32", flips ? 3e-2 : 1e-2);
    expect_greedy(path(), *gpu({}), "KV BF16", flips ? 0.5 : 0.1);
}

TEST_P(WholeModel, GraphsAndRunsAreBitEqual) {
    const Tokens ids = some_tokens(200, 5);
    const auto graph = gpu({}), steps = gpu({.executor = CudaExecutor::op_by_op});
    const std::vector<float> prompt = flat(prompt_rows(path(), *graph, ids, 64), 0);
    expect_same_bits("the prompt again", flat(prompt_rows(path(), *graph, ids, 64), 0), prompt);
    expect_same_bits("the prompt op by op", flat(prompt_rows(path(), *steps, ids, 64), 0), prompt);
    for (const int rows : {1, 4}) {
        const std::vector<float> decoding = flat(decoding_rows(path(), *graph, ids, rows));
        const std::string what = fmt::format("decoding {} rows a step ", rows);
        expect_same_bits(what + "again", flat(decoding_rows(path(), *graph, ids, rows)), decoding);
        expect_same_bits(what + "op by op", flat(decoding_rows(path(), *steps, ids, rows)), decoding);
    }
    const Spoken a = many(path(), *graph, 3, 40)[1], b = many(path(), *graph, 3, 40)[1],
                 c = many(path(), *steps, 3, 40)[1];
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.tokens, c.tokens);
    expect_same_bits("sampled again", b.logprobs, a.logprobs);
    expect_same_bits("sampled op by op", c.logprobs, a.logprobs);
}

std::string model_name(const testing::TestParamInfo<std::string>& info) {
    std::string name = std::filesystem::path(info.param).filename().string();
    for (char& c : name)
        if (!isalnum(static_cast<unsigned char>(c))) c = '_';
    return name;
}
INSTANTIATE_TEST_SUITE_P(Models, WholeModel, testing::ValuesIn(small_models()), model_name);

// --- every length

constexpr int kLongest = 4097;

// The first model of each architecture whose context is long enough.
std::vector<std::string> one_of_each_architecture() {
    std::vector<std::string> list;
    std::set<std::string> seen;
    for (const std::string& path : small_models()) {
        auto checkpoint = open_checkpoint(path);
        CHECK(checkpoint.ok(), "{}", checkpoint.error().message);
        auto model = load_model(**checkpoint);
        CHECK(model.ok(), "{}", model.error().message);
        const ModelShape& shape = (*model)->shape();
        if (shape.context >= kLongest + 64 && seen.insert(shape.architecture).second) list.push_back(path);
    }
    return list;
}

class EveryLength : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryLength);

// Risk: a length at which a page, a tile or a share of a split begins or ends. Decodes from one token to
// 4,097, sampling; then each of these steps again with given tokens. Both against the reference at every
// length.
TEST_P(EveryLength, DecodesAsTheReference) {
    Request request;
    request.prompt = some_tokens(1);
    request.max_tokens = kLongest - 1;
    request.sampling = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 11};
    EngineOptions options;
    options.context = kLongest + 1;
    const auto exact = gpu({.kv_type = DType::f32}), rounded = gpu({});
    const Spoken said = answer(GetParam(), *exact, options, {request})[0];
    ASSERT_EQ(int(said.tokens.size()), kLongest - 1);
    Tokens all = request.prompt;
    all.insert(all.end(), said.tokens.begin(), said.tokens.end());
    const LogitRows want = prompt_rows(GetParam(), *reference(), all, 512);
    ASSERT_EQ(want.size(), all.size());
    double worst = 0;
    for (size_t i = 0; i + 1 < all.size(); ++i) {
        const double logprob = double(want[i][size_t(raw(all[i + 1]))]) - RowFacts(want[i]).log_sum;
        worst = std::max(worst, std::abs(logprob - double(said.logprobs[i])));
        ASSERT_NEAR(logprob, double(said.logprobs[i]), 1e-2) << "length " << i + 1;
    }
    printf("    sampled: log-probabilities within %.1e at every length\n", worst);
    compare("KV F32", want, decoding_rows(GetParam(), *exact, all, 1), 1e-5, 0.05);
    compare("KV BF16", want, decoding_rows(GetParam(), *rounded, all, 1), 1e-2, 0.25,
            share_of_flips(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Models, EveryLength, testing::ValuesIn(one_of_each_architecture()), model_name);

}  // namespace
}  // namespace sparkinfer::test
