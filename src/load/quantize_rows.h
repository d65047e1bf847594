// quantize_rows.h — a tensor's rows from one type to another, by several threads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"
#include "load/quantize_plan.h"

namespace sparkinfer {

// Sums over the values that were converted.
struct QuantizeLoss {
    double error = 0, all = 0;  // Σ (x − x̂)², Σ x²
};

// Rows [first, first + count) of `tensor` (all matrices of a stack counted through) in its target type, into
// `out`. `importance`: one value a column, matrix after matrix, or null. Adds to *loss. Errors: a value that
// is not finite, or that the target type cannot hold. The result does not depend on `threads`.
Result<void> quantize_rows(const PlannedTensor& tensor, int64_t first, int64_t count, const float* importance,
                           int threads, std::byte* out, QuantizeLoss* loss);

int64_t row_count(const StoredTensor& t);  // of all matrices

}  // namespace sparkinfer
