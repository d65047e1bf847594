// attention_case.h — an attention layer as the cases see it: parameters, rows, pages, a run, and float64.
#pragma once
#include <algorithm>
#include <cmath>

#include "harness.h"

namespace sparkinfer::test::attention_case {

constexpr float kEps = 1e-6f;
constexpr int kSlots = 3, kPages = 3;

struct AttentionShape {
    const char* name;
    int heads, kv_heads, width;
    bool gated, norms;
    int dims;  // rotary
    RopePairs pairs;
    int sections[3];
    DType kv;
    float magnitude;
};

// Most relative L2 error; `exact` with F32 pages. A few keys and values lie where float32 and float64 round
// to different neighbours, 2^-8 apart in BF16, 2^-4 in FP8; truncating would be off ten times as much.
inline double most_error(DType kv, double exact) {
    return kv == DType::f32 ? exact : kv == DType::bf16 ? 1e-4 : 1e-3;
}

// The same of steps of many rows: a device multiplies with queries and probabilities of 11 bits, of 16 where
// the pages are F32.
inline double most_error_many(const Machine& m, DType kv, double exact) {
    if (m.is_cpu()) return most_error(kv, exact);
    return kv == DType::f32 ? 2e-5 : std::max(4e-4, most_error(kv, exact));
}

struct Parameters {
    AttentionShape shape;
    OwnedWeight q_norm, k_norm, frequency;
    float scale;
    Parameters(const AttentionShape& s, Random& random) : shape(s), scale(1.0f / std::sqrt(float(s.width))) {
        q_norm = f32_weight(random.normals(s.width), 1, s.width);
        k_norm = f32_weight(random.normals(s.width), 1, s.width);
        Floats f;
        for (int i = 0; i < s.dims / 2; ++i) f.push_back(float(std::pow(1e4, -2.0 * i / s.dims)));
        frequency = f32_weight(f, 1, s.dims / 2);
    }
    int q_cols() const { return shape.heads * shape.width * (shape.gated ? 2 : 1); }
    int k_cols() const { return shape.kv_heads * shape.width; }
    int y_cols() const { return shape.heads * shape.width; }
};

// Rows of a step with their inputs.
struct Inputs {
    StepImage step;
    Floats q, k, v;
    int rows() const { return int(step.rows.size()); }
};

// Heights and widths that go other ways than the time: an offset alone would cancel between query and key.
void spread_axes(StepImage& step);
Inputs random_inputs(const Parameters& p, Random& random, const StepImage& step);
// The rows `which` of `all`.
Inputs part_of(const Parameters& p, const Inputs& all, const std::vector<int>& which);

// A machine's pages and slots for one layer; layer 1 of two, so that a wrong page stride shows.
struct Cache {
    SlotsView slots;
    KvLayer kv;
    int64_t layer_bytes;
    std::byte* pages;
    Cache(Machine& m, const Parameters& p, int slot_count = kSlots, int slot_pages = kPages) {
        slots = m.slots(slot_count, slot_pages);
        layer_bytes = int64_t(2) * p.shape.kv_heads * kPageTokens * p.shape.width * dtype_bytes(p.shape.kv);
        pages = m.bytes(2 * layer_bytes * slot_count * slot_pages);
        kv = {pages + layer_bytes, 2 * layer_bytes, p.shape.kv_heads, p.shape.width, p.shape.kv};
    }
};

// Runs the rows over what the cache already holds; extra: bucket rows beyond the step's.
Floats run_rows(Machine& m, const Parameters& p, const Cache& c, const Inputs& in, int extra = 0);

// One head's d values from `at` on, in float64: normalised if the shape has norms and `norm` is given,
// rotated if `position` is given.
Doubles head(const Parameters& p, const Floats& all, int64_t at, const OwnedWeight* norm,
             const int32_t* position);
// x as the pages keep it.
double stored(const Parameters& p, double x);
// float64, dense: every row sees the rows of its slot with an index up to its own. Rows of `in` are in order;
// y of those from `first` on.
Doubles reference(const Parameters& p, const Inputs& in, int first = 0);

}  // namespace sparkinfer::test::attention_case
