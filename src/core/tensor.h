// tensor.h — a view of activations in memory that somebody else owns.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/hd.h"

namespace sparkinfer {

enum class DType : uint8_t { f32, bf16, f16, i32 };

constexpr int dtype_bytes(DType t) { return t == DType::f32 || t == DType::i32 ? 4 : 2; }
constexpr const char* dtype_name(DType t) {
    return t == DType::f32 ? "F32" : t == DType::bf16 ? "BF16" : t == DType::f16 ? "F16" : "I32";
}

// Row-major, up to three dimensions, outermost first; entries of dimension 0 lie `stride` elements apart,
// what is inside one of them is contiguous.
struct Tensor {
    void* data = nullptr;
    int64_t stride = 0;     // elements between rows
    int32_t shape[3] = {};  // unused dimensions are 1
    uint8_t rank = 0;
    DType dtype = DType::f32;

    HD int32_t rows() const { return shape[0]; }
    HD int64_t cols() const { return int64_t(shape[1]) * shape[2]; }  // elements in one row
    HD int64_t elements() const { return shape[0] * cols(); }
    HD float* row(int64_t r) const { return static_cast<float*>(data) + r * stride; }  // REQUIRES: dtype f32
    explicit operator bool() const { return data != nullptr || rank != 0; }
};

}  // namespace sparkinfer
