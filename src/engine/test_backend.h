// test_backend.h — a backend for tests: the CPU, of which a test changes what it is about.
#pragma once
#include <memory>
#include <vector>

#include "cpu/backend.h"

namespace sparkinfer {

class OverCpu : public Backend {
  public:
    const BackendInfo& info() const override { return cpu_->info(); }
    Result<Memory> allocate(int64_t bytes, MemoryKind kind) override { return cpu_->allocate(bytes, kind); }
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source) override {
        return cpu_->place(group, source);
    }
    Result<Compiled> compile(const Tape& tape) override { return cpu_->compile(tape); }
    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override {
        return cpu_->execute(compiled, step);
    }
    Result<Ticket> copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) override {
        return cpu_->copy(to, from, after);
    }
    Result<bool> done(Ticket ticket, bool wait) override { return cpu_->done(ticket, wait); }

  protected:
    std::unique_ptr<Backend> cpu_ = make_cpu_backend({.threads = 1}).value();
};

}  // namespace sparkinfer
