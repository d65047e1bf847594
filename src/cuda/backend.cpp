#include "cuda/backend.h"

#include <algorithm>
#include <map>

#include "cuda/device.h"
#include "cuda/launch.h"

namespace sparkinfer {
namespace cuda {
namespace {

constexpr int32_t kCapturedRows = 64;          // tapes up to here become graphs
constexpr int64_t kStageBytes = 64ll << 20;    // pinned staging of weights
constexpr int64_t kPoolBytes = 16ll << 20;     // small weights share allocations of this size
constexpr int kStepBuffers = 4;

struct Program {
    std::vector<Launch> launches;
    cudaGraphExec_t graph = nullptr;
    std::byte* step = nullptr;  // device address of the step image
    int32_t rows = 0;
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
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source) override;
    Result<Compiled> compile(const Tape& tape) override;
    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override;
    Result<Ticket> copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) override;
    Result<bool> done(Ticket ticket, bool wait) override;

  private:
    Result<std::byte*> device_bytes(int64_t bytes);
    Result<const void*> upload(const void* view, int64_t bytes, ByteSource& source);
    Result<void> capture(Program& p);
    Result<void> launch_all(const Program& p, bool programmatic);
    Result<Ticket> mark();

    CudaOptions options_;
    DeviceInfo device_;
    BackendInfo info_;
    cudaStream_t stream_ = nullptr;
    std::vector<void*> allocations_;
    std::byte* pool_ = nullptr;
    int64_t pool_left_ = 0;
    std::map<std::pair<uint64_t, const void*>, const void*> placed_;  // by source and view
    std::byte* stage_ = nullptr;
    std::byte* scratch_ = nullptr;
    int64_t scratch_bytes_ = 0;
    std::vector<Program> programs_;
    PinnedStep steps_[kStepBuffers];
    int step_next_ = 0;
    std::vector<std::pair<int64_t, cudaEvent_t>> marks_;  // tickets not yet seen done
    std::vector<cudaEvent_t> spare_;
    int64_t next_ticket_ = 1, done_ticket_ = 0;
};

Result<std::unique_ptr<Backend>> CudaBackend::make(const CudaOptions& options) {
    auto b = std::make_unique<CudaBackend>();
    b->options_ = options;
    TRY(b->device_, open_device(options.device));
    CUDA_TRY(cudaStreamCreateWithFlags(&b->stream_, cudaStreamNonBlocking));
    CUDA_TRY(cudaMallocHost(&b->stage_, kStageBytes));
    for (PinnedStep& s : b->steps_) CUDA_TRY(cudaEventCreateWithFlags(&s.free, cudaEventDisableTiming));
    b->info_ = {"cuda", b->device_.name, b->device_.free, DType::bf16};
    return std::unique_ptr<Backend>(std::move(b));
}

CudaBackend::~CudaBackend() {
    if (stream_) cudaStreamSynchronize(stream_);
    for (Program& p : programs_)
        if (p.graph) cudaGraphExecDestroy(p.graph);
    for (auto& [id, event] : marks_) cudaEventDestroy(event);
    for (cudaEvent_t e : spare_) cudaEventDestroy(e);
    for (PinnedStep& s : steps_) {
        if (s.free) cudaEventDestroy(s.free);
        if (s.data) cudaFreeHost(s.data);
    }
    for (void* p : allocations_) cudaFree(p);
    if (scratch_) cudaFree(scratch_);
    if (stage_) cudaFreeHost(stage_);
    if (stream_) cudaStreamDestroy(stream_);
}

Result<std::byte*> CudaBackend::device_bytes(int64_t bytes) {
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, size_t(std::max<int64_t>(bytes, 1)));
    if (status != cudaSuccess) {
        size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        cudaGetLastError();
        return out_of_resources("{} has {} MiB free of {} MiB, {} MiB more were asked for", device_.name, free >> 20, total >> 20,
                                bytes >> 20);
    }
    allocations_.push_back(p);
    return static_cast<std::byte*>(p);
}

Result<Memory> CudaBackend::allocate(int64_t bytes, MemoryKind) {
    TRY(std::byte * p, device_bytes(bytes));
    CUDA_TRY(cudaMemsetAsync(p, 0, size_t(bytes), stream_));
    CUDA_TRY(cudaStreamSynchronize(stream_));
    return Memory{p, bytes, false};
}

Result<const void*> CudaBackend::upload(const void* view, int64_t bytes, ByteSource& source) {
    if (auto it = placed_.find({source.id, view}); it != placed_.end()) return it->second;
    std::byte* to = nullptr;
    const int64_t room = (bytes + 255) / 256 * 256;
    if (room > kPoolBytes / 4) {
        TRY(to, device_bytes(bytes));
    } else {
        if (room > pool_left_) {
            TRY(pool_, device_bytes(kPoolBytes));
            pool_left_ = kPoolBytes;
        }
        to = pool_;
        pool_ += room;
        pool_left_ -= room;
    }
    for (int64_t at = 0; at < bytes; at += kStageBytes) {
        const int64_t n = std::min(kStageBytes, bytes - at);
        CUDA_TRY(cudaStreamSynchronize(stream_));  // the stage is free
        TRY_VOID(source.read(static_cast<const std::byte*>(view) + at, {stage_, size_t(n)}));
        CUDA_TRY(cudaMemcpyAsync(to + at, stage_, size_t(n), cudaMemcpyHostToDevice, stream_));
    }
    CUDA_TRY(cudaStreamSynchronize(stream_));
    placed_[{source.id, view}] = to;
    return static_cast<const void*>(to);
}

