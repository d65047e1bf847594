// gated_delta_case.h — a gated delta layer as the cases see it: a sequence, its states, a run, and float64.
#pragma once
#include "harness.h"
#include "ops/state_layout.h"

namespace sparkinfer::test::gated_delta_case {

constexpr int kWidth = 128, kTaps = 4, kStates = 8, kSlots = 4;
constexpr float kEps = 1e-6f;

struct DeltaShape {
    const char* name;
    int key_heads, value_heads;
    HeadOrder order;
    DType dtype = DType::f32;  // of S
};

// One layer's parameters and the inputs of one long sequence; steps use some of its rows.
struct Sequence {
    DeltaShape shape;
    int rows, channels, values;
    Floats qkv, z, beta, alpha;
    OwnedWeight conv, decay, dt_bias, norm;

    Sequence(const DeltaShape& s, int length, Random& random)
        : shape(s),
          rows(length),
          channels((2 * s.key_heads + s.value_heads) * kWidth),
          values(s.value_heads * kWidth) {
        qkv = random.normals(int64_t(rows) * channels);
        z = random.normals(int64_t(rows) * values);
        beta = random.normals(int64_t(rows) * s.value_heads);
        alpha = random.normals(int64_t(rows) * s.value_heads);
        conv = f32_weight(random.normals(int64_t(channels) * kTaps, 0.5f), channels, kTaps);
        Floats d;
        for (int h = 0; h < s.value_heads; ++h) d.push_back(-random.uniform(0.05f, 1.0f));
        decay = f32_weight(d, 1, s.value_heads);
        dt_bias = f32_weight(random.normals(s.value_heads), 1, s.value_heads);
        norm = f32_weight(random.normals(kWidth), 1, kWidth);
    }
};

// float64, from the first row on: y [rows, values], and S after the last.
Doubles reference(const Sequence& s, Doubles* last = nullptr);

// What a state slot means: without the columns and log rows that are not in use.
struct StateValue {
    StateHeader header;
    Floats s, ring, log_k, log_d, log_g;
};

void expect_same_state(const std::string& what, const StateValue& got, const StateValue& want);

// One part of a step: `count` rows of the sequence from `first` on.
struct Part {
    int first, count;
    int state_in, state_out;
    int verify = 0;                               // so many of them, at the end, are only logged
    int accepted = 0;                             // -1: by the cursor
    std::vector<std::pair<int, int>> saves = {};  // {row of the part, state}
    int slot = 0;
};

// A machine's states (layer 1 of two) and slots.
class Rig {
  public:
    Rig(Machine& m, const Sequence& s) : m_(m), s_(s) {
        slots = m.slots(kSlots, 1);
        layer = {nullptr, 0, s.shape.key_heads, s.shape.value_heads, kWidth, s.channels, kTaps};
        layer.dtype = s.shape.dtype;
        at_ = state_layout(layer);
        layer.state_bytes = 2 * at_.bytes;
        base_ = m.bytes(layer.state_bytes * kStates);
        layer.states = base_ + at_.bytes;
    }

    // y of all rows of the parts, in order; extra: bucket rows beyond the step's.
    Floats run(const std::vector<Part>& parts, int extra = 0);
    // The sequence's first `count` rows, a few in each step: never in chunks.
    Floats run_rows(int count, int state_out);
    StateValue state(int slot);
    void write_s(int slot, const Floats& s);  // REQUIRES: F32
    std::vector<std::byte> raw_states();

    SlotsView slots;
    StateLayer layer;
    std::function<void(StepImage&)> edit;

  private:
    Machine& m_;
    const Sequence& s_;
    StateLayout at_;
    std::byte* base_;
};

}  // namespace sparkinfer::test::gated_delta_case
