// worker_pool.h — a few threads that take turns at a bounded queue of work.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sparkinfer {

class WorkerPool {
  public:
    WorkerPool(int threads, size_t queue_max);
    ~WorkerPool() { stop(); }
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    // False: the queue is full, or the pool has stopped.
    bool submit(std::function<void()> work);
    // Work that waits is dropped; returns when what runs has ended.
    void stop();

  private:
    void serve();

    const size_t queue_max_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace sparkinfer
