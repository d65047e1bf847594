// launch.h — what a tape becomes: kernels with bound arguments, in order. Each op's .cu file chooses and adds
// them.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "cuda/device_info.h"
#include "ops/ops.h"

namespace sparkinfer::cuda {

struct Launch {
    const void* kernel = nullptr;
    dim3 grid, block;
    uint32_t shared = 0;              // bytes of dynamic shared memory
    std::vector<std::byte> argument;  // kernels take one struct by value
    int32_t pc = 0;                   // instruction of the tape
    const char* op = "";              // its name
    const char* variant = "";         // what explain prints
    bool pairs = false;               // two blocks share a multiprocessor, and no successor's
};

// Kernels are wide and narrow by turns, so that a multiprocessor holds a block of one and a block of the
// next, which loads ahead, and never two of the same: they then lie evenly. Bytes of shared memory.
struct SharedSlots {
    int32_t both;                      // that two blocks may have together
    int32_t wide, narrow;              // most
    int32_t wide_least, narrow_least;  // two wide ones, or a wide and two narrow ones, do not fit
};
inline SharedSlots shared_slots(const DeviceInfo& d) {
    constexpr int32_t kReserved = 1024;  // by the system, of each block
    const int32_t both = d.shared_sm - 2 * kReserved, wide = both * 4 / 7 / 1024 * 1024;
    return {both, wide, both - wide, both / 2 + kReserved, both / 4 + kReserved};
}

// Least for launch `i` of a tape, whose predecessor has `before`.
inline int32_t least_shared(const DeviceInfo& d, int32_t i, int32_t before) {
    const SharedSlots s = shared_slots(d);
    return i % 2 ? s.wide_least : std::min(s.narrow_least, s.both - before);
}

constexpr int32_t kFewRows = 8;  // above, rows are packed and multiplied by tiles

constexpr int32_t kArrivals = 4096;  // counters at the head of the arena, zero before and after every kernel

// Collects the launches of one tape. Scratch lives until the next instruction, or, kept, one longer; `arena`
// is null in the first pass, which only learns how much is needed.
class Lowering {
  public:
    Lowering(const DeviceInfo& device, std::byte* arena) : device_(device), arena_(arena) {}

    const DeviceInfo& device() const { return device_; }
    bool dry() const { return arena_ == nullptr; }  // no address is real

    template <class Argument>
    void add(void (*kernel)(Argument), dim3 grid, dim3 block, uint32_t shared,
             const std::type_identity_t<Argument>& argument, const char* variant) {
        static_assert(std::is_trivially_copyable_v<Argument>);
        Launch l{reinterpret_cast<const void*>(kernel), grid, block, shared, {}, pc_, op_, variant};
        l.argument.resize(sizeof(Argument));
        std::memcpy(l.argument.data(), &argument, sizeof(Argument));
        launches_.push_back(std::move(l));
    }
    template <class T>
    T* scratch(int64_t count) {
        std::byte* p = arena_ ? arena_ + used_ : nullptr;
        used_ += (count * int64_t(sizeof(T)) + 255) / 256 * 256;
        if (used_ > peak_) peak_ = used_;
        return reinterpret_cast<T*>(p);
    }
    int32_t* arrivals() const { return reinterpret_cast<int32_t*>(arena_); }
    // Starts an instruction; `next` is the one behind it, null at the end.
    void begin(int32_t pc, const char* op, const Instr* next) {
        pc_ = pc;
        op_ = op;
        next_ = next;
        used_ = kept_pc_ == pc - 1 ? kept_used_ : kArrivals * 4;
    }
    // Scratch taken so far in this instruction lasts to the end of the next one, which finds `value` by
    // `key`.
    template <class T>
    void keep(const void* key, const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        kept_key_ = key, kept_pc_ = pc_, kept_used_ = used_;
        kept_.resize(sizeof(T));
        std::memcpy(kept_.data(), &value, sizeof(T));
    }
    // False: the instruction before has kept nothing by that key.
    template <class T>
    bool kept(const void* key, T& value) const {
        if (kept_pc_ != pc_ - 1 || kept_key_ != key || kept_.size() != sizeof(T)) return false;
        std::memcpy(&value, kept_.data(), sizeof(T));
        return true;
    }
    // Most shared memory of the next kernel: what its predecessor leaves, and its successor needs.
    int32_t shared_room() const {
        const SharedSlots s = shared_slots(device_);
        if (launches_.size() % 2 == 0) return s.narrow;
        constexpr int32_t kDelta = 36 << 10;  // gated_delta's block, padded
        const int32_t before_it = int32_t(launches_.back().shared);
        return before(OpCode::gated_delta) ? std::max(s.wide, s.both - std::max(before_it, kDelta)) : s.wide;
    }
    bool before(OpCode code) const { return next_ && next_->code == code; }
    int64_t scratch_bytes() const { return peak_; }
    std::vector<Launch>& launches() { return launches_; }

  private:
    const DeviceInfo& device_;
    std::byte* arena_;
    int64_t used_ = kArrivals * 4, peak_ = used_;  // bytes
    int32_t pc_ = 0;
    const char* op_ = "";
    const Instr* next_ = nullptr;
    const void* kept_key_ = nullptr;
    int32_t kept_pc_ = -2;
    int64_t kept_used_ = 0;
    std::vector<std::byte> kept_;
    std::vector<Launch> launches_;
};

// One overload an op, in <op>.cu. A missing one does not link.
#define X(Type, name) void lower(Lowering& l, const Type& op);
FOREACH_OP(X)
#undef X

}  // namespace sparkinfer::cuda
