// test_model.h — tiny random models written straight over the tape's vocabulary, and helpers to run them. No
// files.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "cpu/backend.h"
#include "engine/live_engine.h"

namespace sparkinfer {

// attention: one dense layer. hybrid: a gated-delta layer, then gated attention, experts behind both.
enum class TinyKind { attention, hybrid };

class TinyModel final : public Model {
  public:
    static constexpr int32_t kDim = 24, kVocab = 97, kHeads = 2, kHead = 8, kFfn = 40, kExperts = 4,
                             kUsed = 2;
    static constexpr int32_t kKeyHeads = 1, kValueHeads = 2, kWidth = 128;
    static constexpr int32_t kChannels = (2 * kKeyHeads + kValueHeads) * kWidth;

    explicit TinyModel(TinyKind kind, uint32_t seed = 7) : kind_(kind), random_(seed) {
        const bool hybrid = kind == TinyKind::hybrid;
        shape_.architecture = hybrid ? "tiny-hybrid" : "tiny-attention";
        shape_.dim = kDim;
        shape_.vocab = kVocab;
        shape_.context = 1024;
        shape_.layers = hybrid ? 2 : 1;
        shape_.heads = kHeads;
        shape_.kv.push_back({nullptr, 0, 1, kHead, DType::f32});
        if (hybrid) shape_.state.push_back({nullptr, 0, kKeyHeads, kValueHeads, kWidth, kChannels, 4});
        embed_ = matrix(kVocab, kDim, 1);
        head_ = matrix(kVocab, kDim, 3);
        norm_ = ones(kDim);
        q_ = matrix(hybrid ? 2 * kHeads * kHead : kHeads * kHead, kDim, 1.5f);
        k_ = matrix(kHead, kDim, 1.5f);
        v_ = matrix(kHead, kDim, 1.5f);
        o_ = matrix(kDim, kHeads * kHead, 1);
        frequency_ = vector(kHead / 2, [](int i) { return std::pow(100.0f, -float(i) / 4); });
        make_ffn(hybrid);
        if (hybrid) make_delta();
    }

    void forward(Tape& t, const Batch& b) const override {
        const Tensor x = t.embed(embed_, b.rows);  // [T, D]
        if (kind_ == TinyKind::hybrid) {
            delta_layer(t, x, b.state[0]);
            expert_layer(t, x);
        }
        attention_layer(t, x, b.kv[0]);
        if (kind_ == TinyKind::hybrid)
            expert_layer(t, x);
        else
            dense_layer(t, x);
        t.output(x, norm_, kEps, head_, b);
    }

  private:
    static constexpr float kEps = 1e-5f;

    void attention_layer(Tape& t, const Tensor& x, const KvLayer& kv) const {
        auto scope = t.scope();
        const Weight parts[] = {q_, k_, v_};
        const std::vector<Tensor> qkv =
            t.norm_linear(x, norm_, kEps, parts);  // [T, H·d (·2)], [T, G·d], [T, G·d]
        Attention op{};
        op.q = qkv[0], op.k = qkv[1], op.v = qkv[2];
        op.rope = {frequency_, kHead, RopePairs::halves, 1, {0, 0, 0}};
        op.kv = kv;
        op.heads = kHeads;
        op.eps = kEps;
        op.scale = 1 / std::sqrt(float(kHead));
        op.gated = kind_ == TinyKind::hybrid;
        t.linear_add(t.attention(op), o_, x);
    }
    void delta_layer(Tape& t, const Tensor& x, const StateLayer& state) const {
        auto scope = t.scope();
        const Weight parts[] = {qkv_, z_, beta_, alpha_};
        const std::vector<Tensor> in = t.norm_linear(x, norm_, kEps, parts);
        GatedDelta op{};
        op.qkv = in[0], op.z = in[1], op.beta = in[2], op.alpha = in[3];
        op.conv = conv_, op.decay = decay_, op.dt_bias = dt_bias_, op.norm = delta_norm_;
        op.state = state;
        op.order = HeadOrder::block;
        op.eps = kEps;
        t.linear_add(t.gated_delta(op), delta_out_, x);
    }
    void dense_layer(Tape& t, const Tensor& x) const {
        auto scope = t.scope();
        t.linear_add(t.linear_glu(x, norm_, kEps, gate_, up_), down_, x);
    }
    void expert_layer(Tape& t, const Tensor& x) const {
        auto scope = t.scope();
        const Weight parts[] = {router_};
        const Tensor logits = t.norm_linear(x, norm_, kEps, parts)[0];  // [T, E]
        const Router router{{}, Scoring::softmax, kUsed, 1, true};
        const Tensor h = t.moe_glu(x, norm_, kEps, logits, router, gate_, up_);  // [T, K, F]
        t.moe_down_add(h, logits, router, down_, {}, x);
    }

