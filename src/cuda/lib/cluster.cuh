// cluster.cuh — blocks of a cluster: their barrier and stores into each other's shared memory.
#pragma once
#include <cstdint>

namespace sparkinfer::cuda {

// All threads of all blocks of the cluster. What was stored before arriving is seen after waiting.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The address that `address` of this block has in block `rank` of the cluster.
__device__ __forceinline__ uint32_t peer_address(uint32_t address, int rank) {
    uint32_t peer;
    asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(peer) : "r"(address), "r"(rank));
    return peer;
}
__device__ __forceinline__ void peer_store(uint32_t to, float4 v) {
    asm volatile("st.shared::cluster.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}
__device__ __forceinline__ void peer_store(uint32_t to, float v) {
    asm volatile("st.shared::cluster.f32 [%0],%1;" ::"r"(to), "f"(v) : "memory");
}
__device__ __forceinline__ void peer_store(uint32_t to, float2 v) {
    asm volatile("st.shared::cluster.v2.f32 [%0],{%1,%2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
}

}  // namespace sparkinfer::cuda
