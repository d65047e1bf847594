#include "model/blocks.h"

#include <cmath>

namespace sparkinfer {

AttentionWeights load_attention(Loader& l, const Config& c, const AttentionShape& shape) {
    const int32_t q = c.heads * c.head_width, kv = c.kv_heads * c.head_width;
    AttentionWeights w;
    w.norm = l.vector({"attn_norm.weight", "input_layernorm.weight"}, c.dim, shape.norm);
    w.q = l.matrix({"attn_q", "self_attn.q_proj"}, shape.gated ? 2 * q : q, c.dim);
    w.k = l.matrix({"attn_k", "self_attn.k_proj"}, kv, c.dim);
    w.v = l.matrix({"attn_v", "self_attn.v_proj"}, kv, c.dim);
    w.o = l.matrix({"attn_output", "self_attn.o_proj"}, c.dim, q);
    if (shape.qk_norm) {
        w.q_norm = l.vector({"attn_q_norm.weight", "self_attn.q_norm.weight"}, c.head_width, shape.norm);
        w.k_norm = l.vector({"attn_k_norm.weight", "self_attn.k_norm.weight"}, c.head_width, shape.norm);
    }
    return w;
}

FfnWeights load_ffn(Loader& l, const Config& c, const Loader::Name& norm, Loader::Transform transform) {
    FfnWeights w;
    w.norm = l.vector(norm, c.dim, transform);
    if (!c.moe()) {
        w.gate = l.matrix({"ffn_gate", "mlp.gate_proj"}, c.ffn, c.dim);
        w.up = l.matrix({"ffn_up", "mlp.up_proj"}, c.ffn, c.dim);
        w.down = l.matrix({"ffn_down", "mlp.down_proj"}, c.dim, c.ffn);
        return w;
    }
    w.router = l.matrix({"ffn_gate_inp", "mlp.gate"}, c.experts, c.dim);
    l.experts_gate_up(c.experts, c.expert_ffn, c.dim, &w.expert_gate, &w.expert_up);
    w.expert_down = l.experts({"ffn_down_exps", "mlp.experts.down_proj"}, c.experts, c.dim, c.expert_ffn);
    if (c.shared_ffn) {
        w.shared_gate = l.matrix({"ffn_gate_shexp", "mlp.shared_expert.gate_proj"}, c.shared_ffn, c.dim);
        w.shared_up = l.matrix({"ffn_up_shexp", "mlp.shared_expert.up_proj"}, c.shared_ffn, c.dim);
        w.shared_down = l.matrix({"ffn_down_shexp", "mlp.shared_expert.down_proj"}, c.dim, c.shared_ffn);
        w.shared_scalar = l.vector({"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"}, c.dim);
    }
    return w;
}

EndWeights load_ends(Loader& l, const Config& c, Loader::Transform transform) {
    l.enter_layer(-1);
    EndWeights w;
    w.embed = l.matrix({"token_embd", "embed_tokens"}, c.vocab, c.dim);
    w.norm = l.vector({"output_norm.weight", "norm.weight"}, c.dim, transform);
    w.head = c.tied ? w.embed : l.matrix({"output", "/lm_head"}, c.vocab, c.dim);
    return w;
}

Result<Rope> load_rope(Loader& l, const Config& c, RopePairs pairs) {
    l.enter_layer(-1);
    Result<RopeTable> made =
        rope_table(c.rope, l.optional_floats({"rope_freqs.weight", "rope_freqs.weight"}, c.rope.dims / 2));
    if (!made.ok()) return bad_input("{}: {}", l.path(), made.error().message);
    RopeTable table = std::move(made).value();
    Rope rope{};
    rope.frequency = l.own(std::move(table.frequency), 1, c.rope.dims / 2);
    rope.dims = c.rope.dims;
    rope.pairs = pairs;
    rope.magnitude = table.magnitude;
    for (int i = 0; i < 3; ++i) rope.sections[i] = c.rope.sections[i];
    return rope;
}

void attention_block(Tape& t, const Tensor& x, const AttentionWeights& w, const Rope& rope, const Config& c,
                     bool gated, const KvLayer& kv) {
    auto scope = t.scope();
    const Weight parts[] = {w.q, w.k, w.v};
    std::vector<Tensor> qkv = t.norm_linear(x, w.norm, c.eps, parts);  // [T, H·d (·2)], [T, G·d], [T, G·d]
    Attention op{};
    op.q = qkv[0];
    op.k = qkv[1];
    op.v = qkv[2];
    op.q_norm = w.q_norm;
    op.k_norm = w.k_norm;
    op.rope = rope;
    op.kv = kv;
    op.heads = c.heads;
    op.eps = c.eps;
    op.scale = float(1 / std::sqrt(double(c.head_width)));
    op.gated = gated;
    t.linear_add(t.attention(op), w.o, x);
}

static void moe_block(Tape& t, const Tensor& x, const FfnWeights& w, const Config& c) {
    std::vector<Weight> parts = {w.router};
    if (c.shared_ffn) parts.insert(parts.end(), {w.shared_gate, w.shared_up, w.shared_scalar});
    std::vector<Tensor> y = t.norm_linear(x, w.norm, c.eps, parts);  // [T, E], [T, Fs], [T, Fs], [T, 1]
    Router router{};
    router.scoring = Scoring::softmax;
    router.top_k = c.experts_used;
    router.scale = 1;
    router.renormalise = c.renormalise;
    Tensor h = t.moe_glu(x, w.norm, c.eps, y[0], router, w.expert_gate, w.expert_up);  // [T, K, Fe]
    SharedExpert shared;
    if (c.shared_ffn) shared = {y[1], y[2], y[3], w.shared_down};
    t.moe_down_add(h, y[0], router, w.expert_down, shared, x);
}

void ffn_block(Tape& t, const Tensor& x, const FfnWeights& w, const Config& c) {
    auto scope = t.scope();
    if (c.moe()) return moe_block(t, x, w, c);
    Tensor h = t.linear_glu(x, w.norm, c.eps, w.gate, w.up);  // [T, F]
    t.linear_add(h, w.down, x);
}

KvLayer kv_shape(const Config& c) {
    KvLayer kv{};
    kv.heads = c.kv_heads;
    kv.width = c.head_width;
    return kv;
}

StateLayer state_shape(const Config& c) {
    StateLayer s{};
    s.key_heads = c.key_heads;
    s.value_heads = c.value_heads;
    s.width = c.state_width;
    s.channels = (2 * c.key_heads + c.value_heads) * c.state_width;
    s.taps = c.taps;
    return s;
}

ModelShape model_shape(const Config& c, const Loader& l) {
    ModelShape s;
    s.architecture = c.architecture;
    s.dim = c.dim;
    s.vocab = c.vocab;
    s.context = c.context;
    s.layers = c.layers;
    s.heads = c.heads;
    for (int32_t i = 0; i < c.layers; ++i) {
        if (c.is_recurrent(i))
            s.state.push_back(state_shape(c));
        else
            s.kv.push_back(kv_shape(c));
    }
    s.parameters = l.parameters();
    return s;
}

}  // namespace sparkinfer
