// nvfp4_split.h — NVFP4 as safetensors keep it: E2M1 codes in one tensor, E4M3 scales in another.
//
//   data    [experts, out, in/2] bytes; byte j of a row holds column 2j in its low nibble, column 2j+1 in its
//   high scales  [experts, out, in/16] bytes of E4M3, one per 16 columns Weight::scale holds the tensor's
//   factor as a multiplier, whichever way the file states it.
#pragma once
#include "quant/block.h"

namespace sparkinfer {

template <>
struct Format<Quant::nvfp4_split> : SplitFormat {
    static constexpr int block = 16, bytes = 8;

    static int64_t scale_bytes(int64_t experts, int64_t out, int64_t in) { return experts * out * (in / 16); }

    HD static float decode(const Weight& w, int expert, int row, int col) {
        const int64_t r = weight_row(w, expert, row);
        const auto* codes = static_cast<const uint8_t*>(w.data) + r * (w.in / 2);
        const auto* scales = static_cast<const uint8_t*>(w.scales) + r * (w.in / 16);
        const uint32_t code = uint32_t(codes[col / 2] >> (4 * (col % 2))) & 15u;
        return e2m1_to_f32(code) * e4m3_to_f32(scales[col / 16]);
    }

    SPARKINFER_INLINE static void decode_row(const Weight& w, int expert, int row, float* __restrict__ out) {
        const int64_t r = weight_row(w, expert, row);
        const auto* __restrict__ codes = static_cast<const uint8_t*>(w.data) + r * (w.in / 2);
        const auto* __restrict__ scales = static_cast<const uint8_t*>(w.scales) + r * (w.in / 16);
        constexpr int kChunk = 256;  // columns whose codes are decoded before the scales are applied
        for (int first = 0; first < w.in; first += kChunk) {
            const int columns = w.in - first < kChunk ? w.in - first : kChunk;
            float* y = out + first;
            for (int j = 0; j < columns / 2; j++) {
                y[2 * j] = e2m1_to_f32(codes[first / 2 + j] & 15u);
                y[2 * j + 1] = e2m1_to_f32(codes[first / 2 + j] >> 4);
            }
            for (int g = 0; g < columns / 16; g++) {
                const float scale = opaque(e4m3_to_f32(scales[first / 16 + g]));
                SPARKINFER_ROLLED
                for (int j = 0; j < 16; j++) y[16 * g + j] *= scale;
            }
        }
    }
};

}  // namespace sparkinfer
