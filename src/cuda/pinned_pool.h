// pinned_pool.h — page-locked host memory for what leaves the device: copies into it are made by the device
// alone, at the speed of the bus. Locking pages takes long, so that blocks are kept for the next of their
// size, and a thread makes the next few ahead of their use.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/host_block.h"

namespace sparkinfer::cuda {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
  public:
    // `device`: whose context the pages are locked for.
    explicit PinnedPool(int device) : device_(device) {}
    ~PinnedPool();
    PinnedPool(const PinnedPool&) = delete;
    PinnedPool& operator=(const PinnedPool&) = delete;
    // Small blocks, and those for which no page can be locked, are plain memory; the latter is said once.
    HostBlock block(size_t bytes);

  private:
    std::byte* taken(size_t bytes);
    void work_ahead();

    const int device_;
    std::mutex mutex_;
    std::map<size_t, std::vector<std::byte*>> free_;  // by size
    std::thread ahead_;                               // runs from the first block on
    std::condition_variable wanted_;
    size_t wanted_bytes_ = 0;  // of the blocks asked for last; 0: nothing to do
    bool ends_ = false;
    std::atomic<bool> said_{false};  // that pages cannot be locked
};

}  // namespace sparkinfer::cuda
