#include "cuda/pinned_pool.h"

#include <cuda_runtime.h>

namespace sparkinfer::cuda {

constexpr size_t kLeastPinned = size_t(1) << 20;

PinnedPool::~PinnedPool() {
    for (const auto& [bytes, blocks] : free_)
        for (std::byte* block : blocks) (void)cudaFreeHost(block);
}

HostBlock PinnedPool::block(size_t bytes) {
    if (bytes < kLeastPinned) return plain_host_block(bytes);
    std::byte* block = nullptr;
    {
        const std::lock_guard lock(mutex_);
        std::vector<std::byte*>& free = free_[bytes];
        if (!free.empty()) block = free.back(), free.pop_back();
    }
    void* fresh = nullptr;
    if (!block && cudaHostAlloc(&fresh, bytes, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();  // it is not a step's
        return plain_host_block(bytes);
    }
    if (!block) block = static_cast<std::byte*>(fresh);
    return HostBlock(block, [pool = shared_from_this(), bytes](std::byte* b) {
        const std::lock_guard lock(pool->mutex_);
        pool->free_[bytes].push_back(b);
    });
}

}  // namespace sparkinfer::cuda
