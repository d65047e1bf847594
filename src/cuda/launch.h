// launch.h — what a tape becomes: kernels with bound arguments, in order. Each op's .cu file chooses and adds
// them.
#pragma once
#include <cuda_runtime.h>

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
};

constexpr int32_t kArrivals = 4096;  // counters at the head of the arena, zero before and after every kernel

// Collects the launches of one tape. Scratch lives until the next instruction; `arena` is null in the first
// pass, which only learns how much is needed.
class Lowering {
  public:
    Lowering(const DeviceInfo& device, std::byte* arena) : device_(device), arena_(arena) {}

    const DeviceInfo& device() const { return device_; }

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
        used_ = kArrivals * 4;
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
    std::vector<Launch> launches_;
};

// One overload an op, in <op>.cu. A missing one does not link.
#define X(Type, name) void lower(Lowering& l, const Type& op);
FOREACH_OP(X)
#undef X

}  // namespace sparkinfer::cuda
