// runner.h — gives a model its memory on a backend, records its forward pass for each bucket of rows, runs
// steps.
//
// Memory map, all of it taken in make(): arena (temporaries), KV pages, recurrent states, slot records and
// masks, the step image, results. A tape is recorded for a class of rows; rows beyond the step's own are
// absent. Results lie in `lanes`, so that a queued step does not overwrite those of the one before.
#pragma once
#include <map>
#include <memory>

#include "engine/block_mover.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/state_pool.h"
#include "engine/step_image.h"
#include "engine/weights.h"
#include "model/model.h"

namespace sparkinfer {

constexpr int32_t kLogitRows = 64;   // rows of logits, or of final residuals, that one tape writes
constexpr int32_t kLargeTapes = 24;  // of more than 64 rows, that are kept compiled at once
constexpr int32_t kSmallTapes = 32;  // of up to 64, where each count of rows has its own

struct RunnerPlan {
    int32_t context = 0;        // most tokens of a sequence
    int32_t slots = 0;          // sequences at once
    int32_t rows = 0;           // most rows of a step
    int32_t pages = 0;          // KV pages
    int32_t states = 0;         // recurrent states
    int32_t lanes = 2;          // results regions: one a step in flight, and one each for its masked rows
    int32_t top = 0;            // alternatives of kind logprobs
    bool pad_to_bucket = true;  // classes 1, 4, 8, 16, 32, 64; false: every count up to 64 has its own tape
    StepLimits limits;
};

// Which tape: the whole pass, or its two halves when the host has a say in between.
enum class TapePart : int32_t { whole, forward, output };

struct TapeKind {
    TapePart part = TapePart::whole;
    OutputKind output = OutputKind::none;
    int32_t lane = 0;
};

class Runner final : public BlockMover {
  public:
    // Errors: memory that does not fit (with the numbers), the backend's.
    static Result<std::unique_ptr<Runner>> make(const Model& model, Backend& backend, ByteSource& source,
                                                const RunnerPlan& plan, const OpenObserver& observer);

    KvCache& kv() { return *kv_; }
    const KvCache& kv() const { return *kv_; }
    StatePool& states() { return *states_; }
    const StatePool& states() const { return *states_; }
    const SlotsView& slots() const { return slots_; }
    const RunnerPlan& plan() const { return plan_; }
    const ModelShape& shape() const { return model_.shape(); }
    const BackendInfo& backend() const { return backend_.info(); }
    int32_t tapes() const { return int32_t(tapes_.size()); }

    // Rows that a step of `rows` rows is recorded at.
    int32_t row_class(int32_t rows) const;
    // The tape of a bucket, weights as placed.
    Tape record(int32_t rows, TapeKind kind) const;

    // Queues a step. `outputs`: instead of the image's own list of output rows. Errors are the backend's.
    Result<Ticket> run(const StepImage& image, TapeKind kind) { return run_span(image, kind, nullptr); }
    Result<Ticket> run(const StepImage& image, TapeKind kind, const std::vector<int32_t>& outputs) {
        return run_span(image, kind, &outputs);
    }
    // Queues the copy of a page: what is queued behind it finds it there.
    Result<void> copy_page(const KvCache::Copy& copy);
    Result<Ticket> out(const BlockMove& move, Ticket after) override {
        return backend_.copy_out(move.to, move.from, after);
    }
    Result<Ticket> in(std::span<const BlockMove> moves) override;
    Ticket newest() const override { return last_; }
    Result<bool> done(Ticket ticket, bool wait) override { return backend_.done(ticket, wait); }
    HostBlock host_block(size_t bytes) override { return backend_.host_block(bytes); }
    Result<void> upload_mask(int32_t slot, std::span<const uint32_t> bits);

    // What a step has left, after waiting for it.
    Result<std::span<const Selected>> selected(Ticket ticket, int32_t lane, int32_t outputs);
    Result<std::span<const TokenLogprob>> logprobs(Ticket ticket, int32_t outputs);
    Result<std::span<const float>> output_rows(Ticket ticket, int64_t floats);  // kinds logits and hidden
    Result<void> wait(Ticket ticket);
    Result<bool> finished(Ticket ticket) { return backend_.done(ticket, false); }

  private:
    Runner(const Model& model, Backend& backend, const RunnerPlan& plan)
        : model_(model), backend_(backend), plan_(plan) {}
    using Bucket = std::pair<int32_t, TapeKind>;  // rows and kind
    std::vector<Bucket> everyday() const;
    Result<void> plan_memory(const OpenObserver& observer);
    Result<void> allocate();
    Result<void> prepare();
    Result<void> make_room(int32_t rows);
    Result<const Compiled*> compiled(int32_t rows, TapeKind kind);
    Batch batch(int32_t rows, TapeKind kind) const;
    Result<Ticket> run_span(const StepImage& image, TapeKind kind, const std::vector<int32_t>* outputs);
    template <class T>
    Result<std::span<const T>> fetch(Ticket ticket, int64_t offset, int64_t count);

    const Model& model_;
    Backend& backend_;
    RunnerPlan plan_;
    PlacedWeights weights_;
    int64_t arena_bytes_ = 0;
    Memory arena_, step_, slot_memory_, results_;
    SlotsView slots_;
    std::unique_ptr<KvCache> kv_;
    std::unique_ptr<StatePool> states_;
    int64_t logprobs_at_ = 0, rows_at_ = 0;  // byte offsets in the results
    struct Known {
        Compiled compiled;
        int64_t used = 0;  // when: a count of steps
    };
    std::map<std::tuple<int32_t, TapePart, OutputKind, int32_t>, Known> tapes_;
    int64_t uses_ = 0;
    // Images in flight: the backend may read one until its step has begun.
    struct Buffer {
        std::vector<std::byte> bytes;
        Ticket ticket;
        bool used = false;
    };
    std::vector<Buffer> ring_;
    size_t ring_next_ = 0;
    Ticket last_;                     // of the newest step, or copy in order with the steps
    std::vector<std::byte> fetched_;  // results as copied to the host
};

}  // namespace sparkinfer
