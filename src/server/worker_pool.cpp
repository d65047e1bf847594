#include "server/worker_pool.h"

#include <utility>

namespace sparkinfer {

WorkerPool::WorkerPool(int threads, size_t queue_max) : queue_max_(queue_max) {
    try {
        for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (...) {  // the machine has no thread left: end those that run, let the maker say so
        stop();
        throw;
    }
}

bool WorkerPool::submit(std::function<void()> work) {
    {
        const std::lock_guard lock(mutex_);
        if (stopping_ || queue_.size() >= queue_max_) return false;
        queue_.push_back(std::move(work));
    }
    changed_.notify_one();
    return true;
}

void WorkerPool::stop() {
    std::deque<std::function<void()>> dropped;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        dropped.swap(queue_);
    }
    changed_.notify_all();
    for (std::thread& thread : std::exchange(threads_, {})) thread.join();
}

void WorkerPool::serve() {
    for (;;) {
        std::function<void()> work;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
            if (stopping_) return;
            work = std::move(queue_.front());
            queue_.pop_front();
        }
        work();
    }
}

}  // namespace sparkinfer
