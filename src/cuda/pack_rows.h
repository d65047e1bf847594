// pack_rows.h — rows of x, perhaps normalised, on their way into packed_rows.cuh's layout of one plane.
#pragma once
#include "cuda/launch.h"
#include "cuda/packed_rows.cuh"

namespace sparkinfer::cuda {

constexpr int32_t kManyRows = 256;  // from so many on a row needs no more than a warp

// Row r of the source lies at x + r / inner · x_stride + r % inner · inner_stride.
struct RowSource {
    const float* x;
    int64_t x_stride;
    int32_t rows, columns;
    int32_t inner = 1, inner_stride = 0;
    const float* norm = nullptr;  // [columns]: x / sqrt(mean(x²) + eps) · norm
    float eps = 0;
    const float* up = nullptr;  // activation(x) ⊙ up instead of x; rows up_stride apart
    int64_t up_stride = 0;
    Activation activation = Activation::silu;
    const int32_t* gather = nullptr;  // [rows] source row of each; null: its own
    // Times sigmoid(weight[r · weight_stride]); null: once.
    const float* weight = nullptr;
    int64_t weight_stride = 0;
    // Rows with a negative number at r · present_stride count as zeros; null: none do.
    const int32_t* present = nullptr;
    int32_t present_stride = 0;
};
RowSource rows_of(const Tensor& x);
RowSource normed_rows_of(const Tensor& x, const Weight& norm, float eps);

// Row r goes to row r.
PackedRows pack_rows(Lowering& l, const RowSource& source);
// Row r goes to the places of its pairs r · each … (those that are not -1).
PackedRows pack_places(Lowering& l, const RowSource& source, const ExpertOrder& order, int32_t each);

// pack_places of rows that are packed already.
PackedRows spread_places(Lowering& l, const PackedRows& from, int32_t rows, const ExpertOrder& order,
                         int32_t each);

// What an instruction keeps for the next one, by its norm: rows of `of`, normalised.
struct NormedRows {
    PackedRows rows;
    const void* of;
};

}  // namespace sparkinfer::cuda
