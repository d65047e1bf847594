// llama.cpp — Llama-style decoders: RMS norm, rotary attention with grouped queries, SwiGLU (SmolLM2, Llama
// 2/3). `qwen3` and `qwen3moe` are the same skeleton with a norm on each query and key head; the latter with
// experts.
#include "model/blocks.h"
#include "model/registry.h"

namespace sparkinfer {
namespace {

class Llama final : public Model {
  public:
    static Result<std::unique_ptr<Model>> load(Checkpoint& checkpoint, const Config& config);
    void forward(Tape& t, const Batch& b) const override;

  private:
    struct Layer {
        AttentionWeights attention;
        FfnWeights ffn;
    };
    Config c_;
    FloatStore store_;
    EndWeights ends_;
    Rope rope_{};
    std::vector<Layer> layers_;
};

void Llama::forward(Tape& t, const Batch& b) const {
    Tensor x = t.embed(ends_.embed, b.rows);  // [T, D]
    for (size_t i = 0; i < layers_.size(); ++i) {
        attention_block(t, x, layers_[i].attention, rope_, c_, false, b.kv[i]);
        ffn_block(t, x, layers_[i].ffn, c_);
    }
    t.output(x, ends_.norm, c_.eps, ends_.head, b);
}

Result<std::unique_ptr<Model>> Llama::load(Checkpoint& checkpoint, const Config& config) {
    auto m = std::make_unique<Llama>();
    const Config& c = m->c_ = config;
    Loader l(checkpoint, c, m->store_);
    // GGUF files of `llama` have their query and key rows permuted for adjacent pairs; nothing else is.
    const bool llama = c.architecture == "llama";
    AttentionShape shape;
    shape.qk_norm = !llama;
    shape.pairs = llama && !c.hf() ? RopePairs::adjacent : RopePairs::halves;
    m->ends_ = load_ends(l, c, Loader::Transform::none);
    TRY(m->rope_, load_rope(l, c, shape.pairs));
    for (int32_t i = 0; i < c.layers; ++i) {
        l.enter_layer(i);
        Layer layer;
        layer.attention = load_attention(l, c, shape);
        layer.ffn =
            load_ffn(l, c, {"ffn_norm.weight", "post_attention_layernorm.weight"}, Loader::Transform::none);
        m->layers_.push_back(layer);
    }
    TRY(m->unused_, l.finish());
    m->shape_ = model_shape(c, l);
    return std::unique_ptr<Model>(std::move(m));
}

}  // namespace

Result<std::unique_ptr<Model>> load_llama(Checkpoint& checkpoint, const Config& config) {
    return Llama::load(checkpoint, config);
}

}  // namespace sparkinfer
