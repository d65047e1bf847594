#include "cuda/upload.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "quant/slab.h"

namespace sparkinfer::cuda {
namespace {

constexpr int32_t kThreads = 4;
constexpr int64_t kBuffers = 16, kBufferBytes = 8ll << 20;  // pinned: 128 MiB in all
constexpr int64_t kBlockBytes = 32ll << 20;                 // raw rows repacked at a time

// Rows of each part in a block, a whole number of slabs.
int64_t block_rows(const UploadJob& job) {
    const int64_t of_each = kSlabRows / job.parts();
    const int64_t fit = kBlockBytes / (row_bytes(job.first) * job.parts()) / of_each * of_each;
    return std::min(job.rows(), std::max(of_each, fit));
}

int64_t block_bytes(const UploadJob& job) { return block_rows(job) * row_bytes(job.first) * job.parts(); }

template <class T>
Result<void> pin(T** to, int64_t count) {
    const cudaError_t status = cudaMallocHost(to, size_t(count) * sizeof(T));
    if (status == cudaSuccess) return {};
    cudaGetLastError();
    return out_of_resources(
        "{:.1f} MiB of pinned host memory, through which weights are read, were refused: {}",
        double(count) * sizeof(T) / (1 << 20), cudaGetErrorString(status));
}

Result<cudaEvent_t> new_event() {
    cudaEvent_t event = nullptr;
    CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

}  // namespace

Upload::~Upload() {
    ring_.reset();  // no thread writes into the buffers any more
    if (copies_) cudaStreamSynchronize(copies_);
    cudaStreamSynchronize(stream_);
    for (cudaEvent_t e : copied_) cudaEventDestroy(e);
    for (cudaEvent_t e : scanned_) cudaEventDestroy(e);
    if (arrived_) cudaEventDestroy(arrived_);
    if (copies_) cudaStreamDestroy(copies_);
    cudaFreeHost(buffers_);
    cudaFreeHost(found_);
    cudaFreeHost(factors_);
    cudaFree(scratch_);
    cudaFree(facts_);
}

// The runs of the files that make up a job. A gate and its up alternate, a block of rows of each.
void Upload::add_runs(size_t job, std::vector<ReadRing::Run>& runs) {
    const UploadJob& j = jobs_[job];
    if (!j.slabs()) {
        runs.push_back({j.view, j.bytes});
        runs_.push_back({j.to, job, true});
        return;
    }
    const int64_t row = row_bytes(j.first), block = block_rows(j);
    const int64_t whole =
        j.first.expert_rows ? j.first.out : j.rows();  // rows that lie together in the files
    std::byte* to = j.to;
    for (int64_t first = 0; first < j.rows(); first += block) {
        const int64_t end = std::min(first + block, j.rows());
        for (const Weight* w : {&j.first, &j.second}) {
            if (!w->data) continue;
            for (int64_t at = first; at < end;) {
                const int64_t n = std::min(end - at, whole - at % whole);
                const int64_t file_row = at / whole * (w->expert_rows ? w->expert_rows : whole) + at % whole;
                runs.push_back({static_cast<const std::byte*>(w->data) + file_row * row, n * row});
                runs_.push_back({to, job, false});
                to += n * row;
                at += n;
            }
        }
    }
    CHECK(to == j.to + j.bytes, "{} bytes of rows for {} of slabs", to - j.to, j.bytes);
    runs_.back().last = true;
}

// Memory and events for the jobs at hand: a small weight alone takes little.
Result<void> Upload::open() {
    int64_t block = 0, slabs = 0;
    for (const UploadJob& j : jobs_) {
        if (!j.slabs()) continue;
        block = std::max(block, block_bytes(j));
        ++slabs;
    }
    CUDA_TRY(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
    TRY(arrived_, new_event());
    if (slabs == 0) return {};
    const int64_t count = int64_t(jobs_.size());
    TRY_VOID(pin(&found_, count));
    TRY_VOID(pin(&factors_, 2 * count));
    TRY(scratch_, device_memory(block));
    TRY(std::byte * facts, device_memory(count * int64_t(sizeof(Facts))));
    facts_ = reinterpret_cast<Facts*>(facts);
    CUDA_TRY(cudaMemsetAsync(facts_, 0, size_t(count) * sizeof(Facts), stream_));
    return {};
}

Result<void> Upload::run(std::span<UploadJob> jobs, ByteSource& source, const PlaceProgress& progress) {
    CHECK(runs_.empty() && !copies_, "an upload runs once");
    if (jobs.empty()) return {};
    jobs_ = jobs;
    std::vector<ReadRing::Run> runs;
    for (size_t job = 0; job < jobs.size(); ++job) add_runs(job, runs);
    TRY_VOID(open());
    int64_t total = 0, done = 0, longest = 0, chunks = 0;
    for (const ReadRing::Run& r : runs) total += r.bytes, longest = std::max(longest, r.bytes);
    const int64_t buffer = std::min(longest, kBufferBytes);
    for (const ReadRing::Run& r : runs) chunks += (r.bytes + buffer - 1) / buffer;
    const int64_t buffers = std::min(chunks, kBuffers);
    TRY_VOID(pin(&buffers_, buffers * buffer));
    for (int64_t i = 0; i < buffers; ++i) {
        TRY(const cudaEvent_t event, new_event());
        copied_.push_back(event);
    }
    TRY(ring_,
        ReadRing::start(source, runs, {{buffers_, size_t(buffers * buffer)}, int32_t(buffers), kThreads}));
    for (;;) {
        TRY_VOID(release_copied());
        TRY(const std::optional<ReadRing::Chunk> chunk, ring_->next());
        if (!chunk) break;
        TRY_VOID(copy(*chunk));
        TRY_VOID(repack_scanned(false));
        done += int64_t(chunk->bytes.size());
        if (progress) progress(done, total);
    }
    TRY_VOID(repack_scanned(true));
    return finish();
}

// Gives buffers back whose copies are done. At most half of them are left to the copies, so that the threads
// always have some to read into.
Result<void> Upload::release_copied() {
    const int64_t buffers = int64_t(copied_.size());
    while (released_ < sent_) {
        const cudaEvent_t event = copied_[size_t(released_ % buffers)];
        if (sent_ - released_ < (buffers + 1) / 2) {
            const cudaError_t status = cudaEventQuery(event);
            if (status == cudaErrorNotReady) {
                cudaGetLastError();
                return {};
            }
            CUDA_TRY(status);
        } else {
            CUDA_TRY(cudaEventSynchronize(event));
        }
        ring_->release();
        ++released_;
    }
    return {};
}

Result<void> Upload::copy(const ReadRing::Chunk& chunk) {
    const Run& run = runs_[chunk.run];
    CUDA_TRY(cudaMemcpyAsync(run.to + chunk.offset, chunk.bytes.data(), chunk.bytes.size(),
                             cudaMemcpyHostToDevice, copies_));
    CUDA_TRY(cudaEventRecord(copied_[size_t(sent_ % int64_t(copied_.size()))], copies_));
    ++sent_;
    const UploadJob& job = jobs_[run.job];
    const bool complete = run.last && run.to + chunk.offset + chunk.bytes.size() == job.to + job.bytes;
    return complete && job.slabs() ? scan(run.job) : Result<void>();
}

// Looks at the scales of a job whose bytes are all on their way.
Result<void> Upload::scan(size_t job) {
    const UploadJob& j = jobs_[job];
    CUDA_TRY(cudaEventRecord(arrived_, copies_));
    CUDA_TRY(cudaStreamWaitEvent(stream_, arrived_));
    scan_scales(j.to, j.rows() * j.parts(), j.first.in, j.first.quant, &facts_[job].range, stream_);
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaMemcpyAsync(&found_[job], &facts_[job], sizeof(Facts), cudaMemcpyDeviceToHost, stream_));
    TRY(const cudaEvent_t event, new_event());
    scanned_.push_back(event);
    scans_.push_back(job);
    CUDA_TRY(cudaEventRecord(event, stream_));
    return {};
}

// Queues the repacking of every job whose scales are known by now, or (wait) of all.
Result<void> Upload::repack_scanned(bool wait) {
    for (; repacked_ < scans_.size(); ++repacked_) {
        if (wait) {
            CUDA_TRY(cudaEventSynchronize(scanned_[repacked_]));
        } else {
            const cudaError_t status = cudaEventQuery(scanned_[repacked_]);
            if (status == cudaErrorNotReady) {
                cudaGetLastError();
                return {};
            }
            CUDA_TRY(status);
        }
        TRY_VOID(repack_job(scans_[repacked_]));
    }
    return {};
}

Result<void> Upload::repack_job(size_t job) {
    const UploadJob& j = jobs_[job];
    const int64_t row = row_bytes(j.first), block = block_rows(j);
    Repack r{
        scratch_,          nullptr, nullptr, 0, j.first.in, slab_powers(found_[job].range, j.first.quant),
        &facts_[job].lossy};
    for (int64_t first = 0; first < j.rows(); first += block) {
        const int64_t n = std::min(block, j.rows() - first);
        r.to = j.to + first * j.parts() * row;
        r.second = j.second.data ? scratch_ + n * row : nullptr;
        r.slabs = n * j.parts() / kSlabRows;
        CUDA_TRY(
            cudaMemcpyAsync(scratch_, r.to, size_t(n * j.parts() * row), cudaMemcpyDeviceToDevice, stream_));
        repack(r, j.first.quant, stream_);
        CUDA_TRY(cudaGetLastError());
    }
    row_powers(j.to, j.rows() * j.parts() / kSlabRows, j.first.in, j.first.quant, r.powers,
               reinterpret_cast<int8_t*>(j.to + j.bytes), stream_);
    CUDA_TRY(cudaGetLastError());
    float* factor = factors_ + 2 * job;
    factor[0] = std::ldexp(1.0f, -r.powers.d);
    factor[1] = std::ldexp(1.0f, r.powers.d - r.powers.m);
    CUDA_TRY(cudaMemcpyAsync(j.factor, factor, 2 * sizeof(float), cudaMemcpyHostToDevice, stream_));
    return {};
}

// Waits for everything, and learns which scales have lost bits.
Result<void> Upload::finish() {
    if (found_)
        CUDA_TRY(
            cudaMemcpyAsync(found_, facts_, jobs_.size() * sizeof(Facts), cudaMemcpyDeviceToHost, stream_));
    CUDA_TRY(cudaStreamSynchronize(copies_));
    CUDA_TRY(cudaStreamSynchronize(stream_));
    for (size_t job = 0; job < jobs_.size(); ++job)
        if (jobs_[job].slabs()) jobs_[job].lossy = found_[job].lossy != 0;
    return {};
}

}  // namespace sparkinfer::cuda
