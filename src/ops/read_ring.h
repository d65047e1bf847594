// read_ring.h — bytes of a source, read ahead by several threads into a ring of buffers and handed out in
// order.
//
//     TRY(auto ring, ReadRing::start(source, runs, {memory, 16, 4}));
//     for (;;) {
//         TRY(const std::optional<ReadRing::Chunk> chunk, ring->next());   // waits for it
//         if (!chunk) break;
//         use(*chunk);
//         ring->release();                                                 // its buffer may be read into
//         again
//     }
//
// Threads: one thread owns a ring and calls it; the threads that read are the ring's own. They end with it.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ops/backend.h"

namespace sparkinfer {

class ReadRing {
  public:
    struct Run {  // bytes of the source
        const std::byte* view;
        int64_t bytes;
    };
    struct Chunk {  // a piece of a run, as it lies in its buffer until release()
        std::span<const std::byte> bytes;
        size_t run;
        int64_t offset;  // of its first byte in the run
    };
    struct Shape {
        std::span<std::byte> memory;  // all buffers; the caller's, and outlives the ring
        int32_t buffers = 0;          // it is divided into; ≥ 1
        int32_t threads = 0;          // ≥ 1
    };

    // Begins to read. `source` outlives the ring; no run is empty. Errors: no thread can be started.
    static Result<std::unique_ptr<ReadRing>> start(ByteSource& source, std::span<const Run> runs,
                                                   const Shape& shape);
    // Waits for the reads under way; begins no other.
    ~ReadRing();
    ReadRing(const ReadRing&) = delete;
    ReadRing& operator=(const ReadRing&) = delete;

    // The next chunk, in the order of the runs; nothing after the last. After an error of the source, that
    // error. REQUIRES: a buffer is not in the caller's hands.
    Result<std::optional<Chunk>> next();
    // Gives the oldest chunk in the caller's hands back.
    void release();

  private:
    struct Piece {
        size_t run;
        int64_t offset, bytes;
        bool ready = false;
    };
    ReadRing(ByteSource& source, std::span<const Run> runs, const Shape& shape);
    std::span<std::byte> buffer(size_t piece) const;
    void read_pieces();

    ByteSource& source_;
    const std::vector<Run> runs_;
    std::span<std::byte> memory_;
    const size_t buffers_;
    const int64_t buffer_bytes_;
    std::vector<Piece> pieces_;  // piece i lies in buffer i % buffers_

    std::mutex mutex_;  // guards what follows, and Piece::ready
    std::condition_variable room_, filled_;
    size_t begun_ = 0, taken_ = 0, released_ = 0;  // pieces that a thread, the caller, nobody any more has
    std::optional<Error> error_;
    bool stop_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace sparkinfer
