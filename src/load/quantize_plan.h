// quantize_plan.h — which type each tensor of a model gets when it is quantised: the choice that llama.cpp's
// quantiser makes for a file type.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"
#include "load/checkpoint.h"
#include "quant/quant.h"

namespace sparkinfer {

// A mixture that a file can be quantised to.
struct FileType {
    const char* name;  // "Q4_K_M"
    Quant base;        // what most matrices get
    uint32_t id;       // metadata key general.file_type
};
// By its name, in any case; Q4_K and Q5_K mean Q4_K_M and Q5_K_M. Null: no such type.
const FileType* find_file_type(std::string_view name);
const FileType* find_file_type(int64_t id);  // of general.file_type
// "F32, F16, …", for messages.
std::string file_type_names();

// The format that a tensor's type names; none: no decoder here.
std::optional<Quant> stored_quant(const StoredTensor& t);

struct PlannedTensor {
    const StoredTensor* source = nullptr;
    Quant target = Quant::f32;  // where converts
    bool converts = false;      // false: copied as it is
    bool fell_back = false;     // its rows do not divide into the blocks of the type it would have got
    uint64_t bytes = 0;         // of the result
};

// One entry a tensor, in the order of the result: by layer, then by name. `has_imatrix`: the run has an
// importance matrix, which changes a choice of Q4_0. `requantize`: tensors that are quantised already may be
// quantised again. Errors: such a tensor without that; one whose type has no decoder.
Result<std::vector<PlannedTensor>> plan_quantization(const Checkpoint& model, const FileType& type,
                                                     bool has_imatrix, bool requantize);

}  // namespace sparkinfer
