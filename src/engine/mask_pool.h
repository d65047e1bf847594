// mask_pool.h — a few threads that ask constraints for their masks while the device runs.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace sparkinfer {

// One question to one constraint. Written by a worker, read after wait().
struct MaskJob {
    std::shared_ptr<Constraint> constraint;
    std::optional<TokenId> advance;  // told first
    int32_t rollback = 0;            // told before that
    std::vector<uint32_t> bits;      // [ceil(V/32)]
    bool done = false;
};

class MaskPool {
  public:
    explicit MaskPool(int threads) : threads_(threads) {}
    ~MaskPool();
    MaskPool(const MaskPool&) = delete;
    MaskPool& operator=(const MaskPool&) = delete;

    // Starts the threads at the first call. REQUIRES: no other job of the same constraint is under way.
    void submit(std::shared_ptr<MaskJob> job);
    void wait(const MaskJob& job);

  private:
    void start_workers();
    void work();
    int threads_;
    std::mutex mutex_;
    std::condition_variable wake_, finished_;
    std::deque<std::shared_ptr<MaskJob>> queue_;
    bool closing_ = false;
    std::vector<std::thread> workers_;
};

}  // namespace sparkinfer
