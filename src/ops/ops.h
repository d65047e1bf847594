// ops.h — the vocabulary. An op is a plain struct: operands, attributes and, in its comment, its whole
// meaning.
//
// Adding an op: one struct and one line of FOREACH_OP here, its method in tape.h, cpu/<op>.cpp, cuda/<op>.cu,
// tests/ops/<op>.cpp. The compiler names each missing one.
//
// Letters: T rows of the step, D model width, F feed-forward width, H query heads, G key/value heads, d head
// width, V vocabulary, E experts, K experts used; n_k, n_v key and value heads of the gated delta rule.
// Every parameter is a Weight, vectors too ([1, n], F32): whoever places weights on a device sees all of
// them.
#pragma once
#include <type_traits>

#include "core/tensor.h"
#include "ops/step.h"
#include "quant/quant.h"

namespace sparkinfer {

enum class Activation : int32_t { silu };

enum class RopePairs : int32_t {
    halves,    // (i, i + dims/2), as Hugging Face's rotate_half
    adjacent,  // (2i, 2i + 1), as GGUF files of `llama` are permuted for
};

// Rotary embedding on the first `dims` entries of a head. frequency [1, dims/2] holds radians per position
// with every long-context scaling already in it; cos and sin are multiplied by `magnitude`.
struct Rope {
    Weight frequency;
    int32_t dims;
    RopePairs pairs;
    float magnitude;
    int32_t sections[3];  // interleaved three-axis positions: pair s uses height if s%3==1 and
                          // s<3·sections[1], width if s%3==2 and s<3·sections[2], else time; all 0: time only
};

// One attention layer's part of the KV pages: page p, layer part = [2 (k, v)][G][64][d] at pages +
// p·page_bytes.
struct KvLayer {
    std::byte* pages;      // of this layer, in page 0
    int64_t page_bytes;    // bytes from page to page, all layers
    int32_t heads, width;  // G, d
    DType dtype;
};

// One recurrent layer's part of the state pool: state slot s lies at states + s·state_bytes and holds, for
// this layer, S [n_v, 128 (k), 128 (v)], a ring of convolution inputs [columns, channels] F32, the ring's
// position, and a log of rows {k [n_k·128], d [n_v·128], g [n_v]} that are not yet folded into S.
struct StateLayer {
    std::byte* states;                      // of this layer, in state slot 0
    int64_t state_bytes;                    // bytes from slot to slot, all layers
    int32_t key_heads, value_heads, width;  // n_k, n_v, 128
    int32_t channels, taps;                 // convolution: 2·n_k·128 + n_v·128 channels, 4 taps
    DType dtype = DType::f32;  // of S; BF16: rounded wherever it is written, computed with in F32
};

enum class HeadOrder : int32_t {
    block,   // value head h reads key head h / (n_v/n_k): safetensors
    cyclic,  // value head h reads key head h % n_k: GGUF
};

enum class Scoring : int32_t { softmax, sigmoid };

// How experts are chosen from the router's logits: score all E, take the K best of score (+ bias, for the
// choice only), ties to the lower index; weights are their scores, divided by their sum if `renormalise`,
// times `scale`.
struct Router {
    Weight bias;  // [1, E] or empty
    Scoring scoring;
    int32_t top_k;
    float scale;
    bool renormalise;
};

// Applies Step's changes to Slots, then y[t] = table[token of row t]; also writes the token into the slot's
// history at the row's index. Absent rows give zeros.
struct Embed {
    StepView step;
    SlotsView slots;
    Weight table;  // [V, D]
    Tensor y;      // [T, D]
};

constexpr int kMaxParts = 4;

// n = x / sqrt(mean(x²) + eps) · norm;  y[i] = n · w[i]ᵀ, one output a part.
struct NormLinear {
    Tensor x;     // [T, D]
    Weight norm;  // [1, D]
    float eps;
    int32_t parts;
    Weight w[kMaxParts];  // [out_i, D]
    Tensor y[kMaxParts];  // [T, out_i]
};

// y += x · wᵀ
struct LinearAdd {
    Tensor x;  // [T, in]
    Weight w;  // [out, in]
    Tensor y;  // [T, out]
};

// n as in NormLinear;  y = act(n · gateᵀ) ⊙ (n · upᵀ)
struct LinearGlu {
    Tensor x;         // [T, D]
    Weight norm;      // [1, D]
    Weight gate, up;  // [F, D]
    float eps;
    Activation activation;
    Tensor y;  // [T, F]
};

// For each row: q and k are normalised per head (RMS, when q_norm/k_norm are given), rotated; k and v go to
// the KV pages at the row's index; y_h = softmax(scale · q_h · Kᵀ) V over all indices ≤ the row's own, with
// key/value head h / (H/G); with a gate, y_h ⊙= sigmoid(gate_h). Gate layout: q is [T, H, 2, d], query rows
// then gate rows.
struct Attention {
    StepView step;
    SlotsView slots;
    Tensor q;               // [T, H·d] or, gated, [T, H·2·d]
    Tensor k, v;            // [T, G·d]
    Weight q_norm, k_norm;  // [1, d] or empty
    Rope rope;
    KvLayer kv;
    int32_t heads;  // H
    float eps, scale;
    bool gated;
    Tensor y;  // [T, H·d]
};

// Gated delta rule with its convolution, per segment from state_in to state_out:
//   m = silu(causal depthwise convolution of qkv with conv), split into q, k [n_k, 128] and v [n_v, 128]
//   q, k divided by sqrt(Σ² + 1e-6) per head; q · 128^-½
//   β = sigmoid(beta);  g = decay · softplus(alpha + dt_bias)      (decay = -exp(A_log))
//   S ← e^g S;  d = β (v − Sᵀ k);  S ← S + k dᵀ;  o = Sᵀ q          per value head, with its key head by
//   `order` y = o / sqrt(mean(o²) + eps) · norm ⊙ silu(z)
// First folds `accepted` logged rows of state_in into S. Rows flagged kRowVerify are logged in state_out, not
// folded. Step's saves write the state after an inner row. Absent rows give zeros and touch nothing.
struct GatedDelta {
    StepView step;
    SlotsView slots;
    Tensor qkv;             // [T, 2·n_k·128 + n_v·128]
    Tensor z;               // [T, n_v·128]
    Tensor beta, alpha;     // [T, n_v]
    Weight conv;            // [channels, taps] F32; the last tap multiplies the current row
    Weight decay, dt_bias;  // [1, n_v]
    Weight norm;            // [1, 128]
    StateLayer state;
    HeadOrder order;
    float eps;
    Tensor y;  // [T, n_v·128]
};

// n as in NormLinear; for each of the K experts that `router` picks from logits[t], in descending score
// order: y[t, j] = act(n · gate[e]ᵀ) ⊙ (n · up[e]ᵀ)
struct MoeGlu {
    StepView step;
    SlotsView slots;
    Tensor x;       // [T, D]
    Weight norm;    // [1, D]
    Tensor logits;  // [T, E]
    Router router;
    Weight gate, up;  // [E, F, D]; fused files: views of one tensor, rows F apart
    float eps;
    Activation activation;
    Tensor y;  // [T, K, F]
};

// x += Σ_j weight_j · (h[t, j] · down[e_j]ᵀ)  [+ sigmoid(shared_scalar) · (act(shared_gate) ⊙ shared_up ·
// shared_downᵀ)]
struct MoeDownAdd {
    StepView step;
    SlotsView slots;
    Tensor h;       // [T, K, F]
    Tensor logits;  // [T, E]
    Router router;
    Weight down;                    // [E, D, F]
    Tensor shared_gate, shared_up;  // [T, Fs] or empty
    Tensor shared_scalar;           // [T, 1] or empty: factor 1
    Weight shared_down;             // [D, Fs] or empty
    Activation activation;
    Tensor x;  // [T, D]
};

enum class OutputKind : int32_t {
    none,      // no head at all (inner prefill chunks); nothing is recorded
    select,    // one token a row, by the slot's Sampling; advances the cursor
    logprobs,  // log-probability of Row::target and the best alternatives
    logits,    // the raw logits of the output rows
    hidden,    // the final residual rows
};

// For the rows listed in Step's outputs: n = rms(x)·norm; logits = n · headᵀ, in blocks of 64 rows over
// `scratch`; then as `kind` says. select: penalties, bias, mask, then temperature / top-k / top-p / min-p and
// one draw by Philox4x32-10(seed, index of the new token); `results` [outputs] Selected. logprobs: `results`
// [outputs] TokenLogprob. logits / hidden: rows [outputs, V or D] F32 in `rows`.
struct Output {
    StepView step;
    SlotsView slots;
    Tensor x;     // [T, D]
    Weight norm;  // [1, D]
    Weight head;  // [V, D]
    float eps;
    OutputKind kind;
    int32_t top;     // kind logprobs: alternatives to report, ≤ kMaxTopLogprobs
    Tensor scratch;  // [64, V]
    void* results;
    Tensor rows;
};

// clang-format off
#define FOREACH_OP(X)                                                                                    \
    X(Embed, embed) X(NormLinear, norm_linear) X(LinearAdd, linear_add) X(LinearGlu, linear_glu)         \
    X(Attention, attention) X(GatedDelta, gated_delta) X(MoeGlu, moe_glu) X(MoeDownAdd, moe_down_add)    \
    X(Output, output)
// clang-format on

enum class OpCode : int32_t {
#define X(Type, name) name,
    FOREACH_OP(X)
#undef X
};

struct Instr {
    OpCode code;
    union {
#define X(Type, name) Type name;
        FOREACH_OP(X)
#undef X
    };
#define X(Type, name) \
    explicit Instr(const Type& op) : code(OpCode::name), name(op) {}
    FOREACH_OP(X)
#undef X
};
static_assert(sizeof(Instr) <= 640, "an instruction is operands, not a program");
static_assert(std::is_trivially_copyable_v<Instr>, "a tape is uploaded with one copy");

// visit(instr, f): calls f(op) with the op's own type; a missing overload is a compile error.
template <class I, class Fn>
decltype(auto) visit(I& i, Fn&& fn) {
    switch (i.code) {
#define X(Type, name) \
    case OpCode::name: return fn(i.name);
        FOREACH_OP(X)
#undef X
    }
    __builtin_unreachable();
}

inline const char* op_name(OpCode c) {
    switch (c) {
#define X(Type, name) \
    case OpCode::name: return #name;
        FOREACH_OP(X)
#undef X
    }
    return "?";
}

// for_each_weight(op, f): every parameter the op reads, in the order it reads them; f(Weight&) or f(const
// Weight&).
#define SPARKINFER_WEIGHTS(Type, ...)            \
    template <class F>                           \
    void for_each_weight(Type& o, F&& f) {       \
        for_each_of(f, __VA_ARGS__);             \
    }                                            \
    template <class F>                           \
    void for_each_weight(const Type& o, F&& f) { \
        for_each_of(f, __VA_ARGS__);             \
    }
template <class F, class... W>
void for_each_of(F& f, W&... w) {
    (void(w.data ? f(w) : void()), ...);
}
SPARKINFER_WEIGHTS(Embed, o.table)
SPARKINFER_WEIGHTS(NormLinear, o.norm, o.w[0], o.w[1], o.w[2], o.w[3])
SPARKINFER_WEIGHTS(LinearAdd, o.w)
SPARKINFER_WEIGHTS(LinearGlu, o.norm, o.gate, o.up)
SPARKINFER_WEIGHTS(Attention, o.q_norm, o.k_norm, o.rope.frequency)
SPARKINFER_WEIGHTS(GatedDelta, o.conv, o.decay, o.dt_bias, o.norm)
SPARKINFER_WEIGHTS(MoeGlu, o.norm, o.router.bias, o.gate, o.up)
SPARKINFER_WEIGHTS(MoeDownAdd, o.router.bias, o.down, o.shared_down)
SPARKINFER_WEIGHTS(Output, o.norm, o.head)
#undef SPARKINFER_WEIGHTS

}  // namespace sparkinfer
