// reduce.cuh — sums and maxima over a warp or a block, in one fixed order.
#pragma once
#include <cstdint>

namespace sparkinfer::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;

template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(kWholeWarp, v, m);
    return v;
}
template <class T>
__device__ __forceinline__ T warp_max(T v) {
#pragma unroll
    for (int m = 16; m; m >>= 1) {
        const T o = __shfl_xor_sync(kWholeWarp, v, m);
        v = o > v ? o : v;
    }
    return v;
}

// Every thread gets the result. `part`: shared, 32 entries; reusable after the call. REQUIRES: whole warps,
// all threads.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T v, T* part, T neutral, Combine combine) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = combine(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < warps ? part[lane] : neutral;
    __syncthreads();
    return combine(v);
}
template <class T>
__device__ __forceinline__ T block_sum(T v, T* part) {
    return block_reduce(v, part, T(0), [](T x) { return warp_sum(x); });
}
template <class T>
__device__ __forceinline__ T block_max(T v, T* part, T least) {
    return block_reduce(v, part, least, [](T x) { return warp_max(x); });
}

}  // namespace sparkinfer::cuda
