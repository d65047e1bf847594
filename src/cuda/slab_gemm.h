// slab_gemm.h — products of many packed rows with weights in slabs.
#pragma once
#include <span>

#include "cuda/linear_slab_call.cuh"
#include "cuda/pack_rows.h"

namespace sparkinfer::cuda {

// y of one weight: [rows, out], of a gate that is paired with its up [rows, F].
struct Product {
    Weight w;
    float* y;
    int64_t y_stride;
};

// Formats that have a kernel here.
bool has_slab_gemm(const Weight& w);
// y (+)= x · wᵀ of `rows` packed rows. REQUIRES: has_slab_gemm of every weight; one mode for all.
void add_slab_gemm(Lowering& l, const PackedRows& x, int32_t rows, std::span<const Product> products,
                   SlabMode mode);
// The same by experts: x has a row a place. y has a row a place, or, with `inner`, a row a pair: pair p at
// p / inner · y_stride + p % inner · inner_stride.
void add_expert_gemm(Lowering& l, const PackedRows& x, const ExpertOrder& order, const Product& product,
                     SlabMode mode, int32_t inner = 0, int32_t inner_stride = 0);
// Rows of a tile of ExpertOrder that these kernels want.
int32_t expert_tile_rows(const Lowering& l, int32_t pairs, int32_t experts);
// SlabMode::half leaves products as they are but for a power of two that keeps them inside FP16, which y is
// then of. What undoes it: the factor of the row of x · Weight::scale[0] · half_undo · 2^-power, the power
// that of the weight's row.
float half_undo(const Weight& w, int32_t columns);
const int8_t* row_powers_of(const Weight& w);  // [experts, slabs, 16]

}  // namespace sparkinfer::cuda
