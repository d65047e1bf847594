// tape.h — a forward pass written down: a straight list of fully bound instructions.
//
// Recording computes nothing and allocates nothing but offsets: temporaries are carved from one arena and die
// with their scope. Record once on a null arena to learn its size (`arena_bytes`), then again on real memory;
// or give a backend's eager hook and each op runs as it is recorded.
#pragma once
#include <functional>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "ops/ops.h"

namespace sparkinfer {

// What a model's forward needs to know about the step being recorded, beyond the tape itself.
struct Batch {
    int32_t rows = 0;               // T: rows of the bucket
    std::vector<KvLayer> kv;        // one an attention layer, in layer order
    std::vector<StateLayer> state;  // one a recurrent layer, in layer order
    OutputKind output = OutputKind::none;
    int32_t outputs = 0;        // most rows that may want output
    int32_t top = 0;            // kind logprobs: alternatives
    void* results = nullptr;    // [outputs] Selected or TokenLogprob
    float* rows_out = nullptr;  // kinds logits and hidden: [outputs, V or D]
};

struct SharedExpert {
    Tensor gate, up;  // [T, Fs]
    Tensor scalar;    // [T, 1] or empty
    Weight down;      // [D, Fs]
};

class Tape {
  public:
    // step, slots: where the images will lie. arena: null for a dry recording.
    Tape(StepView step, SlotsView slots, std::byte* arena) : step_(step), slots_(slots), arena_(arena) {}

    // --- the vocabulary; ops.h says what each means
    // ------------------------------------------------------------
    Tensor embed(const Weight& table, int32_t rows);  // [T, D]
    // Outputs [T, out_i], one a part. REQUIRES: 1 ≤ parts ≤ kMaxParts.
    std::vector<Tensor> norm_linear(const Tensor& x, const Weight& norm, float eps,
                                    std::span<const Weight> parts);
    void linear_add(const Tensor& x, const Weight& w, const Tensor& y);  // y [T, out]
    Tensor linear_glu(const Tensor& x, const Weight& norm, float eps, const Weight& gate,
                      const Weight& up);  // [T, F]
    Tensor attention(Attention op);       // give all but step, slots and y; returns y [T, H·d]
    Tensor gated_delta(GatedDelta op);    // give all but step, slots and y; returns y [T, n_v·128]
    Tensor moe_glu(const Tensor& x, const Weight& norm, float eps, const Tensor& logits, const Router& router,
                   const Weight& gate, const Weight& up);  // [T, K, F]
    void moe_down_add(const Tensor& h, const Tensor& logits, const Router& router, const Weight& down,
                      const SharedExpert& shared, const Tensor& x);  // x [T, D]
    void output(const Tensor& x, const Weight& norm, float eps, const Weight& head, const Batch& batch);

    // --- memory
    // --------------------------------------------------------------------------------------------------
    struct Scope {
        Tape& tape;
        int64_t mark;
        explicit Scope(Tape& t) : tape(t), mark(t.used_) {}
        Scope(const Scope&) = delete;
        ~Scope() { tape.used_ = mark; }
    };
    [[nodiscard]] Scope scope() { return Scope(*this); }  // temporaries made inside die with it

    // Called with each instruction as it is recorded: an eager backend, a tracer.
    void on_record(std::function<void(const Instr&)> hook) { hook_ = std::move(hook); }

    const std::vector<Instr>& instrs() const { return instrs_; }
    std::vector<Instr>& instrs() { return instrs_; }
    int64_t arena_bytes() const { return peak_; }
    const StepView& step() const { return step_; }
    const SlotsView& slots() const { return slots_; }

  private:
    template <class Op>
    void add(const Op& op) {
        instrs_.emplace_back(op);
        if (hook_) hook_(instrs_.back());
    }
    Tensor temporary(std::initializer_list<int32_t> shape);

    StepView step_;
    SlotsView slots_;
    std::byte* arena_;
    int64_t used_ = 0, peak_ = 0;
    std::vector<Instr> instrs_;
    std::function<void(const Instr&)> hook_;
};

// Shape checks by symbol: a name binds a size at its first use and must agree after.
//     Shapes s("linear_add"); s.expect(x, {"T", "in"}); s.expect(w, {"out", "in"});
class Shapes {
  public:
    explicit Shapes(const char* op) : op_(op) {}
    void expect(const Tensor& t, std::initializer_list<const char*> dims);
    void expect(const Weight& w,
                std::initializer_list<const char*> dims);  // {"out","in"} or {"E","out","in"}
    void bind(const char* name, int64_t size);

  private:
    const char* op_;
    std::vector<std::pair<std::string_view, int64_t>> bound_;
};

}  // namespace sparkinfer
