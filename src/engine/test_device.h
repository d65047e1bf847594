// test_device.h — a model and a device that compute hashes instead of numbers: thousands of times faster than
// real arithmetic, and every token depends on all that its row must see.
//
// A row's value is a hash of its token, of every KV entry before it, of the recurrent state and of the slot's
// history. So a page, state, row or record that is not what it should be changes all that follows. What a
// request should say is computed from its own tokens alone (hash_answer).
//
// Copies out run as early or as late as they may, are seen to be done later still, and some fail: what should
// have come is poison then.
#pragma once
#include <cstring>
#include <deque>
#include <functional>

#include "engine/test_model.h"

namespace sparkinfer {

constexpr uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6))) * 0xff51afd7ed558ccdull;
    return x ^ (x >> 31);
}

class HashModel final : public Model {
  public:
    static constexpr int32_t kVocab = 50, kDim = 4;

    explicit HashModel(bool recurrent) {
        shape_.architecture = recurrent ? "hash-recurrent" : "hash-attention";
        shape_.dim = kDim;
        shape_.vocab = kVocab;
        shape_.context = 4096;
        shape_.layers = 1;
        shape_.heads = 1;
        shape_.kv.push_back({nullptr, 0, 1, kDim, DType::f32});
        if (recurrent) shape_.state.push_back({nullptr, 0, 1, 1, kDim, 3 * kDim, 4});
    }

    void forward(Tape& t, const Batch& b) const override {
        const Weight norm = weight(0, 1, kDim), square = weight(1, kDim, kDim);
        const Tensor x = t.embed(weight(2, kVocab, kDim), b.rows);
        for (const StateLayer& state : b.state) {
            auto scope = t.scope();
            const Weight parts[] = {weight(3, 3 * kDim, kDim), square, norm, norm};
            const std::vector<Tensor> in = t.norm_linear(x, norm, 0, parts);
            GatedDelta op{};
            op.qkv = in[0], op.z = in[1], op.beta = in[2], op.alpha = in[3];
            op.conv = weight(4, 3 * kDim, 4), op.decay = op.dt_bias = weight(5, 1, 1), op.norm = norm;
            op.state = state;
            t.linear_add(t.gated_delta(op), square, x);
        }
        const Weight parts[] = {square, square, square};
        const std::vector<Tensor> qkv = t.norm_linear(x, norm, 0, parts);
        Attention op{};
        op.q = qkv[0], op.k = qkv[1], op.v = qkv[2];
        op.rope = {weight(6, 1, kDim / 2), kDim, RopePairs::halves, 1, {0, 0, 0}};
        op.kv = b.kv[0];
        op.heads = 1;
        t.linear_add(t.attention(op), square, x);
        t.output(x, norm, 0, weight(7, kVocab, kDim), b);
    }

  private:
    Weight weight(int which, int32_t out, int32_t in) const {
        Weight w;
        w.data = values_[which];
        w.out = out;
        w.in = in;
        return w;
    }
    float values_[8][kVocab * kDim] = {};
};

// What the last row of `tokens` chooses and reports: the device's arithmetic.
struct HashChoice {
    int32_t token;
    float logprob;
};
inline HashChoice hash_choice(uint64_t value, const Sampling& sampling, int32_t index, int32_t generated,
                              const uint32_t* mask) {
    uint64_t h = mix(mix(value, sampling.seed[0]), uint64_t(index) << 32 | uint32_t(generated));
    h = mix(h, uint64_t(sampling.stop_ids) << 8 | uint64_t(sampling.biases));
    auto token = int32_t(h % HashModel::kVocab);
    while (mask && !(mask[token / 32] >> (token % 32) & 1)) token = (token + 1) % HashModel::kVocab;
    return {token, -float(h >> 40 & 0xffff) / 1024};
}
inline float hash_logprob(uint64_t value, int32_t token) {
    return -float(mix(value, uint64_t(token)) & 0xffff) / 1024;
}

