#include "cuda/backend.h"

#include <algorithm>
#include <map>
#include <memory>

#include "cuda/device.h"
#include "cuda/launch.h"
#include "cuda/lowered.h"
#include "cuda/pinned_pool.h"
#include "cuda/placement.h"
#include "cuda/ticket_queue.h"

namespace sparkinfer {
namespace cuda {
namespace {

constexpr int64_t kLargeMemory = 40ll << 30;  // beyond, a step's activations are a small part of it
constexpr int32_t kCapturedRows = 64;         // tapes up to here become graphs
constexpr int kStepBuffers = 4;
constexpr int64_t kCodeBytes = 32ll << 20;    // of all kernels, loaded at their first use
constexpr int64_t kLaunchBytes = 16ll << 10;  // of the device for a kernel in a graph

struct Program {
    std::vector<Launch> launches;
    cudaGraphExec_t graph = nullptr;
    std::byte* step = nullptr;  // device address of the step image
    int32_t rows = 0;
    std::vector<std::vector<float>> us;  // measured, by launch
};

struct PinnedStep {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    cudaEvent_t free = nullptr;
};

class CudaBackend final : public Backend {
  public:
    static Result<std::unique_ptr<Backend>> make(const CudaOptions& options);
    ~CudaBackend() override;
    const BackendInfo& info() const override { return info_; }
    Result<Memory> allocate(int64_t bytes, MemoryKind kind) override;
    Result<MemoryNeed> plan(std::span<const WeightGroup> groups, std::span<const Tape> tapes) override;
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source) override;
    Result<std::vector<std::vector<Weight>>> place_all(std::span<const WeightGroup> groups,
                                                       ByteSource& source,
                                                       const PlaceProgress& progress) override;
    Result<Compiled> compile(const Tape& tape) override;
    std::vector<LaunchInfo> launches(const Compiled& compiled) const override;
    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override;
    Result<Ticket> copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) override;
    Result<Ticket> copy_out(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) override;
    Result<void> read(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) override;
    Result<bool> done(Ticket ticket, bool wait) override {
        return (ticket.queue == 0 ? queue_ : outward_).done(ticket, wait);
    }
    HostBlock host_block(size_t bytes) override { return pinned_->block(bytes); }
    void release(const Compiled& compiled) override;

  private:
    void note_plain(const Tape& tape, const Program& p);
    void renew_notices();
    Result<int> dynamic_shared(const void* kernel);
    Result<void> measure(Program& p);
    Result<void> capture(Program& p);
    Result<void> launch_all(const Program& p, bool programmatic);
    Result<void> follow_outward();

