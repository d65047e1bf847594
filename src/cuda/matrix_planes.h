// matrix_planes.h — matrix products of more than kFewRows rows, for weights of any format as the file has it.
#pragma once
#include <span>

#include "cuda/launch.h"
#include "cuda/packed_rows.cuh"

namespace sparkinfer::cuda {

// Rows to pack, as GenericLinear finds them, and what is done with each.
struct PlaneRows {
    const float* x;
    int64_t x_stride;
    int32_t rows, columns;
    const float* norm = nullptr;  // RMS norm with `eps`; null: none
    float eps = 0;
    const int32_t* gather = nullptr;  // [rows] source row of each row; null: its own
    int32_t inner = 1;                // rows of x inside each x_stride …
    int64_t inner_stride = 0;         // … so far apart
    // A matrix of one row [columns], multiplied on the way: y[t · dot_stride]. REQUIRES: takes_dot.
    const float* dot = nullptr;
    float* dot_y = nullptr;
    int64_t dot_stride = 0;
};
bool takes_dot(const PlaneRows& rows);
// As two planes: row t becomes packed row t.
PackedRows add_pack_planes(Lowering& l, const PlaneRows& rows);
// Row t goes to order.place[t·copies …], its pairs' places.
PackedRows add_pack_planes(Lowering& l, const PlaneRows& rows, const ExpertOrder& order, int32_t copies);

struct PlanesPart {
    Weight w;
    float* y;
    int64_t y_stride;
};
// y[t] (+)= x[t] · wᵀ for packed rows t < rows and each part. REQUIRES: parts ≤ kMaxParts, of one `in`.
void add_linear_planes(Lowering& l, const PackedRows& x, int32_t rows, std::span<const PlanesPart> parts,
                       bool add);
// y[pair of the place, or place] = x[place] · w[its expert]ᵀ for every place that holds a pair.
void add_expert_planes(Lowering& l, const PackedRows& x, const ExpertOrder& order, const Weight& w, float* y,
                       int64_t y_stride, bool by_pair);

}  // namespace sparkinfer::cuda
