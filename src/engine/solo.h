// solo.h — one sequence on one backend, fed by hand: for comparing backends and for timing a step. No
// scheduler; the pages and the two recurrent states are all its own.
//
// A step reads one of the two states and writes the other, and its keys and values go where they went before,
// so that it may be run any number of times, whole or up to some op, with the same result.
#pragma once
#include <memory>

#include "core/types.h"
#include "engine/runner.h"

namespace sparkinfer {

struct SoloPlan {
    int32_t context = 0;  // most tokens of the sequence
    int32_t rows = 0;     // most tokens fed in one step
};

class Solo {
  public:
    // Places the model's weights. `model` and `backend` must outlive this. Errors: as Runner::make.
    static Result<std::unique_ptr<Solo>> make(const Model& model, Backend& backend, ByteSource& source,
                                              const SoloPlan& plan);

    Backend& backend() { return backend_; }
    int32_t fed() const { return fed_; }  // tokens of the steps left behind
    const ModelShape& shape() const { return runner_->shape(); }

    // The tape of a step of so many rows, padded to its class. It ends in a choice (greedy) after the last
    // row.
    Tape record(int32_t rows) const;

    // The step that feeds `tokens` behind those fed. Valid until the next call. REQUIRES: they fit the plan.
    std::span<const std::byte> image(std::span<const TokenId> tokens);
    int32_t state_out() const { return states_ ? 1 - state_in_ : -1; }  // that the step writes
    // The step of the last image has been run for the last time.
    void leave_step();

    // Runs a tape of its own backend on the last image, and waits.
    Result<void> run(const Compiled& compiled);
    // Between the host and the backend's memory, either way; waits.
    Result<void> copy(void* to, const void* from, int64_t bytes);

  private:
    Solo(Backend& backend, std::unique_ptr<Runner> runner, const StepLimits& limits);

    Backend& backend_;
    std::unique_ptr<Runner> runner_;
    StepImage image_;
    std::vector<std::byte> buffer_;
    std::span<const std::byte> written_;  // of the buffer
    bool states_;                         // the model has recurrent layers
    int32_t fed_ = 0, state_in_ = 0;
};

}  // namespace sparkinfer
