// moe_case.h — a layer of experts as the cases see it: weights, rows, a run of both ops, and float64.
#pragma once
#include "harness.h"

namespace sparkinfer::test::moe_case {

constexpr float kEps = 1e-6f;

struct MoeShape {
    const char* name;
    int experts, top_k, width, inner, shared;  // E, K, D, F, Fs (0: no shared expert)
    Scoring scoring;
    bool bias, renormalise, fused, scalar;
    float scale;
    Quant quant;  // of gate and up
    Quant down = quant, shared_down = quant;
    bool factor = true;  // down has one an expert
};

struct Block {
    MoeShape shape;
    OwnedWeight norm, bias, gate_up, gate, up, down, shared_down;
    Router router;
    Weight gate_view, up_view;
    Block(const MoeShape& s, Random& random) : shape(s) {
        norm = f32_weight(random.normals(s.width), 1, s.width);
        if (s.bias) bias = f32_weight(random.normals(s.experts, 0.3f), 1, s.experts);
        if (s.fused) {
            gate_up = random_weight(random, s.quant, s.experts, 2 * s.inner, s.width);
            gate_view = gate_up.view;
            gate_view.out = s.inner;
            gate_view.expert_rows = 2 * s.inner;
            up_view = gate_view;
            up_view.data = gate_up.data.data() + row_bytes(s.quant, s.width) * s.inner;
            if (!gate_up.scales.empty())
                up_view.scales = gate_up.scales.data() + gate_up.scales.size() / size_t(2 * s.experts);
        } else {
            gate = random_weight(random, s.quant, s.experts, s.inner, s.width);
            up = random_weight(random, s.quant, s.experts, s.inner, s.width);
            gate_view = gate;
            up_view = up;
        }
        down = random_weight(random, s.down, s.experts, s.width, s.inner, s.factor);
        if (s.shared) shared_down = random_weight(random, s.shared_down, 1, s.width, s.shared);
        router = {bias, s.scoring, s.top_k, s.scale, s.renormalise};
    }
    // gate (part 0) or up (part 1) of an expert [F, D], without the views' arithmetic.
    Doubles half(int expert, int part) const {
        if (!shape.fused) return decoded(part ? up : gate, expert);
        const int64_t size = int64_t(shape.inner) * shape.width;
        return slice(decoded(gate_up, expert), part * size, size);
    }
};

struct Rows {
    int count;
    Floats x, logits, shared_gate, shared_up, shared_scalar;
    Rows(const Block& b, int n, Random& random) : count(n) {
        x = random.normals(int64_t(n) * b.shape.width);
        logits = random.normals(int64_t(n) * b.shape.experts, 2.0f);
        shared_gate = random.normals(int64_t(n) * b.shape.shared);
        shared_up = random.normals(int64_t(n) * b.shape.shared);
        shared_scalar = random.normals(n);
    }
};

// y of moe_glu, in float64.
Doubles glu_reference(const Block& b, const Rows& r);
// x after moe_down_add of h [T, K, F], in float64.
Doubles down_reference(const Block& b, const Rows& r, const Floats& h);

struct Answer {
    Floats h, x;
};
// Runs both ops on the listed rows; `stopped` of them, at the front, are of a stopped slot.
Answer run_moe(Machine& m, const Block& b, const Rows& r, const std::vector<int>& which,
               const Floats* given_h, int stopped = 0, int extra = 0);
std::vector<int> all_rows(int n);

}  // namespace sparkinfer::test::moe_case
