// mma_eight.cuh — A fragments of 64 columns times eight tokens of packed rows, by mma.sync.
#pragma once
#include "cuda/lib/mma_bf16.cuh"

namespace sparkinfer::cuda {

// Eight tokens × 64 columns that lie as packed_rows.cuh has them, at `shared`.
__device__ __forceinline__ void load_eight_tokens(uint32_t (&b)[2][4], uint32_t shared, int lane) {
    const uint32_t row = shared + (lane & 7) * 128, chunk = lane >> 3;
    load_matrices(b[0], row + ((chunk ^ (lane & 7)) << 4));
    load_matrices(b[1], row + (((4 + chunk) ^ (lane & 7)) << 4));
}
// d += A (16 rows × 64 columns, fragments of four k16 steps) · B (columns × eight tokens).
__device__ __forceinline__ void mma_eight_tokens(float (&d)[4], const uint32_t* a,
                                                 const uint32_t (&b)[2][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint32_t step[4] = {a[4 * j], a[4 * j + 1], a[4 * j + 2], a[4 * j + 3]};
        mma_f16(d, step, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

}  // namespace sparkinfer::cuda