    CudaOptions options_;
    DeviceInfo device_;
    BackendInfo info_;
    TicketQueue queue_{0};                // steps, and copies in order with them
    TicketQueue outward_{1};              // blocks on their way to the host
    TicketQueue reads_{2};                // results
    cudaStream_t stream_ = nullptr;       // of queue_
    int64_t followed_ = 0;                // ticket of outward_ that queue_ waits for
    std::unique_ptr<Placement> weights_;  // and all other device memory
    std::byte* scratch_ = nullptr;
    int64_t scratch_bytes_ = 0, scratch_planned_ = 0;
    std::shared_ptr<PinnedPool> pinned_;
    std::vector<Program> programs_;
    std::vector<int32_t> released_;                 // places of programs_ that are free again
    std::map<int32_t, std::string> plain_notices_;  // by rows
    std::map<const void*, int> dynamic_shared_;     // by kernel
    PinnedStep steps_[kStepBuffers];
    int step_next_ = 0;
};

// The facts that kernels are chosen by, as `policy` has them.
static Result<void> follow(const std::string& policy, DeviceInfo& d) {
    if (policy.empty()) return {};
    const DeviceInfo other = known_device(policy);
    if (other.sms == 0)
        return usage_error("the policy is '{}', expected h200, rtx5090, pro6000 or spark", policy);
    if (other.shared_block > d.shared_block || other.shared_sm > d.shared_sm)
        return usage_error("the policy '{}' has {} bytes of shared memory a block, {} has {}", policy,
                           other.shared_block, d.name, d.shared_block);
    d.sms = other.sms, d.shared_block = other.shared_block, d.shared_sm = other.shared_sm;
    d.wgmma = d.wgmma && other.wgmma;
    return {};
}

Result<std::unique_ptr<Backend>> CudaBackend::make(const CudaOptions& options) {
    auto b = std::make_unique<CudaBackend>();
    b->options_ = options;
    TRY(b->device_, open_device(options.device));
    TRY_VOID(follow(options.policy, b->device_));
    for (TicketQueue* queue : {&b->queue_, &b->outward_, &b->reads_}) TRY_VOID(queue->open());
    b->stream_ = b->queue_.stream();
    b->weights_ = std::make_unique<Placement>(b->stream_);
    b->pinned_ = std::make_shared<PinnedPool>(options.device);
    for (PinnedStep& s : b->steps_) CUDA_TRY(cudaEventCreateWithFlags(&s.free, cudaEventDisableTiming));
    b->info_.name = "cuda";
    b->info_.device = b->device_.name;
    b->info_.bus_id = b->device_.bus_id;
    b->info_.activations = "16-bit";
    b->info_.memory_bytes = b->device_.free;
    b->info_.kv_type = options.kv_type;
    b->info_.state_type = options.state_type;
    b->info_.captures = true;
    b->info_.chunk = b->device_.memory > kLargeMemory ? 4096 : 2048;
    return std::unique_ptr<Backend>(std::move(b));
}

CudaBackend::~CudaBackend() {
    if (stream_) cudaStreamSynchronize(stream_);
    if (outward_.stream()) cudaStreamSynchronize(outward_.stream());
    for (Program& p : programs_)
        if (p.graph) cudaGraphExecDestroy(p.graph);
    for (PinnedStep& s : steps_) {
        if (s.free) cudaEventDestroy(s.free);
        if (s.data) cudaFreeHost(s.data);
    }
    weights_.reset();
}

Result<Memory> CudaBackend::allocate(int64_t bytes, MemoryKind) {
    TRY(std::byte * p, weights_->device_bytes(bytes));
    CUDA_TRY(cudaMemsetAsync(p, 0, size_t(bytes), stream_));
    CUDA_TRY(cudaStreamSynchronize(stream_));
    return Memory{p, bytes, false};
}

Result<std::vector<Weight>> CudaBackend::place(const WeightGroup& group, ByteSource& source) {
    TRY(std::vector<std::vector<Weight>> placed, place_all({&group, 1}, source, {}));
    return std::move(placed[0]);
}

Result<std::vector<std::vector<Weight>>> CudaBackend::place_all(std::span<const WeightGroup> groups,
                                                                ByteSource& source,
                                                                const PlaceProgress& progress) {
    TRY(std::vector<std::vector<Weight>> placed, weights_->place(groups, source, progress));
    renew_notices();
    return placed;
}

std::vector<LaunchInfo> CudaBackend::launches(const Compiled& compiled) const {
    const Program& p = programs_[size_t(compiled.id)];
    return launch_infos(p.launches, p.us);
}

// Once for one row (decoding) and once for the most rows seen (prompts): what has no fast kernel.
void CudaBackend::note_plain(const Tape& tape, const Program& p) {
    const bool whole = !tape.instrs().empty() && tape.instrs().back().code == OpCode::output;
    if (!whole || p.rows == 0 || plain_notices_.contains(p.rows)) return;
    if (p.rows > 1 && !plain_notices_.empty() && p.rows < plain_notices_.rbegin()->first) return;
    if (p.rows > 1) std::erase_if(plain_notices_, [](const auto& known) { return known.first > 1; });
    plain_notices_[p.rows] = plain_notice(tape, p.launches);
    renew_notices();
}

void CudaBackend::renew_notices() {
    info_.notices.clear();
    if (const int32_t n = weights_->kept_raw(); n > 0)
        info_.notices.push_back(fmt::format(
            "{} tensor{} of this model would lose bits of a scale in the fast kernels' layout, so {} "
            "kept as the file has {} and multiplied by slower kernels",
            n, n == 1 ? "" : "s", n == 1 ? "it is" : "they are", n == 1 ? "it" : "them"));
    for (const auto& [rows, notice] : plain_notices_)
        if (!notice.empty()) info_.notices.push_back(notice);
}

Result<MemoryNeed> CudaBackend::plan(std::span<const WeightGroup> groups, std::span<const Tape> tapes) {
    MemoryNeed need;
    need.weights = Placement::bytes_for(groups);
    need.staging = Upload::kStagingBytes;
    int64_t launches = 0;
    for (Tape tape : tapes) {
        plan_weights(tape);
        Lowering dry(device_, nullptr);
        lower_tape(dry, tape);
        scratch_planned_ = std::max(scratch_planned_, dry.scratch_bytes());
        if (options_.executor == CudaExecutor::graph && rows_of(tape) <= kCapturedRows)
            launches += int64_t(dry.launches().size());
    }
    if (scratch_planned_ > scratch_bytes_) need.scratch = scratch_planned_;
    need.graphs = kCodeBytes + launches * kLaunchBytes;
    size_t free = 0, total = 0;
    CUDA_TRY(cudaMemGetInfo(&free, &total));
    need.available = int64_t(free);
    weights_->expect_free(need.available);
    return need;
}

Result<Compiled> CudaBackend::compile(const Tape& tape) {
    Lowering dry(device_, nullptr);
    lower_tape(dry, tape);
    if (dry.scratch_bytes() > scratch_bytes_) {
        // Tapes compiled earlier keep the smaller one; where tapes were planned there is only this one.
        const int64_t bytes = std::max(dry.scratch_bytes(), scratch_planned_);
        TRY(scratch_, weights_->device_bytes(bytes));
        CUDA_TRY(cudaMemsetAsync(scratch_, 0, kArrivals * 4, stream_));
        scratch_bytes_ = bytes;
    }
    Lowering real(device_, scratch_);
    lower_tape(real, tape);
    Program p;
    p.launches = std::move(real.launches());
    p.step = const_cast<std::byte*>(tape.step().base);
    p.rows = rows_of(tape);
    note_plain(tape, p);
    for (size_t i = 0; i < p.launches.size(); ++i) {
        Launch& l = p.launches[i];
        TRY(const int most, dynamic_shared(l.kernel));
        if (p.rows == 1 && !l.pairs) {  // of several rows, blocks of a kernel stand side by side
            const uint32_t before = i ? p.launches[i - 1].shared : 0;
            const int32_t fixed = device_.shared_block - most,
                          least = least_shared(device_, int32_t(i), int32_t(before)) - fixed;
            l.shared = uint32_t(std::max(int32_t(l.shared), std::min(least, most)));
        }
    }
    if (options_.executor == CudaExecutor::graph && p.rows <= kCapturedRows) TRY_VOID(capture(p));
    if (released_.empty()) {
        programs_.push_back(std::move(p));
        return Compiled{int32_t(programs_.size() - 1)};
    }
    const int32_t id = released_.back();
    released_.pop_back();
    programs_[size_t(id)] = std::move(p);
    return Compiled{id};
}

// Bytes of dynamic shared memory that a kernel may have, and gets. One kernel may be launched with several
// sizes, so each may have all there is. And all want the same split of L1: a multiprocessor changes it only
// when it is idle, so neighbours of another split would not overlap.
Result<int> CudaBackend::dynamic_shared(const void* kernel) {
    const auto known = dynamic_shared_.find(kernel);
    if (known != dynamic_shared_.end()) return known->second;
    cudaFuncAttributes facts{};
    CUDA_TRY(cudaFuncGetAttributes(&facts, kernel));
    const int most = device_.shared_block - int(facts.sharedSizeBytes);
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared));
    dynamic_shared_[kernel] = most;
    return most;
}

