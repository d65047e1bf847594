#include "cpu/pool.h"

#include "core/check.h"

namespace sparkinfer {
namespace {

// Long enough to bridge two ops of a tape, short enough that an idle engine costs nothing.
constexpr int kSpins = 1000;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(Condition&& condition) {
    for (int i = 0; i < kSpins; ++i) {
        if (condition()) return true;
        pause_briefly();
    }
    return condition();
}

}  // namespace

Pool::Pool(int threads) {
    CHECK(threads >= 1, "a pool of {} threads", threads);
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {  // the machine has no thread left: end those that run, let the maker say so
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    {
        std::lock_guard lock(mutex_);
        quit_ = true;
        generation_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    for (std::thread& t : workers_) t.join();
}

void Pool::run(const Job& job) {
    {
        std::lock_guard lock(mutex_);
        job_ = job;
        pending_.store(int(workers_.size()), std::memory_order_relaxed);
        generation_.fetch_add(1, std::memory_order_release);
    }
    start_.notify_all();
    job.part(0);
    const auto finished = [this] { return pending_.load(std::memory_order_acquire) == 0; };
    if (spin_until(finished)) return;
    std::unique_lock lock(mutex_);
    finish_.wait(lock, finished);
}

void Pool::work(int worker) {
    for (uint64_t seen = 0;; ++seen) {
        const auto started = [&] { return generation_.load(std::memory_order_acquire) != seen; };
        if (!spin_until(started)) {
            std::unique_lock lock(mutex_);
            start_.wait(lock, started);
        }
        // Every worker reports on every job, so `job_` and `quit_` rest until all of them have.
        if (quit_) return;
        if (worker < job_.parts) job_.part(worker);
        if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            // The empty section orders this with a caller between its test and its sleep.
            {
                std::lock_guard lock(mutex_);
            }
            finish_.notify_one();
        }
    }
}

}  // namespace sparkinfer
