#include "engine/runner.h"

#include <algorithm>
#include <set>

namespace sparkinfer {
namespace {

constexpr int32_t kClasses[] = {1, 4, 8, 16, 32, 64};
constexpr int32_t kShortPrompt = 512;  // rows
constexpr int64_t align_64_bytes(int64_t n) { return (n + 63) / 64 * 64; }

int64_t mask_words(const ModelShape& shape) { return (int64_t(shape.vocab) + 31) / 32; }

int64_t slots_bytes(const RunnerPlan& plan, const ModelShape& shape) {
    return align_64_bytes(plan.slots * slot_bytes(pages_for(plan.context), plan.context)) +
           plan.slots * mask_words(shape) * 4;
}

int64_t selected_bytes(const RunnerPlan& plan) {
    return align_64_bytes(plan.slots * int64_t(sizeof(Selected)));
}

int64_t logprob_bytes(const RunnerPlan& plan) {
    return align_64_bytes(plan.rows * int64_t(sizeof(TokenLogprob)));
}

int64_t row_region_bytes(const ModelShape& shape) {
    return int64_t(kLogitRows) * std::max(shape.vocab, shape.dim) * 4;
}

int64_t results_bytes(const RunnerPlan& plan, const ModelShape& shape) {
    return plan.lanes * selected_bytes(plan) + logprob_bytes(plan) + row_region_bytes(shape);
}

// What a model takes of a backend, given what weights and kernels need there.
MemoryPlan memory_plan(const RunnerPlan& plan, const ModelShape& shape, const BackendInfo& info,
                       const MemoryNeed& need, int64_t arena) {
    MemoryPlan m;
    m.backend = info.name;
    m.context = plan.context;
    m.sequences = plan.slots;
    m.weights = need.weights;
    m.staging = need.staging;
    m.kv = plan.pages * KvCache::page_bytes(shape.kv, info.kv_type);
    m.state = plan.states * StatePool::slot_bytes(shape.state, info.state_type);
    m.arena = arena;
    m.scratch = need.scratch;
    m.graphs = need.graphs;
    m.rest = slots_bytes(plan, shape) + StepImage::bytes_for(plan.limits) + results_bytes(plan, shape);
    m.available = need.available;
    return m;
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::make(const Model& model, Backend& backend, ByteSource& source,
                                             const RunnerPlan& plan, const OpenObserver& observer) {
    std::unique_ptr<Runner> runner(new Runner(model, backend, plan));
    TRY_VOID(runner->plan_memory(observer));
    Tape dry({}, {}, nullptr);
    model.forward(dry, runner->batch(1, {TapePart::whole, OutputKind::select, 0}));
    TRY_VOID(runner->weights_.place(dry, backend, source, observer.placed));
    TRY_VOID(runner->allocate());
    if (plan.pad_to_bucket) TRY_VOID(runner->prepare());
    return runner;
}

// Refuses before anything is taken.
Result<void> Runner::plan_memory(const OpenObserver& observer) {
    // The most that any tape needs: the largest step with the greediest output. The first has all weights.
    std::vector<Bucket> buckets;
    for (OutputKind kind : {OutputKind::select, OutputKind::none, OutputKind::logprobs, OutputKind::logits})
        buckets.push_back({row_class(plan_.rows), {TapePart::whole, kind, 0}});
    if (plan_.pad_to_bucket)
        for (const Bucket& bucket : everyday()) buckets.push_back(bucket);
    std::vector<Tape> tapes;
    for (const auto& [rows, kind] : buckets) {
        tapes.emplace_back(StepView{}, SlotsView{}, nullptr);
        model_.forward(tapes.back(), batch(rows, kind));
        arena_bytes_ = std::max(arena_bytes_, tapes.back().arena_bytes());
    }
    TRY(const MemoryNeed need, backend_.plan(PlacedWeights::groups(tapes.front()), tapes));
    const auto at_context = [&](int32_t context) {
        RunnerPlan plan = plan_;
        plan.context = context;
        plan.pages = std::min(plan.pages, plan.slots * pages_for(context));
        return memory_plan(plan, shape(), backend_.info(), need, arena_bytes_);
    };
    const MemoryPlan plan = memory_plan(plan_, shape(), backend_.info(), need, arena_bytes_);
    TRY_VOID(check_memory(plan, at_context));
    if (observer.planned) observer.planned(plan);
    return {};
}

Result<void> Runner::allocate() {
    const ModelShape& shape = model_.shape();
    const DType kv_type = backend_.info().kv_type, state_type = backend_.info().state_type;
    const auto take = [&](int64_t bytes, MemoryKind kind) -> Result<Memory> {
        if (bytes == 0) return Memory{};
        return backend_.allocate(bytes, kind);
    };
    TRY(arena_, take(arena_bytes_, MemoryKind::arena));
    TRY(const Memory kv, take(plan_.pages * KvCache::page_bytes(shape.kv, kv_type), MemoryKind::kv));
    kv_ = std::make_unique<KvCache>(shape.kv, kv_type, kv, plan_.pages);
    TRY(const Memory state,
        take(plan_.states * StatePool::slot_bytes(shape.state, state_type), MemoryKind::state));
    states_ = std::make_unique<StatePool>(shape.state, state_type, state, plan_.states);
    TRY(slot_memory_, take(slots_bytes(plan_, shape), MemoryKind::slots));
    TRY(step_, take(StepImage::bytes_for(plan_.limits), MemoryKind::step));
    TRY(results_, take(results_bytes(plan_, shape), MemoryKind::results));
    logprobs_at_ = plan_.lanes * selected_bytes(plan_);
    rows_at_ = logprobs_at_ + logprob_bytes(plan_);
    slots_.base = slot_memory_.data;
    slots_.max_pages = pages_for(plan_.context);
    slots_.max_tokens = plan_.context;
    slots_.stride = slot_bytes(slots_.max_pages, slots_.max_tokens);
    slots_.count = plan_.slots;
    slots_.mask_words = int32_t(mask_words(shape));
    slots_.masks =
        reinterpret_cast<uint32_t*>(slot_memory_.data + align_64_bytes(plan_.slots * slots_.stride));
    ring_.resize(size_t(plan_.lanes) * 2 + 2);
    for (Buffer& b : ring_) b.bytes.resize(size_t(StepImage::bytes_for(plan_.limits)));
    return {};
}

// The buckets of the everyday step.
std::vector<Runner::Bucket> Runner::everyday() const {
    std::vector<Bucket> buckets;
    for (int32_t rows : kClasses) {
        if (rows > row_class(plan_.rows)) break;
        buckets.push_back({rows, {}});
        for (int32_t lane = 0; lane < plan_.lanes / 2; ++lane)
            buckets.push_back({rows, {TapePart::whole, OutputKind::select, lane}});
    }
    return buckets;
}

// Compiles them, and those of a short and of the longest piece of a prompt, whose kernels most others share:
// so the first requests do not pay for it.
Result<void> Runner::prepare() {
    std::vector<Bucket> buckets = everyday();
    const int32_t chunk = plan_.rows - plan_.slots;
    for (int32_t rows : std::set<int32_t>{std::min(kShortPrompt, chunk), chunk}) {
        if (rows <= kClasses[5]) continue;
        buckets.push_back({row_class(rows), {}});
        for (int32_t lane = 0; lane < plan_.lanes / 2; ++lane)
            buckets.push_back({row_class(rows), {TapePart::whole, OutputKind::select, lane}});
    }
    for (const auto& [rows, kind] : buckets) {
        TRY([[maybe_unused]] const Compiled* tape, compiled(rows, kind));
    }
    return {};
}

int32_t Runner::row_class(int32_t rows) const {
    CHECK(rows > 0, "a step of {} rows", rows);
    // Above 64, multiples of 8 bound the number of tapes; the few absent rows cost at most an eighth.
    if (rows > 64) return (rows + 7) / 8 * 8;
    if (!plan_.pad_to_bucket) return rows;
    return *std::lower_bound(std::begin(kClasses), std::end(kClasses), rows);
}

Batch Runner::batch(int32_t rows, TapeKind kind) const {
    Batch b;
    b.rows = rows;
    b.kv = kv_ ? kv_->layers() : shape().kv;
    for (KvLayer& layer : b.kv) layer.dtype = backend_.info().kv_type;
    b.state = states_ ? states_->layers() : shape().state;
    for (StateLayer& layer : b.state) layer.dtype = backend_.info().state_type;
    b.output = kind.part == TapePart::forward ? OutputKind::none : kind.output;
    // Null while memory is planned: nothing is allocated then.
    const auto result_at = [&](int64_t offset) { return results_.data ? results_.data + offset : nullptr; };
    switch (b.output) {
        case OutputKind::none: break;
        case OutputKind::select:
            b.outputs = std::min(rows, plan_.slots);
            b.results = result_at(kind.lane * selected_bytes(plan_));
            break;
        case OutputKind::logprobs:
            b.outputs = std::min(rows, plan_.rows);
            b.top = plan_.top;
            b.results = result_at(logprobs_at_);
            break;
        case OutputKind::logits:
        case OutputKind::hidden:
            b.outputs = std::min(rows, kLogitRows);
            b.rows_out = reinterpret_cast<float*>(result_at(rows_at_));
            break;
    }
    return b;
}

Tape Runner::record(int32_t rows, TapeKind kind) const {
    Tape tape(StepView{step_.data}, slots_, arena_.data);
    model_.forward(tape, batch(rows, kind));
    if (kind.part == TapePart::output) {
        // The same recording up to the final rows: they lie where the forward half has left them.
        CHECK(!tape.instrs().empty() && tape.instrs().back().code == OpCode::output,
              "a tape that does not end in output");
        tape.instrs().erase(tape.instrs().begin(), tape.instrs().end() - 1);
    }
    weights_.bind(tape);
    return tape;
}

Result<const Compiled*> Runner::compiled(int32_t rows, TapeKind kind) {
    const auto key = std::tuple(rows, kind.part, kind.output, kind.lane);
    auto found = tapes_.find(key);
    if (found == tapes_.end()) {
        TRY_VOID(make_room(rows));
        TRY(const Compiled made, backend_.compile(record(rows, kind)));
        found = tapes_.emplace(key, Known{made}).first;
    }
    found->second.used = ++uses_;
    return &found->second.compiled;
}

// A server sees steps of every length: of as large tapes the one that was not used for longest goes. Small
// ones that are padded are few, and stay.
Result<void> Runner::make_room(int32_t rows) {
    const bool large = rows > kClasses[5];
    if (!large && plan_.pad_to_bucket) return {};
    const auto alike = [&](const auto& known) { return (std::get<0>(known.first) > kClasses[5]) == large; };
    if (std::count_if(tapes_.begin(), tapes_.end(), alike) < (large ? kLargeTapes : kSmallTapes)) return {};
    auto oldest = tapes_.end();
    for (auto it = tapes_.begin(); it != tapes_.end(); ++it)
        if (alike(*it) && (oldest == tapes_.end() || it->second.used < oldest->second.used)) oldest = it;
    TRY_VOID(wait(last_));
    backend_.release(oldest->second.compiled);
    tapes_.erase(oldest);
    return {};
}

Result<Ticket> Runner::run_span(const StepImage& image, TapeKind kind, const std::vector<int32_t>* outputs) {
    if (kind.part == TapePart::forward) kind.output = OutputKind::none, kind.lane = 0;
    if (kind.output == OutputKind::none && kind.part == TapePart::forward) kind.part = TapePart::whole;
    TRY(const Compiled* tape, compiled(row_class(image.rows()), kind));
    Buffer& buffer = ring_[ring_next_];
    ring_next_ = (ring_next_ + 1) % ring_.size();
    if (buffer.used) TRY_VOID(wait(buffer.ticket));
    const auto bytes = outputs ? image.write(buffer.bytes, *outputs) : image.write(buffer.bytes);
    TRY(buffer.ticket, backend_.execute(*tape, bytes));
    buffer.used = true;
    last_ = buffer.ticket;
    return buffer.ticket;
}

Result<void> Runner::copy_page(const KvCache::Copy& copy) {
    TRY(last_, backend_.copy(copy.to, copy.from, last_));
    return {};
}

Result<Ticket> Runner::in(std::span<const BlockMove> moves) {
    for (const BlockMove& move : moves) {
        TRY(last_, backend_.copy(move.to, move.from, last_));
    }
    return last_;
}

Result<void> Runner::upload_mask(int32_t slot, std::span<const uint32_t> bits) {
    auto* row = reinterpret_cast<std::byte*>(slots_.masks + int64_t(slot) * slots_.mask_words);
    TRY(const Ticket ticket, backend_.copy({row, bits.size_bytes()}, std::as_bytes(bits), Ticket{}));
    return wait(ticket);
}

Result<void> Runner::wait(Ticket ticket) {
    TRY(const bool done, backend_.done(ticket, true));
    CHECK(done, "waiting for ticket {} has not waited", ticket.id);
    return {};
}

template <class T>
Result<std::span<const T>> Runner::fetch(Ticket ticket, int64_t offset, int64_t count) {
    const std::span<const std::byte> from(results_.data + offset, size_t(count) * sizeof(T));
    CHECK(offset + int64_t(from.size()) <= results_.bytes, "results of {} bytes at {} of {}", from.size(),
          offset, results_.bytes);
    TRY_VOID(wait(ticket));
    if (results_.host) return std::span(reinterpret_cast<const T*>(from.data()), size_t(count));
    fetched_.resize(std::max(fetched_.size(), from.size()));
    TRY_VOID(backend_.read(std::span(fetched_.data(), from.size()), from, ticket));
    return std::span(reinterpret_cast<const T*>(fetched_.data()), size_t(count));
}

Result<std::span<const Selected>> Runner::selected(Ticket ticket, int32_t lane, int32_t outputs) {
    return fetch<Selected>(ticket, lane * selected_bytes(plan_), outputs);
}
Result<std::span<const TokenLogprob>> Runner::logprobs(Ticket ticket, int32_t outputs) {
    return fetch<TokenLogprob>(ticket, logprobs_at_, outputs);
}
Result<std::span<const float>> Runner::output_rows(Ticket ticket, int64_t floats) {
    return fetch<float>(ticket, rows_at_, floats);
}

}  // namespace sparkinfer
