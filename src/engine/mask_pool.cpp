#include "engine/mask_pool.h"

#include <algorithm>
#include <system_error>

namespace sparkinfer {

MaskPool::~MaskPool() {
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : workers_) t.join();
}

void MaskPool::submit(std::shared_ptr<MaskJob> job) {
    {
        std::lock_guard lock(mutex_);
        queue_.push_back(std::move(job));
        if (workers_.empty()) start_workers();
    }
    wake_.notify_one();
}

void MaskPool::start_workers() {
    try {
        for (int i = 0; i < threads_; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // the machine has no thread left: fewer do the same
        if (workers_.empty()) throw;
    }
}

void MaskPool::wait(const MaskJob& job) {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return job.done; });
}

void MaskPool::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return closing_ || !queue_.empty(); });
        if (closing_) return;
        std::shared_ptr<MaskJob> job = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        if (job->rollback) job->constraint->rollback(job->rollback);
        if (job->advance) job->constraint->advance(*job->advance);
        std::fill(job->bits.begin(), job->bits.end(), 0u);
        job->constraint->mask(job->bits);
        lock.lock();
        job->done = true;
        finished_.notify_all();
    }
}

}  // namespace sparkinfer
