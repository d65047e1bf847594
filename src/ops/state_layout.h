// state_layout.h — the bytes of one recurrent layer's state in one state slot.
//
//   header   [n_v] {position, logged, 0, 0}                int32, the same for every value head
//   S        [n_v][128 (k)][128 (v)]                       F32 or BF16
//   ring     [columns = taps-1 + kMaxVerifyRows][channels] F32: convolution inputs before the convolution
//   log k    [kMaxVerifyRows][n_v·128]                     F32: normalised keys of rows not yet folded
//   log d    [kMaxVerifyRows][n_v·128]                     F32: their β (v − Sᵀk)
//   log g    [kMaxVerifyRows][n_v]                         F32: their log decay
//
// `position` counts the rows folded so far, modulo columns: the input of folded row n lies in column n %
// columns, so the taps-1 rows before the next one are at position-1, position-2, …; the `logged` rows follow
// at position, position+1, …. All zero is the state before the first token. Headers and keys are kept once a
// value head, so that a head's work reads nothing that another head's work may already have overwritten.
#pragma once
#include "ops/ops.h"

namespace sparkinfer {

struct StateHeader {
    int32_t position, logged, reserved[2];
};

struct StateLayout {
    int32_t columns;
    int64_t s_at, ring_at, log_k_at, log_d_at, log_g_at,
        bytes;  // byte offsets from the layer's part; 64-aligned
};

HD constexpr int64_t align_64(int64_t n) { return (n + 63) / 64 * 64; }

HD constexpr StateLayout state_layout(int32_t value_heads, int32_t width, int32_t channels, int32_t taps,
                                      DType dtype = DType::f32) {
    StateLayout l{};
    l.columns = taps - 1 + kMaxVerifyRows;
    l.s_at = align_64(int64_t(value_heads) * int64_t(sizeof(StateHeader)));
    l.ring_at = l.s_at + align_64(int64_t(value_heads) * width * width * dtype_bytes(dtype));
    l.log_k_at = l.ring_at + align_64(int64_t(l.columns) * channels * 4);
    l.log_d_at = l.log_k_at + align_64(int64_t(kMaxVerifyRows) * value_heads * width * 4);
    l.log_g_at = l.log_d_at + align_64(int64_t(kMaxVerifyRows) * value_heads * width * 4);
    l.bytes = l.log_g_at + align_64(int64_t(kMaxVerifyRows) * value_heads * 4);
    return l;
}
HD constexpr StateLayout state_layout(const StateLayer& l) {
    return state_layout(l.value_heads, l.width, l.channels, l.taps, l.dtype);
}

}  // namespace sparkinfer
