// upload.h — bytes of the files on their way into device memory: read ahead by several threads into pinned
// buffers, copied as they come, and repacked to slabs where they lie.
//
//   read (4 threads) -> pinned ring -> copy, on a stream of its own -> scan of the scales -> repacking
//
// Slabs take exactly the bytes of the rows they are made of. So raw rows are copied to where their slabs will
// be and repacked there a block at a time, through scratch of one block: no tensor is read twice, none has to
// fit into scratch, and nothing waits for the tensor before it. The host waits for the device only for a free
// buffer, and at the end.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "cuda/device.h"
#include "cuda/repack.h"
#include "ops/backend.h"
#include "ops/read_ring.h"

namespace sparkinfer::cuda {

// What is read to one place of device memory: plain bytes, or a weight (a gate and its up) to become slabs.
struct UploadJob {
    const std::byte* view = nullptr;  // of plain bytes
    int64_t bytes = 0;                // in the files and on the device
    Weight first, second;             // to become slabs, as the files hold them; no data: plain, not paired
    std::byte* to = nullptr;          // device
    float* factor = nullptr;          // device: where the two factors of Weight::scale go
    bool lossy = false;               // found: a scale does not survive its power of two, `to` holds nonsense

    bool slabs() const { return first.data != nullptr; }
    int64_t parts() const { return second.data ? 2 : 1; }
    int64_t rows() const { return int64_t(first.experts) * first.out; }
};

class Upload {
  public:
    // `stream`: on which the uploaded bytes will be used, and on which they are repacked.
    explicit Upload(cudaStream_t stream) : stream_(stream) {}
    ~Upload();
    Upload(const Upload&) = delete;
    Upload& operator=(const Upload&) = delete;

    // Once. All jobs are complete, and their `lossy` set, when it returns without an error. Errors: of the
    // source, of the device, no memory.
    Result<void> run(std::span<UploadJob> jobs, ByteSource& source, const PlaceProgress& progress);

    // Device memory that repacking takes meanwhile, for any jobs.
    static constexpr int64_t kStagingBytes = 34ll << 20;

  private:
    struct Facts {
        ScaleRange range;
        int32_t lossy, reserved;
    };
    struct Run {  // where the bytes of a run of the ring go
        std::byte* to;
        size_t job;
        bool last;  // of its job
    };
    Result<void> open();
    void add_runs(size_t job, std::vector<ReadRing::Run>& runs);
    Result<void> copy(const ReadRing::Chunk& chunk);
    Result<void> release_copied();
    Result<void> scan(size_t job);
    Result<void> repack_scanned(bool wait);
    Result<void> repack_job(size_t job);
    Result<void> finish();

    cudaStream_t stream_, copies_ = nullptr;
    std::span<UploadJob> jobs_;
    std::vector<Run> runs_;

    // Pinned.
    std::byte* buffers_ = nullptr;
    Facts* found_ = nullptr;    // by job
    float* factors_ = nullptr;  // two a job
    // Device.
    std::byte* scratch_ = nullptr;
    Facts* facts_ = nullptr;  // by job

    std::unique_ptr<ReadRing> ring_;
    std::vector<cudaEvent_t> copied_;  // by buffer
    int64_t sent_ = 0, released_ = 0;  // chunks copied, of them given back
    cudaEvent_t arrived_ = nullptr;
    std::vector<cudaEvent_t> scanned_;  // by job that becomes slabs
    std::vector<size_t> scans_;         // jobs, in the order of their scans
    size_t repacked_ = 0;               // of them
};

}  // namespace sparkinfer::cuda
