// ticket_queue.h — a stream whose work is told apart by tickets.
#pragma once
#include <cuda_runtime.h>

#include <deque>
#include <utility>
#include <vector>

#include "core/result.h"
#include "ops/backend.h"

namespace sparkinfer::cuda {

class TicketQueue {
  public:
    // `number`: Ticket::queue of its tickets.
    explicit TicketQueue(int32_t number) : number_(number) {}
    ~TicketQueue();
    TicketQueue(const TicketQueue&) = delete;
    TicketQueue& operator=(const TicketQueue&) = delete;

    Result<void> open();
    cudaStream_t stream() const { return stream_; }
    // Of all that is queued by now.
    Result<Ticket> mark();
    Ticket newest() const { return {next_ - 1, number_}; }
    Result<bool> done(Ticket ticket, bool wait);
    // What is queued from now on begins when a ticket of another queue has completed. The host waits for
    // nothing.
    Result<void> follow(const TicketQueue& other, Ticket ticket);

  private:
    const int32_t number_;
    cudaStream_t stream_ = nullptr;
    std::deque<std::pair<int64_t, cudaEvent_t>> marks_;  // tickets not yet seen done
    std::vector<cudaEvent_t> spare_;
    int64_t next_ = 1, done_ = 0;
};

}  // namespace sparkinfer::cuda
