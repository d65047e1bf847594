// pinned_pool.h — page-locked host memory for what leaves the device: copies into it are made by the device
// alone, at the speed of the bus. Locking pages takes long, so that blocks are kept for the next of their
// size.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/host_block.h"

namespace sparkinfer::cuda {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
  public:
    PinnedPool() = default;
    ~PinnedPool();
    PinnedPool(const PinnedPool&) = delete;
    PinnedPool& operator=(const PinnedPool&) = delete;
    // Small blocks, and those for which no page can be locked, are plain memory.
    HostBlock block(size_t bytes);

  private:
    std::mutex mutex_;
    std::map<size_t, std::vector<std::byte*>> free_;  // by size
};

}  // namespace sparkinfer::cuda
