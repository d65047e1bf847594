#include "cpu/backend.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

#include "cpu/integer_rows.h"
#include "cpu/run.h"

namespace sparkinfer {
namespace {

// Zeroed pages of our own; unmapped with the owner.
class Pages {
  public:
    explicit Pages(int64_t bytes) : bytes_(bytes) {
        void* at = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        data_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    }
    ~Pages() {
        if (data_) munmap(data_, size_t(bytes_));
    }
    Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
    Pages& operator=(Pages&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    std::byte* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

  private:
    std::byte* data_;
    int64_t bytes_;
};

std::string device_name() {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);) {
        const size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "unknown processor";
}

int usable_cores() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, int(std::thread::hardware_concurrency()));
}

class CpuBackend final : public Backend {
  public:
    CpuBackend(int threads, const CpuOptions& options)
        : pool_(threads),
          measure_(options.measure),
          activations_(integer_form() != IntegerForm::none ? options.activations : Activations::f32) {
        info_.name = "cpu";
        info_.device = device_name();
        info_.memory_bytes = int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
        info_.kv_type = options.kv_type;
        info_.state_type = options.state_type;
        info_.activations = activations_name(activations_);
        info_.host_memory = true;
    }

    const BackendInfo& info() const override { return info_; }

    Result<Memory> allocate(int64_t bytes, MemoryKind) override {
        CHECK(bytes >= 0, "{} bytes", bytes);
        TRY(Pages pages, reserve(bytes));
        memory_.push_back(std::move(pages));
        return Memory{memory_.back().data(), bytes, true};
    }

    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource&) override {
        return group.weights;
    }

    Result<MemoryNeed> plan(std::span<const WeightGroup>, std::span<const Tape> tapes) override {
        MemoryNeed need;
        for (const Tape& tape : tapes) need.scratch = std::max(need.scratch, scratch_of(tape));
        need.scratch = std::max<int64_t>(0, need.scratch - scratch_.bytes());
        need.available = info_.memory_bytes - allocated_;
        return need;
    }

    Result<Compiled> compile(const Tape& tape) override {
        const int64_t scratch = scratch_of(tape);
        if (scratch > scratch_.bytes()) {
            allocated_ -= scratch_.bytes();
            scratch_ = Pages(0);
            TRY(scratch_, reserve(scratch));
        }
        auto id = int32_t(tapes_.size());
        if (released_.empty()) {
            tapes_.push_back(tape);
            us_.emplace_back();
        } else {
            id = released_.back();
            released_.pop_back();
            tapes_[size_t(id)] = tape;
        }
        tapes_[size_t(id)].on_record(nullptr);
        us_[size_t(id)].assign(measure_ ? tape.instrs().size() : 0, {});
        return Compiled{id};
    }

    void release(const Compiled& compiled) override {
        CHECK(compiled.id >= 0 && size_t(compiled.id) < tapes_.size(), "tape {} of {}", compiled.id,
              tapes_.size());
        tapes_[size_t(compiled.id)] = Tape({}, {}, nullptr);
        us_[size_t(compiled.id)] = {};
        released_.push_back(compiled.id);
    }

    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override {
        CHECK(compiled.id >= 0 && size_t(compiled.id) < tapes_.size(), "tape {} of {}", compiled.id,
              tapes_.size());
        const Tape& tape = tapes_[size_t(compiled.id)];
        if (!step.empty()) memcpy(const_cast<std::byte*>(tape.step().base), step.data(), step.size());
        for (size_t pc = 0; pc < tape.instrs().size(); ++pc) {
            Context context{pool_, Carver(scratch_.data(), scratch_.bytes()), activations_};
            const auto start = std::chrono::steady_clock::now();
            visit(tape.instrs()[pc], [&](const auto& op) { run(op, context); });
            const std::chrono::duration<float, std::micro> spent = std::chrono::steady_clock::now() - start;
            if (measure_) us_[size_t(compiled.id)][pc].push_back(spent.count());
        }
        return Ticket{++ticket_};
    }

    std::vector<LaunchInfo> launches(const Compiled& compiled) const override {
        std::vector<LaunchInfo> all(tapes_[size_t(compiled.id)].instrs().size());
        for (size_t pc = 0; pc < all.size(); ++pc) {
            all[pc] = {int32_t(pc), "reference", 0, 0};
            if (!measure_ || us_[size_t(compiled.id)][pc].empty()) continue;
            std::vector<float> us = us_[size_t(compiled.id)][pc];
            std::nth_element(us.begin(), us.begin() + int64_t(us.size() / 2), us.end());
            all[pc].us = us[us.size() / 2];
            all[pc].count = int32_t(us.size());
        }
        return all;
    }

    Result<Ticket> copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket) override {
        CHECK(to.size() == from.size(), "a copy of {} bytes to {}", from.size(), to.size());
        if (!to.empty()) memmove(to.data(), from.data(), to.size());
        return Ticket{++ticket_};
    }

    Result<bool> done(Ticket ticket, bool) override {
        CHECK(ticket.id <= ticket_, "ticket {} of {}", ticket.id, ticket_);
        return true;
    }

  private:
    int64_t scratch_of(const Tape& tape) const {
        int64_t bytes = 0;
        for (const Instr& instr : tape.instrs())
            bytes = std::max(
                bytes, visit(instr, [&](const auto& op) { return scratch_bytes(op, pool_.threads()); }));
        return bytes;
    }
    Result<Pages> reserve(int64_t bytes) {
        // The kernel would promise more than there is, and end the process when the promise is called in.
        if (bytes > info_.memory_bytes - allocated_)
            return out_of_resources(
                "{} bytes of memory are needed, but this machine has {} and {} of them are taken here", bytes,
                info_.memory_bytes, allocated_);
        Pages pages(std::max<int64_t>(bytes, 1));
        if (!pages.data())
            return out_of_resources("cannot allocate {} bytes of memory: {}", bytes, strerror(errno));
        allocated_ += bytes;
        return pages;
    }

    Pool pool_;
    bool measure_;
    Activations activations_;
    BackendInfo info_;
    std::vector<Pages> memory_;
    Pages scratch_{0};
    std::vector<Tape> tapes_;
    std::vector<int32_t> released_;                    // places in it that are free again
    std::vector<std::vector<std::vector<float>>> us_;  // measured, by tape and instruction
    int64_t allocated_ = 0, ticket_ = 0;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
    if (options.threads < 0 || options.threads > kMaxCpuThreads)
        return usage_error("threads is {}; expected 0 (one a core) to {}", options.threads, kMaxCpuThreads);
    const int threads = options.threads ? options.threads : std::min(usable_cores(), kMaxCpuThreads);
    try {
        return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(threads, options));
    } catch (const std::system_error& e) {  // from std::thread
        return out_of_resources("cannot start {} threads: {}", threads, e.what());
    }
}

}  // namespace sparkinfer
