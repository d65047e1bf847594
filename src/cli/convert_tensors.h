// convert_tensors.h — the tensors of a Hugging Face checkpoint as a GGUF file has them: other names, and for
// some architectures rows, columns or values in another order, as llama.cpp's converter writes and its graphs
// expect.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "load/checkpoint.h"
#include "model/config.h"

namespace sparkinfer {

struct ConvertedTensor {
    std::string name;            // GGUF's
    std::vector<int64_t> shape;  // outermost first
    Weight source;               // [experts,] [rows, columns]; what it views, the plan or the checkpoint owns
    Quant type = Quant::f32;     // of the result
    // Row (column) i of the result is row (column) order[i] of the source; empty: as they are.
    std::vector<int32_t> row_order, column_order;
    uint64_t bytes() const;
};

struct ConversionPlan {
    std::vector<ConvertedTensor> tensors;
    int32_t mtp_layers = 0;  // that are in the files
    int64_t decoded = 0;     // matrices of a quantised layout, which become F32
    std::vector<std::unique_ptr<std::vector<float>>> owned = {};  // values that were computed
};

// REQUIRES: load_model accepts the checkpoint, which outlives the plan. Errors: MTP tensors of another shape
// than the model's.
Result<ConversionPlan> plan_conversion(Checkpoint& checkpoint, const Config& config);

// Row `row` of matrix `expert` of the result; out has the bytes of a row. `scratch` is for repeated use.
void convert_row(const ConvertedTensor& tensor, int expert, int row, std::vector<float>* scratch,
                 std::byte* out);

}  // namespace sparkinfer
