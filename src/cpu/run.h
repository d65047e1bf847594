// run.h — what the ops of the CPU backend share: their two functions each, the threads, and scratch memory.
//
// Scratch is laid out by one struct an op (XScratch), built twice: on a null Carver to learn its size when a
// tape is compiled, on real memory when the op runs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/check.h"
#include "cpu/pool.h"
#include "ops/backend.h"
#include "ops/ops.h"

namespace sparkinfer {

class Carver {
  public:
    // base: 64-aligned, or null to measure.
    Carver(std::byte* base, int64_t bytes) : base_(base), bytes_(bytes) {}

    // Uninitialised room for `count` values, 64-aligned; null when measuring.
    template <class T>
    T* take(int64_t count) {
        const int64_t at = used_;
        // T may be a pointer.  NOLINTNEXTLINE(bugprone-sizeof-expression)
        used_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
        if (!base_) return nullptr;
        CHECK(used_ <= bytes_, "scratch of {} bytes is {} short", bytes_, used_ - bytes_);
        return reinterpret_cast<T*>(base_ + at);
    }
    int64_t used() const { return used_; }

  private:
    std::byte* base_;
    int64_t bytes_, used_ = 0;
};

struct Context {
    Pool& pool;
    Carver scratch;
    Activations activations;  // f32 where the machine has no integer products
};

template <class Scratch, class Op>
int64_t measure(const Op& op, int threads) {
    Carver c(nullptr, 0);
    Scratch(c, op, threads);
    return c.used();
}

// One pair an op, defined in cpu/<op>.cpp: bytes of scratch that it needs with so many threads, and the op
// itself.
#define X(Type, name)                                   \
    int64_t scratch_bytes(const Type& op, int threads); \
    void run(const Type& op, Context& context);
FOREACH_OP(X)
#undef X

}  // namespace sparkinfer