    void make_ffn(bool hybrid) {
        const int32_t e = hybrid ? kExperts : 1;
        gate_ = matrix(e * kFfn, kDim, 1);
        up_ = matrix(e * kFfn, kDim, 1);
        down_ = matrix(e * kDim, kFfn, 1);
        for (Weight* w : {&gate_, &up_, &down_}) w->experts = e, w->out /= e;
        if (hybrid) router_ = matrix(kExperts, kDim, 2);
    }
    void make_delta() {
        qkv_ = matrix(kChannels, kDim, 1);
        z_ = matrix(kValueHeads * kWidth, kDim, 1);
        beta_ = matrix(kValueHeads, kDim, 1);
        alpha_ = matrix(kValueHeads, kDim, 1);
        conv_ = matrix(kChannels, 4, 1);
        decay_ = vector(kValueHeads, [](int i) { return -0.1f - 0.2f * float(i); });
        dt_bias_ = vector(kValueHeads, [](int) { return 0.0f; });
        delta_norm_ = ones(kWidth);
        delta_out_ = matrix(kDim, kValueHeads * kWidth, 1);
    }
    Weight ones(int32_t n) {
        return vector(n, [](int) { return 1.0f; });
    }
    template <class F>
    Weight vector(int32_t n, F value) {
        std::vector<float> values(size_t(n), 0.0f);
        for (int i = 0; i < n; ++i) values[size_t(i)] = value(i);
        return own(std::move(values), 1, n);
    }
    Weight matrix(int32_t out, int32_t in, float scale) {
        std::normal_distribution<float> normal(0, scale / std::sqrt(float(in)));
        std::vector<float> values(size_t(out) * size_t(in));
        for (float& v : values) v = normal(random_);
        return own(std::move(values), out, in);
    }
    Weight own(std::vector<float> values, int32_t out, int32_t in) {
        storage_.push_back(std::make_unique<std::vector<float>>(std::move(values)));
        Weight w;
        w.data = storage_.back()->data();
        w.out = out;
        w.in = in;
        return w;
    }

    TinyKind kind_;
    std::mt19937 random_;
    std::vector<std::unique_ptr<std::vector<float>>> storage_;
    Weight embed_, head_, norm_, q_, k_, v_, o_, frequency_, gate_, up_, down_, router_;
    Weight qkv_, z_, beta_, alpha_, conv_, decay_, dt_bias_, delta_norm_, delta_out_;
};

// A device may work on all segments of a step at once: nobody may write what another one reads or writes.
inline void check_states_apart(const StepView& step) {
    std::multiset<int32_t> touched, written;
    for (int i = 0; i < step.header().segments; ++i) {
        const Segment& s = step.segments()[i];
        if (s.state_in >= 0 && s.state_in != s.state_out) touched.insert(s.state_in);
        if (s.state_out >= 0) written.insert(s.state_out);
    }
    for (int i = 0; i < step.header().saves; ++i) written.insert(step.saves()[i].state);
    for (int32_t state : written) {
        EXPECT_EQ(written.count(state), 1u) << "state " << state << " is written twice in a step";
        EXPECT_EQ(touched.count(state), 0u) << "state " << state << " is read and written in a step";
    }
}

// Runs nothing until somebody waits: what an asynchronous device may do at worst. Poisons every step image
// after use.
class LazyBackend final : public Backend {
  public:
    explicit LazyBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)), info_(inner_->info()) {}
    BackendInfo& info() { return info_; }
    const BackendInfo& info() const override { return info_; }
    Result<Memory> allocate(int64_t bytes, MemoryKind kind) override {
        TRY(Memory m, inner_->allocate(bytes, kind));
        m.host = false;
        return m;
    }
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source) override {
        return inner_->place(group, source);
    }
    Result<MemoryNeed> plan(std::span<const WeightGroup> groups, std::span<const Tape> tapes) override {
        TRY(MemoryNeed need, inner_->plan(groups, tapes));
        need.available = std::min(need.available, info_.memory_bytes);
        return need;
    }
    Result<Compiled> compile(const Tape& tape) override { return inner_->compile(tape); }
    void release(const Compiled& compiled) override { inner_->release(compiled); }
    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override {
        check_states_apart(StepView{step.data()});
        return later([this, compiled, step] { return inner_->execute(compiled, step); });
    }
    Result<Ticket> copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket) override {
        return later([this, to, from] { return inner_->copy(to, from, {}); });
    }
    Result<bool> done(Ticket ticket, bool wait) override {
        if (wait)
            while (finished_ < ticket.id) TRY_VOID(run_one());
        return finished_ >= ticket.id;
    }
    int64_t fail_at = -1;  // the n-th piece of work from now fails

  private:
    Result<Ticket> later(std::function<Result<Ticket>()> work) {
        queue_.push_back(std::move(work));
        return Ticket{++queued_};
    }
    Result<void> run_one() {
        auto work = std::move(queue_.front());
        queue_.pop_front();
        ++finished_;
        const bool fails = fail_at == 0;
        if (fail_at >= 0) --fail_at;
        if (fails) return internal_error("the device has failed in a test");
        TRY([[maybe_unused]] const Ticket done, work());
        return {};
    }
    std::unique_ptr<Backend> inner_;
    BackendInfo info_;
    std::deque<std::function<Result<Ticket>()>> queue_;
    int64_t queued_ = 0, finished_ = 0;
};

