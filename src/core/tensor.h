// tensor.h — a view of activations in memory that somebody else owns.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/hd.h"

namespace sparkinfer {

enum class DType : uint8_t { f32, bf16, f16, i32, e4m3 };

constexpr int dtype_bytes(DType t) {
    return t == DType::f32 || t == DType::i32 ? 4 : t == DType::e4m3 ? 1 : 2;
}
constexpr const char* dtype_name(DType t) {
    switch (t) {
        case DType::f32: return "F32";
        case DType::bf16: return "BF16";
        case DType::f16: return "F16";
        case DType::i32: return "I32";
        case DType::e4m3: return "FP8";  // E4M3, the only kind in use
    }
    return "?";
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