static int64_t code_bytes(const Weight& w) {
    const int64_t rows = int64_t(w.experts - 1) * (w.expert_rows ? w.expert_rows : w.out) + w.out;
    return rows * row_bytes(w);
}

Result<std::vector<Weight>> CudaBackend::place(const WeightGroup& group, ByteSource& source) {
    std::vector<Weight> placed = group.weights;
    for (Weight& w : placed) {
        if (!w.data) continue;
        const int64_t codes = code_bytes(w), scales = weight_bytes(w) - int64_t(w.experts) * w.out * row_bytes(w);
        TRY(w.data, upload(w.data, codes, source));
        if (w.scales) {
            TRY(w.scales, upload(w.scales, scales, source));
        }
        if (w.scale) {
            TRY(const void* factor, upload(w.scale, int64_t(w.scale_count) * 4, source));
            w.scale = static_cast<const float*>(factor);
        }
    }
    return placed;
}

static void lower_tape(Lowering& l, const Tape& tape) {
    int32_t pc = 0;
    for (const Instr& i : tape.instrs()) {
        l.begin(pc++);
        visit(i, [&](const auto& op) { lower(l, op); });
    }
}

Result<Compiled> CudaBackend::compile(const Tape& tape) {
    Lowering dry(device_, nullptr);
    lower_tape(dry, tape);
    if (dry.scratch_bytes() > scratch_bytes_) {
        // Tapes compiled earlier hold the old address: the engine compiles its largest tape first, so this is rare.
        if (!programs_.empty() || scratch_) allocations_.push_back(scratch_);
        TRY(scratch_, device_bytes(dry.scratch_bytes()));
        allocations_.pop_back();
        CUDA_TRY(cudaMemsetAsync(scratch_, 0, kArrivals * 4, stream_));
        scratch_bytes_ = dry.scratch_bytes();
    }
    Lowering real(device_, scratch_);
    lower_tape(real, tape);
    Program p;
    p.launches = std::move(real.launches());
    p.step = const_cast<std::byte*>(tape.step().base);
    for (const Instr& i : tape.instrs())
        if (i.code == OpCode::embed) p.rows = i.embed.y.rows();
    for (const Launch& l : p.launches)
        if (l.shared > 48 * 1024)
            CUDA_TRY(cudaFuncSetAttribute(l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(l.shared)));
    if (options_.executor == CudaExecutor::graph && p.rows <= kCapturedRows) TRY_VOID(capture(p));
    programs_.push_back(std::move(p));
    return Compiled{int32_t(programs_.size() - 1)};
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

Result<Ticket> CudaBackend::mark() {
    cudaEvent_t event = nullptr;
    if (spare_.empty()) {
        CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    } else {
        event = spare_.back();
        spare_.pop_back();
    }
    CUDA_TRY(cudaEventRecord(event, stream_));
    marks_.emplace_back(next_ticket_, event);
    return Ticket{next_ticket_++};
}

Result<Ticket> CudaBackend::execute(const Compiled& compiled, std::span<const std::byte> step) {
    CHECK(compiled.id >= 0 && compiled.id < int32_t(programs_.size()), "program {}", compiled.id);
    const Program& p = programs_[compiled.id];
    PinnedStep& buffer = steps_[step_next_++ % kStepBuffers];
    CUDA_TRY(cudaEventSynchronize(buffer.free));
    if (buffer.bytes < int64_t(step.size())) {
        if (buffer.data) CUDA_TRY(cudaFreeHost(buffer.data));
        buffer.bytes = std::max<int64_t>(int64_t(step.size()), 64 << 10);
        CUDA_TRY(cudaMallocHost(&buffer.data, size_t(buffer.bytes)));
    }
    std::copy(step.begin(), step.end(), buffer.data);
    CUDA_TRY(cudaMemcpyAsync(p.step, buffer.data, step.size(), cudaMemcpyHostToDevice, stream_));
    CUDA_TRY(cudaEventRecord(buffer.free, stream_));
    if (p.graph) CUDA_TRY(cudaGraphLaunch(p.graph, stream_));
    else TRY_VOID(launch_all(p, options_.executor == CudaExecutor::graph));
    return mark();
}

Result<Ticket> CudaBackend::copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket) {
    CHECK(to.size() == from.size(), "copy of {} bytes into {}", from.size(), to.size());
    // One stream runs everything in order, so `after` has always been queued before.
    CUDA_TRY(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, stream_));
    return mark();
}

Result<bool> CudaBackend::done(Ticket ticket, bool wait) {
    while (done_ticket_ < ticket.id) {
        CHECK(!marks_.empty(), "ticket {} was never given", ticket.id);
        const cudaError_t status = wait ? cudaEventSynchronize(marks_.front().second) : cudaEventQuery(marks_.front().second);
        if (status == cudaErrorNotReady) return false;
        if (status != cudaSuccess) return device_error(status, "a step");
        done_ticket_ = marks_.front().first;
        spare_.push_back(marks_.front().second);
        marks_.erase(marks_.begin());
    }
    return true;
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options) { return cuda::CudaBackend::make(options); }

}  // namespace sparkinfer