// A sequence as the device computes it, from its tokens alone.
class HashSequence {
  public:
    explicit HashSequence(bool recurrent) : recurrent_(recurrent) {}
    // Feeds a token; answers with the value of its row.
    uint64_t feed(int32_t token) {
        uint64_t row = mix(uint64_t(token), uint64_t(index_));
        if (recurrent_) row = mix(row, state_ = mix(state_, row));
        last_ = mix(last_, row);
        entries_ += mix(last_, 1);
        ++index_;
        return mix(row, entries_);
    }
    int32_t index() const { return index_; }

  private:
    bool recurrent_;
    int32_t index_ = 0;
    uint64_t state_ = 0, last_ = 0, entries_ = 0;
};

class HashDevice final : public Backend {
  public:
    // lazy: nothing runs until somebody waits.
    explicit HashDevice(bool lazy) : lazy_(lazy) {
        info_.name = "hash";
        info_.device = "none";
        info_.memory_bytes = int64_t(1) << 32;
    }
    const BackendInfo& info() const override { return info_; }
    Result<Memory> allocate(int64_t bytes, MemoryKind) override {
        if (allocations_++ == fail_allocation) return out_of_resources("an allocation has failed in a test");
        memory_.push_back(std::make_unique<std::vector<std::byte>>(size_t(bytes)));
        return Memory{memory_.back()->data(), bytes, !lazy_};
    }
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource&) override {
        return group.weights;
    }
    Result<Compiled> compile(const Tape& tape) override {
        tapes_.push_back(tape);
        return Compiled{int32_t(tapes_.size()) - 1};
    }
    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override {
        check_states_apart(StepView{step.data()});
        return later([this, id = compiled.id, step] { run(tapes_[size_t(id)], step); });
    }
    Result<Ticket> copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket) override {
        const bool block = blocks_->contains(from.data());
        return later([this, to, from, block] {
            EXPECT_TRUE(!block || blocks_->contains(from.data())) << "a block has gone before it was read";
            if (!to.empty()) memmove(to.data(), from.data(), to.size());
        });
    }
    Result<Ticket> copy_out(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) override {
        const int fate = copy_failures > 0 ? int(random() % uint32_t(copy_failures)) : -1;
        copies_failed += fate == 0 || fate == 1;
        if (fate == 0) return internal_error("a copy cannot be queued in a test");
        outs_.push_back({to, from, after.id, queued_, fate == 1});
        if (!lazy_ || random() % 2) run_outs_after(finished_);
        return Ticket{int64_t(outs_.size()), 1};
    }
    Result<void> read(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) override {
        TRY([[maybe_unused]] const bool there, done(after, true));
        memmove(to.data(), from.data(), to.size());
        return {};
    }
    HostBlock host_block(size_t bytes) override {
        auto* block = new std::byte[bytes];
        memset(block, 0xee, bytes);
        blocks_->insert(block);
        return HostBlock(block, [blocks = blocks_](std::byte* b) {
            blocks->erase(b);
            delete[] b;
        });
    }
    Result<bool> done(Ticket ticket, bool wait) override {
        if (ticket.queue == 1) return out_done(ticket.id, wait);
        if (unheard_) {
            drop_all();
            return *std::exchange(unheard_, std::nullopt);
        }
        while (wait && finished_ < ticket.id) TRY_VOID(run_one());
        return finished_ >= ticket.id;
    }

    std::minstd_rand random;  // when copies out run, are seen to be done, and fail
    int copy_failures = 0;    // of so many two fail; 0: none
    int64_t copies_failed = 0, copies_late = 0;
    int64_t fail_at = -1;          // the n-th piece of work from now fails
    int64_t fail_allocation = -1;  // the n-th allocation fails
    double clock = 0;              // s; work takes time
    double step_s = 0.001, row_s = 0.0002;

  private:
    Result<Ticket> later(std::function<void()> work) {
        queue_.push_back(std::move(work));
        ++queued_;
        if (!lazy_) TRY_VOID(run_one());
        return Ticket{queued_};
    }
    // A copy out of what the work up to `after` has left; the work behind `before` waits for it.
    struct Out {
        std::span<std::byte> to;
        std::span<const std::byte> from;
        int64_t after, before;
        bool fails;
        bool ran = false, seen = false;
    };
    void run_out(Out& out) {
        if (out.ran) return;
        CHECK(out.after <= finished_, "a copy of what is not there yet");
        EXPECT_TRUE(blocks_->contains(out.to.data())) << "a block has gone before it was written";
        if (!out.fails) memcpy(out.to.data(), out.from.data(), out.to.size());
        copies_late += finished_ > out.after;
        out.ran = true;
    }
    void run_outs_before(int64_t work) {
        for (; outs_open_ < outs_.size() && outs_[outs_open_].before < work; ++outs_open_)
            run_out(outs_[outs_open_]);
    }
    void run_outs_after(int64_t work) {
        for (size_t i = outs_open_; i < outs_.size() && outs_[i].after <= work; ++i) run_out(outs_[i]);
    }
    Result<bool> out_done(int64_t id, bool wait) {
        if (unheard_) return *unheard_;  // a device that has failed does nothing more
        const size_t at = size_t(id) - 1;
        for (size_t i = outs_open_; wait && i <= at; ++i) {
            while (finished_ < outs_[i].after) {
                const Result<void> ran = run_one();
                if (ran.ok()) continue;
                unheard_ = ran.error();  // who waits for a step must hear of it
                return *unheard_;
            }
            run_out(outs_[i]);
        }
        Out& out = outs_[at];
        out.seen = out.seen || wait || (out.ran && random() % 3 == 0);
        if (out.seen && out.fails) return internal_error("a copy has failed in a test");
        return out.seen;
    }
    // Nothing of what is queued happens.
    void drop_all() {
        queue_.clear();
        finished_ = queued_;
        for (; outs_open_ < outs_.size(); ++outs_open_) {
            Out& out = outs_[outs_open_];
            if (!out.ran) out.ran = out.fails = true;
        }
    }
    Result<void> run_one() {
        run_outs_before(finished_ + 1);
        const std::function<void()> work = std::move(queue_.front());
        queue_.pop_front();
        ++finished_;
        const bool fails = fail_at == 0;
        if (fail_at >= 0) --fail_at;
        if (fails) {
            drop_all();
            return internal_error("the device has failed in a test");
        }
        work();
        if (random() % 2) run_outs_after(finished_);
        return {};
    }

    void run(const Tape& tape, std::span<const std::byte> step) {
        memcpy(const_cast<std::byte*>(tape.step().base), step.data(), step.size());
        for (const Instr& instr : tape.instrs()) {
            switch (instr.code) {
                case OpCode::embed: embed(instr.embed); break;
                case OpCode::norm_linear:
                    for (int i = 0; i < instr.norm_linear.parts; ++i)
                        for (int r = 0; r < instr.norm_linear.x.rows(); ++r)
                            if (instr.norm_linear.y[i].cols() > 1)
                                set(instr.norm_linear.y[i], r, get(instr.norm_linear.x, r));
                    break;
                case OpCode::gated_delta: gated_delta(instr.gated_delta); break;
                case OpCode::attention: attention(instr.attention); break;
                case OpCode::linear_add:
                    for (int r = 0; r < instr.linear_add.y.rows(); ++r)
                        set(instr.linear_add.y, r,
                            mix(get(instr.linear_add.y, r), get(instr.linear_add.x, r)));
                    break;
                case OpCode::output: output(instr.output); break;
                default: CHECK(false, "an op that the model has not");
            }
        }
        const StepHeader& header = tape.step().header();
        const bool forward = !tape.instrs().empty() && tape.instrs().front().code == OpCode::embed;
        if (forward) clock += step_s + row_s * header.rows;
    }
    static uint64_t get(const Tensor& t, int r) {
        uint64_t value;
        memcpy(&value, t.row(r), sizeof value);
        return value;
    }
    static void set(const Tensor& t, int r, uint64_t value) { memcpy(t.row(r), &value, sizeof value); }

    static void embed(const Embed& op) {
        const StepView& step = op.step;
        for (int i = 0; i < step.header().changes; ++i) {
            const SlotChange& c = step.changes()[i];
            memcpy(op.slots.words(c.slot) + c.word, step.payload() + c.payload, size_t(c.count) * 4);
        }
        for (int r = 0; r < op.y.rows(); ++r) {
            const LiveRow row = live_row(step, op.slots, r);
            if (!row.present) continue;
            op.slots.history(row.slot)[row.index] = row.token;
            set(op.y, r, mix(uint64_t(row.token), uint64_t(row.index)));
        }
    }
    static void gated_delta(const GatedDelta& op) {
        const auto at = [&](int32_t state) { return op.state.states + state * op.state.state_bytes; };
        for (int i = 0; i < op.step.header().segments; ++i) {
            const Segment& s = op.step.segments()[i];
            uint64_t value = 0;
            if (s.state_in >= 0) memcpy(&value, at(s.state_in), sizeof value);
            for (int r = s.first_row; r < s.first_row + s.rows; ++r) {
                if (live_row(op.step, op.slots, r).present) set(op.y, r, value = mix(value, get(op.qkv, r)));
                for (int k = 0; k < s.saves; ++k) {
                    const Save& save = op.step.saves()[s.first_save + k];
                    if (save.row == r) memcpy(at(save.state), &value, sizeof value);
                }
            }
            if (s.state_out >= 0) memcpy(at(s.state_out), &value, sizeof value);
        }
    }
    static void attention(const Attention& op) {
        for (int r = 0; r < op.y.rows(); ++r) {
            const LiveRow row = live_row(op.step, op.slots, r);
            if (!row.present) continue;
            const int32_t* pages = op.slots.pages(row.slot);
            const auto entries = [&](int32_t page) {
                return reinterpret_cast<uint64_t*>(op.kv.pages + pages[page] * op.kv.page_bytes);
            };
            const int32_t page = row.index / kPageTokens, place = row.index % kPageTokens;
            const uint64_t before = row.index == 0 ? 0
                                    : place > 0    ? entries(page)[place - 1]
                                                   : entries(page - 1)[kPageTokens - 1];
            entries(page)[place] = mix(before, get(op.q, r));
            uint64_t sum = 0;
            for (int32_t p = 0; p <= page; ++p)
                for (int32_t e = 0; e < (p < page ? kPageTokens : place + 1); ++e)
                    sum += mix(entries(p)[e], 1);
            set(op.y, r, sum);
        }
    }
    void output(const Output& op) {
        for (int i = 0; i < op.step.header().outputs; ++i) {
            const int32_t r = op.step.outputs()[i];
            const LiveRow row = live_row(op.step, op.slots, r);
            if (op.kind == OutputKind::select)
                select(op, row, r, static_cast<Selected*>(op.results)[i]);
            else if (op.kind == OutputKind::logprobs)
                rate(op, row, r, static_cast<TokenLogprob*>(op.results)[i]);
        }
    }
    static void select(const Output& op, const LiveRow& row, int32_t r, Selected& out) {
        out = {};
        out.row = r;
        out.slot = op.step.rows()[r].slot;
        out.token = -1;
        Slot& slot = op.slots.slot(out.slot);
        out.stopped = slot.cursor.stopped;
        if (!row.present) return;
        uint64_t value = get(op.x, r);
        for (int32_t i = 0; i <= row.index; ++i)
            value += uint64_t(i + 1) * uint64_t(op.slots.history(row.slot)[i]);
        const Sampling& p = slot.sampling;
        const uint32_t* mask = p.mask < 0 ? nullptr : op.slots.masks + int64_t(p.mask) * op.slots.mask_words;
        const HashChoice choice = hash_choice(value, p, row.index, slot.cursor.generated, mask);
        out.token = choice.token;
        out.logprob = choice.logprob;
        out.tops = p.top_logprobs;
        for (int32_t t = 0; t < out.tops; ++t) out.top[t] = {t, hash_logprob(value, t)};
        Cursor& c = slot.cursor;
        c.next_token = out.token;
        c.index = row.index + 1;
        c.generated += 1;
        const int32_t* end = slot.stop_id + p.stop_ids;
        if (std::find(static_cast<const int32_t*>(slot.stop_id), end, out.token) != end)
            c.stopped = kStopToken;
        else if (c.generated >= c.limit)
            c.stopped = kStopLimit;
        out.stopped = c.stopped;
    }
    static void rate(const Output& op, const LiveRow& row, int32_t r, TokenLogprob& out) {
        out = {};
        out.row = r;
        out.target = row.present ? op.step.rows()[r].target : -1;
        if (out.target < 0) return;
        out.logprob = hash_logprob(get(op.x, r), out.target);
        out.tops = op.top;
        for (int32_t t = 0; t < out.tops; ++t) out.top[t] = {t, hash_logprob(get(op.x, r), t)};
    }

    bool lazy_;
    BackendInfo info_;
    std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
    std::deque<Tape> tapes_;
    std::deque<std::function<void()>> queue_;
    int64_t queued_ = 0, finished_ = 0, allocations_ = 0;
    std::vector<Out> outs_;
    size_t outs_open_ = 0;          // those before it have run
    std::optional<Error> unheard_;  // of a step
    std::shared_ptr<std::set<const std::byte*>> blocks_ = std::make_shared<std::set<const std::byte*>>();
};

