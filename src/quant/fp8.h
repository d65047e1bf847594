// fp8.h — E4M3 codes [experts, out, in] with scales beside them, in the three granularities of safetensors
// files. The checkpoint hands scales over as float32 multipliers.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

// Row `row` of the codes of a matrix.
HD SPARKINFER_INLINE const uint8_t* fp8_row(const Weight& w, int expert, int row) {
    return static_cast<const uint8_t*>(w.data) + (weight_row(w, expert, row))*w.in;
}

// One scale per output row: scales [experts, out].
template <>
struct Format<Quant::fp8_channel> : SplitFormat {
    static constexpr int block = 1, bytes = 1;

    static int64_t scale_bytes(int64_t experts, int64_t out, int64_t) { return experts * out * 4; }
    HD SPARKINFER_INLINE static float row_scale(const Weight& w, int expert, int row) {
        return static_cast<const float*>(w.scales)[weight_row(w, expert, row)];
    }
    HD static float decode(const Weight& w, int expert, int row, int col) {
        return e4m3_to_f32(fp8_row(w, expert, row)[col]) * row_scale(w, expert, row);
    }
    SPARKINFER_INLINE static void decode_row(const Weight& w, int expert, int row, float* __restrict__ out) {
        const uint8_t* __restrict__ codes = fp8_row(w, expert, row);
        const float scale = row_scale(w, expert, row);
        for (int i = 0; i < w.in; i++) out[i] = e4m3_to_f32(codes[i]) * scale;
    }
};

// One scale per matrix, in Weight::scale.
template <>
struct Format<Quant::fp8_tensor> : SplitFormat {
    static constexpr int block = 1, bytes = 1;

    static int64_t scale_bytes(int64_t, int64_t, int64_t) { return 0; }
    HD static float decode(const Weight& w, int expert, int row, int col) {
        return e4m3_to_f32(fp8_row(w, expert, row)[col]);
    }
    SPARKINFER_INLINE static void decode_row(const Weight& w, int expert, int row, float* __restrict__ out) {
        const uint8_t* __restrict__ codes = fp8_row(w, expert, row);
        for (int i = 0; i < w.in; i++) out[i] = e4m3_to_f32(codes[i]);
    }
};

// One scale per tile of 128 by 128: scales [experts, ceil(out/128), ceil(in/128)].
template <>
struct Format<Quant::fp8_block> : SplitFormat {
    static constexpr int block = 1, bytes = 1, tile = 128;

    HD static int64_t tiles(int64_t n) { return (n + tile - 1) / tile; }
    static int64_t scale_bytes(int64_t experts, int64_t out, int64_t in) {
        return experts * tiles(out) * tiles(in) * 4;
    }
    HD SPARKINFER_INLINE static const float* row_scales(const Weight& w, int expert, int row) {
        return static_cast<const float*>(w.scales) +
               (expert * tiles(weight_row(w, 1, 0)) + row / tile) * tiles(w.in);
    }
    HD static float decode(const Weight& w, int expert, int row, int col) {
        return e4m3_to_f32(fp8_row(w, expert, row)[col]) * row_scales(w, expert, row)[col / tile];
    }
    SPARKINFER_INLINE static void decode_row(const Weight& w, int expert, int row, float* __restrict__ out) {
        const uint8_t* __restrict__ codes = fp8_row(w, expert, row);
        const float* scales = row_scales(w, expert, row);
        for (int first = 0; first < w.in; first += tile) {
            const float scale = scales[first / tile];
            const int end = first + tile < w.in ? first + tile : w.in;
            for (int i = first; i < end; i++) out[i] = e4m3_to_f32(codes[i]) * scale;
        }
    }
};

}  // namespace sparkinfer