Result<void> CudaBackend::launch_all(const Program& p, bool programmatic) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    for (const Launch& l : p.launches) {
        cudaLaunchConfig_t config{};
        config.gridDim = l.grid;
        config.blockDim = l.block;
        config.dynamicSmemBytes = l.shared;
        config.stream = stream_;
        config.attrs = &attribute;
        config.numAttrs = programmatic ? 1 : 0;
        void* arguments[] = {const_cast<std::byte*>(l.argument.data())};
        const cudaError_t status = cudaLaunchKernelExC(&config, l.kernel, arguments);
        if (status != cudaSuccess) return device_error(status, l.variant);
    }
    return {};
}

// Each launch by itself, with an event before and after it.
Result<void> CudaBackend::measure(Program& p) {
    std::vector<cudaEvent_t> events(p.launches.size() + 1);
    for (cudaEvent_t& e : events) CUDA_TRY(cudaEventCreate(&e));
    Program one;
    CUDA_TRY(cudaEventRecord(events[0], stream_));
    for (size_t i = 0; i < p.launches.size(); ++i) {
        one.launches = {p.launches[i]};
        TRY_VOID(launch_all(one, false));
        CUDA_TRY(cudaEventRecord(events[i + 1], stream_));
    }
    CUDA_TRY(cudaEventSynchronize(events.back()));
    p.us.resize(p.launches.size());
    for (size_t i = 0; i < p.launches.size(); ++i) {
        float ms = 0;
        CUDA_TRY(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
        p.us[i].push_back(ms * 1e3f);
    }
    for (cudaEvent_t e : events) cudaEventDestroy(e);
    return {};
}

Result<void> CudaBackend::capture(Program& p) {
    cudaGraph_t graph = nullptr;
    CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Result<void> launched = launch_all(p, true);
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (!launched.ok()) return launched.error();
    CUDA_TRY(ended);
    const cudaError_t made = cudaGraphInstantiate(&p.graph, graph, 0);
    cudaGraphDestroy(graph);
    CUDA_TRY(made);
    CUDA_TRY(cudaGraphUpload(p.graph, stream_));
    return {};
}

Result<Ticket> CudaBackend::execute(const Compiled& compiled, std::span<const std::byte> step) {
    CHECK(compiled.id >= 0 && compiled.id < int32_t(programs_.size()), "program {}", compiled.id);
    Program& p = programs_[compiled.id];
    PinnedStep& buffer = steps_[step_next_++ % kStepBuffers];
    CUDA_TRY(cudaEventSynchronize(buffer.free));
    if (buffer.bytes < int64_t(step.size())) {
        if (buffer.data) CUDA_TRY(cudaFreeHost(buffer.data));
        buffer.bytes = std::max<int64_t>(int64_t(step.size()), 64 << 10);
        CUDA_TRY(cudaMallocHost(&buffer.data, size_t(buffer.bytes)));
    }
    std::copy(step.begin(), step.end(), buffer.data);
    TRY_VOID(follow_outward());
    CUDA_TRY(cudaMemcpyAsync(p.step, buffer.data, step.size(), cudaMemcpyHostToDevice, stream_));
    CUDA_TRY(cudaEventRecord(buffer.free, stream_));
    if (options_.measure)
        TRY_VOID(measure(p));
    else if (p.graph)
        CUDA_TRY(cudaGraphLaunch(p.graph, stream_));
    else
        TRY_VOID(launch_all(p, options_.executor == CudaExecutor::graph));
    return queue_.mark();
}

// What is queued next may write what a block on its way to the host is read from.
Result<void> CudaBackend::follow_outward() {
    if (followed_ == outward_.newest().id) return {};
    TRY_VOID(queue_.follow(outward_, outward_.newest()));
    followed_ = outward_.newest().id;
    return {};
}

Result<Ticket> CudaBackend::copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket) {
    CHECK(to.size() == from.size(), "copy of {} bytes into {}", from.size(), to.size());
    // One stream runs steps and these in order, so `after` has always been queued before.
    TRY_VOID(follow_outward());
    CUDA_TRY(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, stream_));
    return queue_.mark();
}

Result<Ticket> CudaBackend::copy_out(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) {
    CHECK(to.size() == from.size(), "copy of {} bytes into {}", from.size(), to.size());
    TRY_VOID(outward_.follow(queue_, after));
    CUDA_TRY(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToHost, outward_.stream()));
    return outward_.mark();
}

// On a stream of its own: the one of the steps may hold the next step already.
Result<void> CudaBackend::read(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) {
    CHECK(to.size() == from.size(), "copy of {} bytes into {}", from.size(), to.size());
    TRY([[maybe_unused]] const bool there, done(after, true));
    CUDA_TRY(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToHost, reads_.stream()));
    CUDA_TRY(cudaStreamSynchronize(reads_.stream()));
    return {};
}

void CudaBackend::release(const Compiled& compiled) {
    CHECK(compiled.id >= 0 && compiled.id < int32_t(programs_.size()), "program {}", compiled.id);
    Program& p = programs_[compiled.id];
    if (p.graph) cudaGraphExecDestroy(p.graph);
    p = {};
    released_.push_back(compiled.id);
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options) {
    return cuda::CudaBackend::make(options);
}

}  // namespace sparkinfer
