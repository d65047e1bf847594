#include "cuda/ticket_queue.h"

#include <algorithm>

#include "cuda/device.h"

namespace sparkinfer::cuda {

TicketQueue::~TicketQueue() {
    if (stream_) cudaStreamSynchronize(stream_);
    for (const auto& [id, event] : marks_) cudaEventDestroy(event);
    for (cudaEvent_t event : spare_) cudaEventDestroy(event);
    if (stream_) cudaStreamDestroy(stream_);
}

Result<void> TicketQueue::open() {
    CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    return {};
}

Result<Ticket> TicketQueue::mark() {
    cudaEvent_t event = nullptr;
    if (spare_.empty()) {
        CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    } else {
        event = spare_.back();
        spare_.pop_back();
    }
    CUDA_TRY(cudaEventRecord(event, stream_));
    marks_.emplace_back(next_, event);
    return Ticket{next_++, number_};
}

Result<bool> TicketQueue::done(Ticket ticket, bool wait) {
    while (done_ < ticket.id) {
        CHECK(!marks_.empty(), "ticket {} was never given", ticket.id);
        const auto [id, event] = marks_.front();
        const cudaError_t status = wait ? cudaEventSynchronize(event) : cudaEventQuery(event);
        if (status == cudaErrorNotReady) return false;
        if (status != cudaSuccess)
            return device_error(status, number_ == 0 ? "a step" : "a copy to the host");
        done_ = id;
        spare_.push_back(event);
        marks_.pop_front();
    }
    return true;
}

Result<void> TicketQueue::follow(const TicketQueue& other, Ticket ticket) {
    if (ticket.id <= other.done_) return {};
    const auto mark = std::find_if(other.marks_.begin(), other.marks_.end(),
                                   [&](const auto& m) { return m.first >= ticket.id; });
    CHECK(mark != other.marks_.end(), "ticket {} was never given", ticket.id);
    CUDA_TRY(cudaStreamWaitEvent(stream_, mark->second, 0));
    return {};
}

}  // namespace sparkinfer::cuda
