// exchange.cuh — single values from block to block of a cluster, each counted by a barrier of the block that
// gets it.
#pragma once
#include <cstdint>

#include "cuda/lib/cluster.cuh"

namespace sparkinfer::cuda {

__device__ __forceinline__ int cluster_rank() {
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return int(r);
}
// Arrives at the cluster's barrier without a fence: barrier_init_fence() has already made the barriers of
// this block known to whoever waits.
__device__ __forceinline__ void cluster_arrive_initialised() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
// Stores `value` at the place of `to` in block `rank` of the cluster; completes 4 bytes of its `barrier`.
__device__ __forceinline__ void store_remote(float* to, float value, uint64_t* barrier, int rank) {
    const uint32_t at = peer_address(uint32_t(__cvta_generic_to_shared(to)), rank);
    const uint32_t signal = peer_address(uint32_t(__cvta_generic_to_shared(barrier)), rank);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0],%1,[%2];" ::"r"(at),
                 "r"(__float_as_uint(value)), "r"(signal)
                 : "memory");
}
// As barrier_wait, for a barrier that other blocks complete.
__device__ __forceinline__ void barrier_wait_cluster(uint64_t* barrier, uint32_t parity) {
    const uint32_t a = uint32_t(__cvta_generic_to_shared(barrier));
    uint32_t ok;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[%1],%2; selp.u32 "
            "%0,1,0,p; }"
            : "=r"(ok)
            : "r"(a), "r"(parity)
            : "memory");
    } while (!ok);
    __syncwarp();
}

}  // namespace sparkinfer::cuda
