// mma_bf16.cuh — BF16 and FP16 tensor-core products of one warp, their operands out of shared memory, and
// float32 values as sums of two BF16 (17 bits) or two FP16 (22 bits, below 65,504).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace sparkinfer::cuda {

// d [16, 8] += a [16, 16] · b [16, 8], the fragments as PTX defines them for mma.m16n8k16.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four E4M3 as two words of two FP16, exact.
__device__ __forceinline__ uint2 e4m3_to_f16(uint32_t four) {
    const __half2_raw low = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(four & 0xffffu), __NV_E4M3),
                      high = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(four >> 16), __NV_E4M3);
    return make_uint2(low.x | uint32_t(low.y) << 16, high.x | uint32_t(high.y) << 16);
}
// Four 8×8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&m)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address)
                 : "memory");
}
// x = high + low to 2^-18; the first of two values lies in the low half of a word.
__device__ __forceinline__ void split_bf16(float x0, float x1, uint32_t& high, uint32_t& low) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(x0, x1);
    const __nv_bfloat162 l = __floats2bfloat162_rn(x0 - __low2float(h), x1 - __high2float(h));
    high = reinterpret_cast<const uint32_t&>(h);
    low = reinterpret_cast<const uint32_t&>(l);
}
__device__ __forceinline__ void split_f16(float x0, float x1, uint32_t& high, uint32_t& low) {
    const __half2 h = __floats2half2_rn(x0, x1);
    const __half2 l = __floats2half2_rn(x0 - __low2float(h), x1 - __high2float(h));
    high = reinterpret_cast<const uint32_t&>(h);
    low = reinterpret_cast<const uint32_t&>(l);
}

// 16 bytes to a shared address.
__device__ __forceinline__ void store_shared16(uint32_t to, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
// 16 bytes to shared memory; zeros when !wanted. Copies complete group by group.
__device__ __forceinline__ void async_copy16(uint32_t to, const void* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All groups of this thread but the last `kPending` have arrived.
template <int kPending>
__device__ __forceinline__ void async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace sparkinfer::cuda
