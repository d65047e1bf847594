// live_engine.h — the engine itself: steps queued and collected, events, kept points. Private to src/engine.
//
// step() queues up to `depth` steps and collects the oldest. A queued row takes its token from the cursor, so
// the host need not know it. Rows queued behind an end token are absent on the device; rows behind a stop
// that only the host sees are taken back (Scheduler::void_rows).
#pragma once
#include "engine/request_check.h"
#include "engine/runner.h"
#include "engine/scheduler.h"

namespace sparkinfer {

// What the engine decides for itself; tests set it.
struct EngineTuning {
    int32_t pipeline = 0;  // steps queued at once, 1 … 4; 0: a second one whenever the device is still busy
    double mixed_step_ms = 50;  // aim for a step that holds decode rows and prompt rows; 0: no aim
    int32_t mask_threads = 2;
    std::optional<bool> pad_to_bucket = std::nullopt;  // as RunnerPlan; none: what the backend asks for
    bool keep_finished = false;                        // keep a snapshot of each sequence as it ends
    const double* clock = nullptr;                     // seconds; null: the steady clock
};

class LiveEngine final : public Engine {
  public:
    // `checkpoint` may be null: then every weight of the model is plain memory.
    static Result<std::unique_ptr<LiveEngine>> make(std::unique_ptr<Checkpoint> checkpoint,
                                                    std::unique_ptr<Model> model, Backend& backend,
                                                    const EngineOptions& options, const EngineTuning& tuning,
                                                    const OpenObserver& observer);

    ~LiveEngine() override;
    const Metadata& metadata() const override { return metadata_; }
    const ModelShape& shape() const override { return model_->shape(); }
    const EngineOptions& options() const override { return options_; }
    Result<RequestId> submit(Request request) override;
    Result<void> check(const Request& request) const override;
    EngineStats stats() const override;
    Result<void> save_cache(const std::string& path) override;
    Result<void> load_cache(const std::string& path) override;
    void cancel(RequestId request) override;
    bool idle() const override;
    Result<std::vector<Event>> step() override;
    PrefillProgress prefill_progress(RequestId request) const override;
    Result<void> score(const ScoreRequest& request) override;
    Tape record(int32_t rows, OutputKind kind) const override;

    // --- kept points (each waits for the steps in flight first; what they bring comes with the next step())
    // ---------- The sequence as it is now. The caller drops it.
    Result<SnapshotId> keep(RequestId request);
    void drop(SnapshotId id) { scheduler_->drop(id); }
    const Snapshot* snapshot(SnapshotId id) const { return scheduler_->find(id); }
    // A second sequence that goes on from the same point with the same parameters.
    Result<RequestId> fork(RequestId request);
    // Back to a kept point of the same sequence; of its tokens the first `tokens` stay, the rest is chosen
    // again. Errors: the point is no proper beginning of what stays, or `tokens` cuts into the prompt.
    Result<void> undo(RequestId request, SnapshotId point, int32_t tokens);
    // A request whose prompt begins with the tokens of a kept point, which are not fed again.
    Result<RequestId> submit_from(SnapshotId point, Request request);
    // Like submit(), and keeps snapshots at multiples of `every` (a multiple of 64) prompt tokens.
    Result<RequestId> submit_saving(Request request, int32_t every);
    // Of a request, ended or not; the caller drops them. They do not outlive a failure of the device.
    std::vector<SnapshotId> saves(RequestId request) const;
    // The point at which an ended request stood (EngineTuning::keep_finished).
    std::optional<SnapshotId> finished_point(RequestId request) const;

    // --- verification of drafted tokens
    // ------------------------------------------------------------------------------ Feeds the newest token
    // and `draft` behind it, logged in the recurrent state, not folded. Answers with the logits after each of
    // these rows, [1 + draft, V]. accept() must follow before the next step.
    Result<std::vector<float>> verify(RequestId request, std::span<const TokenId> draft);
    // Keeps the first `rows` of the verified rows (0: none). With rows > 0 the tokens they fed stay and
    // `next` is the token chosen after the last of them.
    Result<void> accept(RequestId request, int32_t rows, TokenId next);

    // Log-probability of each token but the first, and alternatives. REQUIRES: idle().
    Result<std::vector<TokenLogprob>> score_logprobs(std::span<const TokenId> tokens);

    // Errors: the device's; the next step() ends everything with it.
    Result<void> drain();  // collects everything in flight; events come with the next step()
    void check_integrity() const { scheduler_->check_integrity(); }
    const Runner& runner() const { return *runner_; }
    const Scheduler& scheduler() const { return *scheduler_; }

  private:
    explicit LiveEngine(const EngineTuning& tuning) : tuning_(tuning), mask_pool_(tuning.mask_threads) {}
    Result<void> advance();
    Result<void> collect_all();
    Result<void> fill();
    Result<void> launch(Flight flight);
    Result<void> queue(Flight& flight);
    Result<void> finish_select(Flight& flight);
    Result<void> collect();
    Result<std::vector<Selected>> results(Flight& flight);
    void deliver(const FlightSegment& segment, const Selected* chosen);
    void end_all();
    void relieve();
    void ask_mask(Sequence& sequence, std::optional<TokenId> advance, int32_t rollback);
    void finish(Sequence& sequence, Event event);
    void announce();
    int32_t mixed_rows() const;
    double now() const;
    void make_cache(int32_t checkpoints);
    uint64_t identity() const;
    Result<void> score_prompts(Flight& flight);
    std::vector<int32_t> points_of(const Request& request) const;
    std::unique_ptr<Sequence> new_sequence(Request request);
    Result<Sequence*> running(RequestId request);
    using RowBlock = std::function<Result<void>(Ticket ticket, int32_t first, int32_t rows)>;
    Result<void> run_alone(std::span<const TokenId> tokens, OutputKind kind, int32_t first,
                           const RowBlock& block);
    Result<void> run_chunk(Sequence& sequence, OutputKind kind, int32_t first, const RowBlock& block);

    Metadata metadata_;
    std::unique_ptr<Checkpoint> checkpoint_;
    std::unique_ptr<Model> model_;
    EngineOptions options_;
    EngineTuning tuning_;
    std::unique_ptr<Runner> runner_;
    std::unique_ptr<PrefixCache> cache_;  // null: off
    std::unique_ptr<Scheduler> scheduler_;
    int32_t depth_ = 1;
    int64_t next_request_ = 1, launched_ = 0;
    double collected_at_ = 0;   // s; the newest collected step
    double prefill_row_s_ = 0;  // measured; 0: not yet
    std::vector<Event> events_;
    std::optional<Error> failed_;  // between two steps; the next one tells
    EngineStats counts_;           // those that only grow, and of the last step
    struct Verified {
        RequestId request;
        std::vector<TokenId> tokens;  // that the rows fed
        int32_t fed;                  // rows before them
    };
    std::optional<Verified> verified_;
    std::map<RequestId, SnapshotId> finished_;            // kept points of ended requests …
    std::map<RequestId, std::vector<SnapshotId>> saved_;  // … and their saves
    MaskPool mask_pool_;
};

}  // namespace sparkinfer
