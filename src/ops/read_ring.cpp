#include "ops/read_ring.h"

#include <algorithm>
#include <system_error>

#include "core/check.h"

namespace sparkinfer {

ReadRing::ReadRing(ByteSource& source, std::span<const Run> runs, const Shape& shape)
    : source_(source),
      runs_(runs.begin(), runs.end()),
      memory_(shape.memory),
      buffers_(size_t(shape.buffers)),
      buffer_bytes_(int64_t(shape.memory.size()) / shape.buffers) {
    for (size_t run = 0; run < runs_.size(); ++run) {
        CHECK(runs_[run].bytes > 0, "run {} of {} bytes", run, runs_[run].bytes);
        for (int64_t at = 0; at < runs_[run].bytes; at += buffer_bytes_)
            pieces_.push_back({run, at, std::min(buffer_bytes_, runs_[run].bytes - at)});
    }
}

Result<std::unique_ptr<ReadRing>> ReadRing::start(ByteSource& source, std::span<const Run> runs,
                                                  const Shape& shape) {
    CHECK(shape.buffers > 0 && shape.threads > 0 && int64_t(shape.memory.size()) >= shape.buffers,
          "{} buffers of {} bytes in all, {} threads", shape.buffers, shape.memory.size(), shape.threads);
    std::unique_ptr<ReadRing> ring(new ReadRing(source, runs, shape));
    const size_t useful = std::min(size_t(shape.threads), ring->pieces_.size());
    try {
        while (ring->threads_.size() < useful)
            ring->threads_.emplace_back([r = ring.get()] { r->read_pieces(); });
    } catch (const std::system_error& e) {  // fewer threads than asked for read the same bytes
        if (ring->threads_.empty())
            return out_of_resources("cannot start a thread that reads the weights: {}", e.what());
    }
    return ring;
}

ReadRing::~ReadRing() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

std::span<std::byte> ReadRing::buffer(size_t piece) const {
    return memory_.subspan(piece % buffers_ * size_t(buffer_bytes_), size_t(pieces_[piece].bytes));
}

void ReadRing::read_pieces() {
    std::unique_lock lock(mutex_);
    for (;;) {
        room_.wait(lock, [&] { return stop_ || begun_ == pieces_.size() || begun_ - released_ < buffers_; });
        if (stop_ || begun_ == pieces_.size()) return;
        const size_t piece = begun_++;
        lock.unlock();
        const Piece& p = pieces_[piece];
        const Result<void> read = source_.read(runs_[p.run].view + p.offset, buffer(piece));
        lock.lock();
        if (read.ok()) {
            pieces_[piece].ready = true;
        } else {
            if (!error_) error_ = read.error();
            stop_ = true;
            room_.notify_all();
        }
        filled_.notify_one();
    }
}

Result<std::optional<ReadRing::Chunk>> ReadRing::next() {
    std::unique_lock lock(mutex_);
    if (error_) return *error_;
    if (taken_ == pieces_.size()) return std::optional<Chunk>();
    CHECK(taken_ - released_ < buffers_, "all {} buffers are taken, none was released", buffers_);
    filled_.wait(lock, [&] { return error_ || pieces_[taken_].ready; });
    if (error_) return *error_;
    const Piece& p = pieces_[taken_];
    return std::optional(Chunk{buffer(taken_++), p.run, p.offset});
}

void ReadRing::release() {
    {
        const std::lock_guard lock(mutex_);
        CHECK(released_ < taken_, "{} chunks released, {} taken", released_ + 1, taken_);
        ++released_;
    }
    room_.notify_one();
}

}  // namespace sparkinfer