struct TestSetup {
    TinyKind kind = TinyKind::attention;
    EngineOptions options{.context = 512, .slots = 4, .chunk = 64};
    EngineTuning tuning{};
    bool lazy = false;
};

struct TestEngine {
    std::unique_ptr<Backend> backend;
    LazyBackend* lazy = nullptr;
    std::unique_ptr<LiveEngine> engine;
    LiveEngine* operator->() { return engine.get(); }
};

inline TestEngine make_engine(const TestSetup& setup = {}) {
    TestEngine t;
    t.backend = make_cpu_backend({.threads = 1}).value();
    if (setup.lazy) {
        auto lazy = std::make_unique<LazyBackend>(std::move(t.backend));
        t.lazy = lazy.get();
        t.backend = std::move(lazy);
    }
    t.engine = LiveEngine::make(nullptr, std::make_unique<TinyModel>(setup.kind), *t.backend, setup.options,
                                setup.tuning, {})
                   .value();
    return t;
}

inline std::vector<TokenId> random_tokens(int n, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<TokenId> tokens(size_t(n), TokenId(0));
    for (TokenId& token : tokens) token = TokenId(int32_t(random() % TinyModel::kVocab));
    return tokens;
}

// A request with every kind of sampling in it, decided by the seed.
inline Request random_request(int prompt, int max_tokens, uint32_t seed) {
    Request r;
    r.prompt = random_tokens(prompt, seed);
    r.max_tokens = max_tokens;
    r.logprobs = int32_t(seed % 4) - 1;
    r.sampling.seed = seed * 77777ull;
    r.sampling.temperature = seed % 3 == 0 ? 0.0f : 0.9f;
    if (seed % 2) r.sampling.repeat_penalty = 1.1f;
    if (seed % 5 == 0) r.sampling.presence_penalty = 0.4f;
    if (seed % 7 == 0) r.sampling.frequency_penalty = 0.3f;
    if (seed % 6 == 0) r.sampling.logit_bias = {{TokenId(3), 4.0f}, {TokenId(int32_t(seed % 97)), -3.0f}};
    return r;
}

// All that a caller hears of one request.
struct Said {
    TokenId token;
    std::vector<float> logprobs;  // the token's, then its alternatives' ids and values
    bool operator==(const Said&) const = default;
};
struct EngineAnswer {
    std::vector<Said> said;
    FinishReason finish = FinishReason::none;
    std::string error;
    bool operator==(const EngineAnswer&) const = default;
    std::vector<TokenId> tokens() const {
        std::vector<TokenId> tokens;
        tokens.reserve(said.size());
        for (const Said& s : said) tokens.push_back(s.token);
        return tokens;
    }
};
inline void PrintTo(const EngineAnswer& a, std::ostream* out) {
    *out << finish_reason_name(a.finish) << ' ' << a.error;
    for (const Said& s : a.said) {
        *out << ' ' << raw(s.token);
        if (!s.logprobs.empty()) *out << '(' << s.logprobs[0] << ')';
    }
}

inline void take_event(const Event& e, EngineAnswer& a) {
    if (e.token) a.said.push_back({*e.token, {}});
    if (e.logprobs) {
        std::vector<float>& l = a.said.back().logprobs;
        l.push_back(e.logprobs->logprob);
        for (const auto& [token, value] : e.logprobs->top) {
            l.push_back(float(raw(token)));
            l.push_back(value);
        }
    }
    if (e.finish == FinishReason::none) return;
    EXPECT_EQ(a.finish, FinishReason::none) << "ended twice";
    a.finish = e.finish;
    a.error = e.error;
}

using Answers = std::map<RequestId, EngineAnswer>;

inline void step_once(LiveEngine& engine, Answers& answers) {
    auto events = engine.step();
    ASSERT_TRUE(events.ok()) << events.error().message;
    for (const Event& e : *events) take_event(e, answers[e.request]);
    engine.check_integrity();
}

inline void run_all(LiveEngine& engine, Answers& answers) {
    for (int steps = 0; !engine.idle(); ++steps) {
        ASSERT_LT(steps, 100000) << "no end";
        step_once(engine, answers);
    }
}

// What the request gives alone, in a fresh engine of the plainest kind: the measure for everything else.
inline EngineAnswer alone(TinyKind kind, const Request& request) {
    TestEngine e = make_engine({.kind = kind,
                                .options = {.context = 512, .slots = 1, .chunk = 512},
                                .tuning = {.pipeline = 1, .pad_to_bucket = false}});
    const RequestId id = e->submit(request).value();
    Answers answers;
    run_all(*e.engine, answers);
    return answers[id];
}

}  // namespace sparkinfer
