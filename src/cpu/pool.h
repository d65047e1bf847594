// pool.h — a few threads that share one loop at a time.
//
// A loop is cut into contiguous parts by (iterations, grain, threads) alone: no stealing, no queue. Which
// thread runs an iteration never changes its result, so the cut is a matter of speed only. Threads wait by a
// short spin, then sleep.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace sparkinfer {

class Pool {
  public:
    // threads ≥ 1, the caller's own included.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return int(workers_.size()) + 1; }

    // body(begin, end, worker) over [0, n), in at most `threads` parts of at least `grain` iterations each
    // (but for the last); returns when all are done. worker < threads() names the scratch a part may use. Not
    // re-entrant.
    template <class Body>
    void parallel(int64_t n, int64_t grain, Body&& body) {
        if (n <= 0) return;
        const int64_t most = (n + grain - 1) / grain;
        const int parts = int(std::min<int64_t>(most, kPartsPerThread * int64_t(threads())));
        if (parts <= 1 || workers_.empty()) return body(int64_t(0), n, 0);
        run(Job{n, parts, &body, [](void* b, int64_t begin, int64_t end, int worker) {
                    (*static_cast<std::remove_reference_t<Body>*>(b))(begin, end, worker);
                }});
    }

  private:
    static constexpr int64_t kPartsPerThread = 4;
    struct Job {
        int64_t n;
        int parts;
        void* body;
        void (*call)(void*, int64_t, int64_t, int);
    };
    void run(const Job& job);
    bool take_part(int worker);
    void work(int worker);
    void stop();

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable start_, finish_;
    // Parts that nobody has taken. Whoever lowers it owns a part of job_, and job_ rests until that part is
    // done.
    std::atomic<int> open_{0};
    std::atomic<int> unfinished_{0};  // parts that are not done
    std::atomic<bool> quit_{false};
    Job job_{};
};

}  // namespace sparkinfer
