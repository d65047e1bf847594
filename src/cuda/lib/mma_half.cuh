// mma_half.cuh — mma.m16n8k16 of FP16 with float32 sums, and its B operand out of shared memory.
#pragma once
#include <cstdint>

namespace sparkinfer::cuda {

__device__ __forceinline__ void mma_half(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared)
                 : "memory");
}

// d += A (16 rows × 64 columns, fragments of four k16 steps) · B (columns × 8 tokens, fragments of
// load_eight).
__device__ __forceinline__ void mma_eight(float* d, const uint32_t* a, const uint32_t (&b)[2][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) mma_half(d, a + 4 * j, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
}
// Eight tokens × 64 columns that lie as packed_rows.cuh has them, at `shared`.
__device__ __forceinline__ void load_eight(uint32_t (&b)[2][4], uint32_t shared, int lane) {
    const uint32_t row = shared + (lane & 7) * 128, chunk = lane >> 3;
    load_matrices(b[0], row + ((chunk ^ (lane & 7)) << 4));
    load_matrices(b[1], row + (((4 + chunk) ^ (lane & 7)) << 4));
}

}  // namespace sparkinfer::cuda