// What a request says, and the log-probabilities of its prompt.
struct HashAnswer {
    EngineAnswer answer;
    std::vector<Said> prompt;
};
inline HashAnswer hash_answer(bool recurrent, const Request& r, int32_t context) {
    HashAnswer a;
    HashSequence sequence(recurrent);
    Sampling p{};
    p.seed[0] = uint32_t(r.sampling.seed);
    p.stop_ids = int32_t(r.stop_tokens.size());
    p.biases = int32_t(r.sampling.logit_bias.size());
    uint64_t value = 0, history = 0;
    const auto feed = [&](int32_t token) {
        history += uint64_t(sequence.index() + 1) * uint64_t(token);
        // The tape: x is the row's value, to which each layer's output is mixed in.
        value = sequence.feed(token);
    };
    const auto size = int32_t(r.prompt.size());
    for (int32_t i = 0; i < size; ++i) {
        feed(raw(r.prompt[size_t(i)]));
        if (r.prompt_logprobs < 0 || i + 1 == size) continue;
        const TokenId next = r.prompt[size_t(i) + 1];
        Said& said = a.prompt.emplace_back();
        said.token = next;
        said.logprobs.push_back(hash_logprob(value, raw(next)));
        for (int32_t t = 0; t < r.prompt_logprobs; ++t) {
            said.logprobs.push_back(float(t));
            said.logprobs.push_back(hash_logprob(value, t));
        }
    }
    const int32_t room = context - size;
    const int32_t limit = r.max_tokens < 0 ? room : std::min(r.max_tokens, room);
    a.answer.finish = FinishReason::length;
    for (int32_t n = 0; n < limit; ++n) {
        std::vector<uint32_t> mask(2, ~0u);
        const bool masked = n < r.min_tokens && !r.stop_tokens.empty();
        if (masked)
            for (TokenId stop : r.stop_tokens) mask[size_t(raw(stop)) / 32] &= ~(1u << raw(stop) % 32);
        const uint64_t chosen = value + history;
        const HashChoice choice = hash_choice(chosen, p, size + n - 1, n, masked ? mask.data() : nullptr);
        const auto token = TokenId(choice.token);
        if (std::count(r.stop_tokens.begin(), r.stop_tokens.end(), token)) {
            a.answer.finish = FinishReason::stop;
            break;
        }
        Said& said = a.answer.said.emplace_back();
        said.token = token;
        if (r.logprobs >= 0) said.logprobs.push_back(choice.logprob);
        for (int32_t t = 0; t < r.logprobs; ++t) {
            said.logprobs.push_back(float(t));
            said.logprobs.push_back(hash_logprob(chosen, t));
        }
        feed(choice.token);
    }
    return a;
}

}  // namespace sparkinfer
