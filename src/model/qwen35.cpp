// qwen35.cpp — Qwen3.5 / 3.6 / 3.8 hybrids: gated delta rule layers with a gated full-attention layer every
// few, feed-forward dense (`qwen35`) or of experts with a shared one (`qwen35moe`).
#include "model/blocks.h"
#include "model/registry.h"

namespace sparkinfer {
namespace {

struct DeltaWeights {
    Weight norm;                 // [1, D]
    Weight qkv, z, beta, alpha;  // [2·n_k·128 + n_v·128, D], [n_v·128, D], [n_v, D], [n_v, D]
    Weight conv;                 // [channels, 4]
    Weight decay, dt_bias;       // [1, n_v]
    Weight out_norm, out;        // [1, 128], [D, n_v·128]
};

class Qwen35 final : public Model {
  public:
    static Result<std::unique_ptr<Model>> load(Checkpoint& checkpoint, const Config& config);
    void forward(Tape& t, const Batch& b) const override;

  private:
    struct Layer {
        bool recurrent = false;
        AttentionWeights attention;
        DeltaWeights delta;
        FfnWeights ffn;
    };
    void delta_block(Tape& t, const Tensor& x, const DeltaWeights& w, const StateLayer& state) const;

    Config c_;
    FloatStore store_;
    EndWeights ends_;
    Rope rope_{};
    std::vector<Layer> layers_;
};

void Qwen35::forward(Tape& t, const Batch& b) const {
    Tensor x = t.embed(ends_.embed, b.rows);  // [T, D]
    size_t kv = 0, state = 0;
    for (const Layer& w : layers_) {
        if (w.recurrent)
            delta_block(t, x, w.delta, b.state[state++]);
        else
            attention_block(t, x, w.attention, rope_, c_, true, b.kv[kv++]);
        ffn_block(t, x, w.ffn, c_);
    }
    t.output(x, ends_.norm, c_.eps, ends_.head, b);
}

void Qwen35::delta_block(Tape& t, const Tensor& x, const DeltaWeights& w, const StateLayer& state) const {
    auto scope = t.scope();
    const Weight parts[] = {w.qkv, w.z, w.beta, w.alpha};
    std::vector<Tensor> in =
        t.norm_linear(x, w.norm, c_.eps, parts);  // [T, channels], [T, n_v·128], [T, n_v] ×2
    GatedDelta op{};
    op.qkv = in[0];
    op.z = in[1];
    op.beta = in[2];
    op.alpha = in[3];
    op.conv = w.conv;
    op.decay = w.decay;
    op.dt_bias = w.dt_bias;
    op.norm = w.out_norm;
    op.state = state;
    op.order = c_.hf() ? HeadOrder::block : HeadOrder::cyclic;
    op.eps = c_.eps;
    t.linear_add(t.gated_delta(op), w.out, x);
}

DeltaWeights load_delta(Loader& l, const Config& c, Loader::Transform norm) {
    const StateLayer s = state_shape(c);
    const int32_t values = s.value_heads * s.width;
    DeltaWeights w;
    w.norm = l.vector({"attn_norm.weight", "input_layernorm.weight"}, c.dim, norm);
    w.qkv = l.matrix({"attn_qkv", "linear_attn.in_proj_qkv"}, s.channels, c.dim);
    w.z = l.matrix({"attn_gate", "linear_attn.in_proj_z"}, values, c.dim);
    w.beta = l.matrix({"ssm_beta", "linear_attn.in_proj_b"}, s.value_heads, c.dim);
    w.alpha = l.matrix({"ssm_alpha", "linear_attn.in_proj_a"}, s.value_heads, c.dim);
    w.conv = l.taps({"ssm_conv1d.weight", "linear_attn.conv1d.weight"}, s.channels, s.taps);
    // GGUF stores -exp(A_log) ready made.
    w.decay = l.vector({"ssm_a", "linear_attn.A_log"}, s.value_heads,
                       c.hf() ? Loader::Transform::minus_exp : Loader::Transform::none);
    w.dt_bias = l.vector({"ssm_dt.bias", "linear_attn.dt_bias"}, s.value_heads);
    w.out_norm =
        l.vector({"ssm_norm.weight", "linear_attn.norm.weight"}, s.width);  // plain in both containers
    w.out = l.matrix({"ssm_out", "linear_attn.out_proj"}, c.dim, values);
    return w;
}

Result<std::unique_ptr<Model>> Qwen35::load(Checkpoint& checkpoint, const Config& config) {
    auto m = std::make_unique<Qwen35>();
    const Config& c = m->c_ = config;
    Loader l(checkpoint, c, m->store_);
    // Hugging Face stores these gains minus one; GGUF files have the one folded in.
    AttentionShape shape;
    shape.gated = true;
    shape.qk_norm = true;
    shape.norm = c.hf() ? Loader::Transform::plus_one : Loader::Transform::none;
    m->ends_ = load_ends(l, c, shape.norm);
    TRY(m->rope_, load_rope(l, c, RopePairs::halves));
    for (int32_t i = 0; i < c.layers; ++i) {
        l.enter_layer(i);
        Layer layer;
        layer.recurrent = c.is_recurrent(i);
        if (layer.recurrent)
            layer.delta = load_delta(l, c, shape.norm);
        else
            layer.attention = load_attention(l, c, shape);
        layer.ffn =
            load_ffn(l, c, {"post_attention_norm.weight", "post_attention_layernorm.weight"}, shape.norm);
        m->layers_.push_back(layer);
    }
    TRY(m->unused_, l.finish());
    m->shape_ = model_shape(c, l);
    return std::unique_ptr<Model>(std::move(m));
}

}  // namespace

Result<std::unique_ptr<Model>> load_qwen35(Checkpoint& checkpoint, const Config& config) {
    return Qwen35::load(checkpoint, config);
}

}  // namespace sparkinfer
