#include "engine/solo.h"

#include <numeric>

#include "engine/slots.h"

namespace sparkinfer {

Solo::Solo(Backend& backend, std::unique_ptr<Runner> runner, const StepLimits& limits)
    : backend_(backend),
      runner_(std::move(runner)),
      image_(limits),
      buffer_(size_t(StepImage::bytes_for(limits))),
      states_(runner_->states().used()) {}

Result<std::unique_ptr<Solo>> Solo::make(const Model& model, Backend& backend, ByteSource& source,
                                         const SoloPlan& plan) {
    CHECK(plan.rows > 0 && plan.rows <= plan.context, "{} rows in a context of {}", plan.rows, plan.context);
    RunnerPlan runner;
    runner.context = plan.context;
    runner.slots = 1;
    runner.rows = plan.rows;
    runner.pages = pages_for(plan.context);
    runner.states = 2;
    runner.limits = {plan.rows, 1, 1, kAdmissionChanges, kSlotWords + runner.pages};
    TRY(std::unique_ptr<Runner> made, Runner::make(model, backend, source, runner, {}));
    return std::unique_ptr<Solo>(new Solo(backend, std::move(made), runner.limits));
}

Tape Solo::record(int32_t rows) const {
    return runner_->record(runner_->row_class(rows), {TapePart::whole, OutputKind::select, 0});
}

std::span<const std::byte> Solo::image(std::span<const TokenId> tokens) {
    const RunnerPlan& plan = runner_->plan();
    const auto rows = int32_t(tokens.size());
    CHECK(rows > 0 && fed_ + rows <= plan.context, "{} tokens behind {} in a context of {}", rows, fed_,
          plan.context);
    image_.clear();
    SlotWriter slot(image_, 0, pages_for(plan.context));
    if (fed_ == 0) {
        Sampling greedy{};
        greedy.top_p = greedy.repeat_penalty = 1;
        greedy.mask = -1;
        slot.sampling(greedy);
        std::vector<int32_t> pages(size_t(plan.pages));
        std::iota(pages.begin(), pages.end(), 0);
        slot.pages(0, pages);
    }
    // The cursor begins anew in each step: tokens come from the host.
    Cursor cursor{};
    cursor.index = fed_ + rows - 1;
    cursor.limit = plan.context;
    cursor.prompt = fed_ + rows;
    slot.cursor(cursor);
    image_.add_segment({0, 0, rows, states_ && fed_ > 0 ? state_in_ : -1, state_out(), 0, 0, 0});
    for (int32_t r = 0; r < rows; ++r) {
        const int32_t index = fed_ + r;
        const uint32_t flags = r + 1 == rows ? uint32_t(kRowOutput) : 0;
        image_.add_row({raw(tokens[size_t(r)]), 0, index, {index, index, index}, flags, -1});
    }
    written_ = image_.write(buffer_);
    return written_;
}

void Solo::leave_step() {
    fed_ += image_.rows();
    state_in_ = 1 - state_in_;
}

Result<void> Solo::run(const Compiled& compiled) {
    TRY(const Ticket ticket, backend_.execute(compiled, written_));
    return runner_->wait(ticket);
}

Result<void> Solo::copy(void* to, const void* from, int64_t bytes) {
    TRY(const Ticket ticket, backend_.copy({static_cast<std::byte*>(to), size_t(bytes)},
                                           {static_cast<const std::byte*>(from), size_t(bytes)}, Ticket{}));
    return runner_->wait(ticket);
}

}  // namespace sparkinfer
