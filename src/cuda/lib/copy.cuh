// copy.cuh — bulk copies into shared memory, and the barriers that say when they have arrived.
#pragma once
#include <cstdint>

namespace sparkinfer::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return uint32_t(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint64_t* b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
// After the inits, by the thread that made them: bulk copies see the barriers.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(shared_address(b)) : "memory");
}
// By one thread.
__device__ __forceinline__ void barrier_wait_alone(uint64_t* b, uint32_t parity) {
    const uint32_t a = shared_address(b);
    uint32_t ok;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p; }"
            : "=r"(ok)
            : "r"(a), "r"(parity)
            : "memory");
    } while (!ok);
}
// By a whole warp, which leaves together.
__device__ __forceinline__ void barrier_wait(uint64_t* b, uint32_t parity) {
    barrier_wait_alone(b, parity);
    __syncwarp();
}
// What is read once a token should not push out what every kernel reads: code, parameters, activations.
__device__ __forceinline__ uint64_t read_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// REQUIRES: 16-byte aligned addresses and size. Completes on `b`, which expects the bytes.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, int bytes, uint64_t* b) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0],[%1],%2,[%3],%4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(b)), "l"(read_once())
        : "memory");
}
// The same for what others read again.
__device__ __forceinline__ void bulk_copy_kept(void* to, const void* from, int bytes, uint64_t* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}
// Barrier `id` of `threads` threads of the block.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    __syncwarp();
    asm volatile("bar.sync %0,%1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ float load_l2(const float* p) {
    float v;
    asm volatile("ld.global.cg.f32 %0,[%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

}  // namespace sparkinfer::cuda
