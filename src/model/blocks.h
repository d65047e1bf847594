// blocks.h — what the architectures share: attention, feed-forward blocks, the ends of a model.
#pragma once
#include "model/config.h"
#include "model/loader.h"
#include "model/model.h"

namespace sparkinfer {

struct AttentionWeights {
    Weight norm, q, k, v, o;  // q [H·d or H·2·d, D]; k, v [G·d, D]; o [D, H·d]
    Weight q_norm, k_norm;    // [1, d] or empty
};
struct FfnWeights {
    Weight norm;
    Weight gate, up, down;                       // dense: [F, D], [F, D], [D, F]
    Weight router;                               // [E, D]; empty: dense
    Weight expert_gate, expert_up, expert_down;  // [E, Fe, D], [E, Fe, D], [E, D, Fe]
    Weight shared_gate, shared_up, shared_down;  // [Fs, D], [Fs, D], [D, Fs] or empty
    Weight shared_scalar;                        // [1, D] or empty
};
struct EndWeights {
    Weight embed, norm, head;  // [V, D], [1, D], [V, D]
};

struct AttentionShape {
    bool gated = false;
    bool qk_norm = false;
    RopePairs pairs = RopePairs::halves;
    Loader::Transform norm = Loader::Transform::none;  // of every norm gain around it
};

AttentionWeights load_attention(Loader& l, const Config& c, const AttentionShape& shape);
FfnWeights load_ffn(Loader& l, const Config& c, const Loader::Name& norm, Loader::Transform transform);
EndWeights load_ends(Loader& l, const Config& c, Loader::Transform transform);
Result<Rope> load_rope(Loader& l, const Config& c, RopePairs pairs);

// x += attention(x)
void attention_block(Tape& t, const Tensor& x, const AttentionWeights& w, const Rope& rope, const Config& c,
                     bool gated, const KvLayer& kv);
// x += feed-forward(x), dense or of experts
void ffn_block(Tape& t, const Tensor& x, const FfnWeights& w, const Config& c);

KvLayer kv_shape(const Config& c);
StateLayer state_shape(const Config& c);
ModelShape model_shape(const Config& c, const Loader& l);

}  // namespace sparkinfer
