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
    }
    start_.notify_all();
    for (std::thread& t : workers_) t.join();
}

void Pool::run(const Job& job) {
    job_ = job;
    unfinished_.store(job.parts, std::memory_order_relaxed);
    {
        std::lock_guard lock(mutex_);  // orders this with a worker between its test and its sleep
        open_.store(job.parts, std::memory_order_release);
    }
    start_.notify_all();
    while (take_part(0)) {
    }
    const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (spin_until(finished)) return;
    std::unique_lock lock(mutex_);
    finish_.wait(lock, finished);
}

bool Pool::take_part(int worker) {
    int part = open_.load(std::memory_order_relaxed);
    do
        if (part == 0) return false;
    while (
        !open_.compare_exchange_weak(part, part - 1, std::memory_order_acquire, std::memory_order_relaxed));
    --part;
    job_.call(job_.body, job_.n * part / job_.parts, job_.n * (part + 1) / job_.parts, worker);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1 && worker != 0) {
        {
            std::lock_guard lock(mutex_);
        }  // orders this with a caller between its test and its sleep
        finish_.notify_one();
    }
    return true;
}

void Pool::work(int worker) {
    const auto called = [this] { return open_.load(std::memory_order_relaxed) > 0 || quit_; };
    while (true) {
        if (!spin_until(called)) {
            std::unique_lock lock(mutex_);
            start_.wait(lock, called);
        }
        if (quit_) return;
        while (take_part(worker)) {
        }
    }
}

}  // namespace sparkinfer
