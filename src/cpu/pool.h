// pool.h — a few threads that share one loop at a time.
//
// A loop is cut into contiguous parts by (iterations, grain, threads) alone: no stealing, no queue. Which
// thread runs an iteration never changes its result, so the cut is a matter of speed only. Threads wait by a
// short spin, then sleep.
#pragma once
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
        const int parts = int(most < threads() ? most : threads());
        if (parts <= 1) return body(int64_t(0), n, 0);
        run(Job{n, parts, &body, [](void* b, int64_t begin, int64_t end, int worker) {
                    (*static_cast<std::remove_reference_t<Body>*>(b))(begin, end, worker);
                }});
    }

  private:
    struct Job {
        int64_t n;
        int parts;
        void* body;
        void (*call)(void*, int64_t, int64_t, int);
        void part(int worker) const { call(body, n * worker / parts, n * (worker + 1) / parts, worker); }
    };
    void run(const Job& job);
    void work(int worker);
    void stop();

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable start_, finish_;
    std::atomic<uint64_t> generation_{0};  // one more with each job
    std::atomic<int> pending_{0};          // workers that have not finished the current job
    Job job_{};
    bool quit_ = false;
};

}  // namespace sparkinfer
