#include "cuda/pinned_pool.h"

#include <cuda_runtime.h>

#include <cstring>

#include "core/log.h"

namespace sparkinfer::cuda {
namespace {

constexpr size_t kLeastPinned = size_t(1) << 20;
constexpr size_t kAhead = 4;  // blocks of one size: as many states as leave in a step

// Page-locked; null: there is no memory, or it cannot be locked. The pages are there before the driver is
// asked, which holds up every other call meanwhile.
std::byte* lock_pages(size_t bytes) {
    HostBlock plain = plain_host_block(bytes);
    if (!plain) return nullptr;
    memset(plain.get(), 0, bytes);
    if (cudaHostRegister(plain.get(), bytes, cudaHostRegisterDefault) != cudaSuccess) {
        (void)cudaGetLastError();  // it is not a step's
        return nullptr;
    }
    return plain.release();
}

void unlock_pages(std::byte* block) {
    (void)cudaHostUnregister(block);
    free_host_block(block);
}

}  // namespace

PinnedPool::~PinnedPool() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    wanted_.notify_all();
    if (ahead_.joinable()) ahead_.join();
    for (const auto& [bytes, blocks] : free_)
        for (std::byte* block : blocks) unlock_pages(block);
}

// A free one, or null; has more made while there are few.
std::byte* PinnedPool::taken(size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*>& free = free_[bytes];
    std::byte* block = nullptr;
    if (!free.empty()) block = free.back(), free.pop_back();
    if (free.size() < kAhead) {
        wanted_bytes_ = bytes;
        if (!ahead_.joinable()) ahead_ = std::thread([this] { work_ahead(); });
        wanted_.notify_all();
    }
    return block;
}

HostBlock PinnedPool::block(size_t bytes) {
    if (bytes < kLeastPinned) return plain_host_block(bytes);
    std::byte* block = taken(bytes);
    if (!block) block = lock_pages(bytes);
    if (!block) {
        if (!said_.exchange(true))
            log_warning(
                "{} bytes of host memory cannot be locked for the GPU: what leaves it moves more slowly",
                bytes);
        return plain_host_block(bytes);
    }
    return HostBlock(block, [pool = shared_from_this(), bytes](std::byte* b) {
        const std::lock_guard lock(pool->mutex_);
        pool->free_[bytes].push_back(b);
    });
}

void PinnedPool::work_ahead() {
    (void)cudaSetDevice(device_);
    std::unique_lock lock(mutex_);
    while (!ends_) {
        const size_t bytes = wanted_bytes_;
        if (bytes == 0 || free_[bytes].size() >= kAhead) {
            wanted_bytes_ = 0;
            wanted_.wait(lock);
            continue;
        }
        lock.unlock();
        std::byte* const block = lock_pages(bytes);
        lock.lock();
        if (block)
            free_[bytes].push_back(block);
        else
            wanted_bytes_ = 0;
    }
}

}  // namespace sparkinfer::cuda
