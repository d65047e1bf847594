// math.cuh — the small functions of the ops on the device; their CPU twins are in cpu/math.h.
#pragma once
#include "ops/ops.h"

namespace sparkinfer::cuda {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
// The same to about 2e-6, in a few instructions: kernels of one token live as long as their code takes to
// arrive.
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float fast_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }
// e in [-126, 127].
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }
// 1 / sqrt of a positive number that may be too great for a float: its exponent is halved by hand.
__device__ __forceinline__ float inverse_root(double x) {
    const int high = __double2hiint(x), half = ((high >> 20) - 1023) >> 1;
    const float mantissa = float(__hiloint2double(high - (half << 21), __double2loint(x)));  // [1, 4)
    return __frsqrt_rn(mantissa) * power_of_two(min(max(-half, -126), 126));
}
__device__ __forceinline__ float activate(Activation, float x) { return silu(x); }

}  // namespace sparkinfer::cuda
