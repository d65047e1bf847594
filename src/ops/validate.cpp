#include "ops/validate.h"

#include <algorithm>

namespace sparkinfer {

namespace {

enum class Access { read, write, update };  // update: read, then written in place

// for_each_tensor(op, f): f(name, tensor, access) for every activation operand, inputs first. Empty ones too.
template <class F>
void for_each_tensor(const Embed& o, F&& f) {
    f("y", o.y, Access::write);
}
template <class F>
void for_each_tensor(const NormLinear& o, F&& f) {
    f("x", o.x, Access::read);
    for (int i = 0; i < std::clamp(o.parts, 0, kMaxParts); ++i) f("y", o.y[i], Access::write);
}
template <class F>
void for_each_tensor(const LinearAdd& o, F&& f) {
    f("x", o.x, Access::read);
    f("y", o.y, Access::update);
}
template <class F>
void for_each_tensor(const LinearGlu& o, F&& f) {
    f("x", o.x, Access::read);
    f("y", o.y, Access::write);
}
template <class F>
void for_each_tensor(const Attention& o, F&& f) {
    f("q", o.q, Access::read);
    f("k", o.k, Access::read);
    f("v", o.v, Access::read);
    f("y", o.y, Access::write);
}
template <class F>
void for_each_tensor(const GatedDelta& o, F&& f) {
    f("qkv", o.qkv, Access::read);
    f("z", o.z, Access::read);
    f("beta", o.beta, Access::read);
    f("alpha", o.alpha, Access::read);
    f("y", o.y, Access::write);
}
template <class F>
void for_each_tensor(const MoeGlu& o, F&& f) {
    f("x", o.x, Access::read);
    f("logits", o.logits, Access::read);
    f("y", o.y, Access::write);
}
template <class F>
void for_each_tensor(const MoeDownAdd& o, F&& f) {
    f("h", o.h, Access::read);
    f("logits", o.logits, Access::read);
    f("shared_gate", o.shared_gate, Access::read);
    f("shared_up", o.shared_up, Access::read);
    f("shared_scalar", o.shared_scalar, Access::read);
    f("x", o.x, Access::update);
}
template <class F>
void for_each_tensor(const Output& o, F&& f) {
    f("x", o.x, Access::read);
    f("scratch", o.scratch,
      Access::write);  // `rows` lies outside of the arena: the reader of the results owns it
}

// Collects the shapes of one instruction; the first disagreement is kept.
class Agreement {
  public:
    void bind(const char* name, int64_t size) {
        for (const auto& [bound, known] : bound_) {
            if (bound != name) continue;
            if (known != size) fail(fmt::format("{} is {} here and {} before", name, size, known));
            return;
        }
        bound_.emplace_back(name, size);
    }
    void tensor(const char* what, const Tensor& t, std::initializer_list<const char*> dims) {
        if (t.rank != dims.size())
            return fail(fmt::format("{} has {} dimensions, expected {}", what, t.rank, dims.size()));
        int i = 0;
        for (const char* name : dims) bind(name, t.shape[i++]);
    }
    void weight(const char* what, const Weight& w, const char* out, const char* in) {
        if (!w.data) return fail(fmt::format("weight {} is missing", what));
        if (w.experts != 1)
            return fail(fmt::format("weight {} has {} experts, expected a matrix", what, w.experts));
        bind(out, w.out);
        bind(in, w.in);
    }
    void optional_weight(const char* what, const Weight& w, const char* out, const char* in) {
        if (w.data) weight(what, w, out, in);
    }
    void experts(const char* what, const Weight& w, const char* out, const char* in) {
        if (!w.data) return fail(fmt::format("weight {} is missing", what));
        bind("E", w.experts);
        bind(out, w.out);
        bind(in, w.in);
    }
    void require(bool holds, const char* what) {
        if (!holds) fail(what);
    }
    void fail(std::string what) {
        if (wrong_.empty()) wrong_ = std::move(what);
    }
    const std::string& wrong() const { return wrong_; }

  private:
    std::vector<std::pair<std::string_view, int64_t>> bound_;
    std::string wrong_;
};

void shapes(const Embed& o, Agreement& a) {
    a.tensor("y", o.y, {"T", "D"});
    a.weight("table", o.table, "V", "D");
}
void shapes(const NormLinear& o, Agreement& a) {
    a.require(o.parts >= 1 && o.parts <= kMaxParts, "parts is out of range");
    a.tensor("x", o.x, {"T", "D"});
    a.bind("one", 1);
    a.weight("norm", o.norm, "one", "D");
    static constexpr const char* kOut[kMaxParts] = {"out 0", "out 1", "out 2", "out 3"};
    for (int i = 0; i < std::clamp(o.parts, 0, kMaxParts); ++i) {
        a.weight("w", o.w[i], kOut[i], "D");
        a.tensor("y", o.y[i], {"T", kOut[i]});
    }
}
void shapes(const LinearAdd& o, Agreement& a) {
    a.tensor("x", o.x, {"T", "in"});
    a.weight("w", o.w, "out", "in");
    a.tensor("y", o.y, {"T", "out"});
}
void shapes(const LinearGlu& o, Agreement& a) {
    a.tensor("x", o.x, {"T", "D"});
    a.bind("one", 1);
    a.weight("norm", o.norm, "one", "D");
    a.weight("gate", o.gate, "F", "D");
    a.weight("up", o.up, "F", "D");
    a.tensor("y", o.y, {"T", "F"});
}
void shapes(const Attention& o, Agreement& a) {
    const int64_t d = o.kv.width;
    a.require(o.kv.heads > 0 && d > 0 && o.heads > 0 && o.heads % o.kv.heads == 0,
              "query heads are no multiple of key/value heads");
    a.bind("Hq", o.heads * d * (o.gated ? 2 : 1));
    a.bind("Gd", o.kv.heads * d);
    a.bind("Hd", o.heads * d);
    a.bind("d", d);
    a.bind("one", 1);
    a.tensor("q", o.q, {"T", "Hq"});
    a.tensor("k", o.k, {"T", "Gd"});
    a.tensor("v", o.v, {"T", "Gd"});
    a.optional_weight("q_norm", o.q_norm, "one", "d");
    a.optional_weight("k_norm", o.k_norm, "one", "d");
    a.bind("pairs", o.rope.dims / 2);
    a.weight("rope.frequency", o.rope.frequency, "one", "pairs");
    a.require(o.rope.dims % 2 == 0 && o.rope.dims <= d, "rotary dimensions do not fit the head");
    a.tensor("y", o.y, {"T", "Hd"});
}
void shapes(const GatedDelta& o, Agreement& a) {
    const StateLayer& l = o.state;
    a.require(l.key_heads > 0 && l.value_heads > 0 && l.value_heads % l.key_heads == 0,
              "value heads are no multiple of key heads");
    a.bind("channels", (2 * int64_t(l.key_heads) + l.value_heads) * l.width);
    a.bind("channels", l.channels);
    a.bind("values", int64_t(l.value_heads) * l.width);
    a.bind("heads", l.value_heads);
    a.bind("taps", l.taps);
    a.bind("width", l.width);
    a.bind("one", 1);
    a.tensor("qkv", o.qkv, {"T", "channels"});
    a.tensor("z", o.z, {"T", "values"});
    a.tensor("beta", o.beta, {"T", "heads"});
    a.tensor("alpha", o.alpha, {"T", "heads"});
    a.weight("conv", o.conv, "channels", "taps");
    a.weight("decay", o.decay, "one", "heads");
    a.weight("dt_bias", o.dt_bias, "one", "heads");
    a.weight("norm", o.norm, "one", "width");
    a.tensor("y", o.y, {"T", "values"});
}
void shapes(const MoeGlu& o, Agreement& a) {
    a.bind("one", 1);
    a.tensor("x", o.x, {"T", "D"});
    a.weight("norm", o.norm, "one", "D");
    a.tensor("logits", o.logits, {"T", "E"});
    a.optional_weight("router.bias", o.router.bias, "one", "E");
    a.experts("gate", o.gate, "F", "D");
    a.experts("up", o.up, "F", "D");
    a.require(o.router.top_k >= 1 && o.router.top_k <= o.gate.experts,
              "more experts are used than there are");
    a.bind("K", o.router.top_k);
    a.tensor("y", o.y, {"T", "K", "F"});
}
void shapes(const MoeDownAdd& o, Agreement& a) {
    a.bind("one", 1);
    a.bind("K", o.router.top_k);
    a.tensor("h", o.h, {"T", "K", "F"});
    a.tensor("logits", o.logits, {"T", "E"});
    a.optional_weight("router.bias", o.router.bias, "one", "E");
    a.experts("down", o.down, "D", "F");
    a.tensor("x", o.x, {"T", "D"});
    if (o.shared_down.data) {
        a.tensor("shared_gate", o.shared_gate, {"T", "Fs"});
        a.tensor("shared_up", o.shared_up, {"T", "Fs"});
        a.weight("shared_down", o.shared_down, "D", "Fs");
        if (o.shared_scalar) a.tensor("shared_scalar", o.shared_scalar, {"T", "one"});
    } else {
        a.require(!o.shared_gate && !o.shared_up && !o.shared_scalar,
                  "a shared expert without its down projection");
    }
}
void shapes(const Output& o, Agreement& a) {
    a.bind("one", 1);
    a.tensor("x", o.x, {"T", "D"});
    a.weight("norm", o.norm, "one", "D");
    a.weight("head", o.head, "V", "D");
    const bool scratch = o.kind == OutputKind::select || o.kind == OutputKind::logprobs;
    if (scratch) a.tensor("scratch", o.scratch, {"block", "V"});
    if (o.kind == OutputKind::logits) a.tensor("rows", o.rows, {"outputs", "V"});
    if (o.kind == OutputKind::hidden) a.tensor("rows", o.rows, {"outputs", "D"});
    a.require(o.kind != OutputKind::none, "an output that puts nothing out");
    a.require(o.top >= 0 && o.top <= kMaxTopLogprobs, "top is out of range");
}

// What is wrong with a weight in itself; "" when nothing is.
std::string weight_trouble(const Weight& w) {
    if (w.experts < 1 || w.out < 1 || w.in < 1)
        return fmt::format("a weight is [{}, {}, {}]", w.experts, w.out, w.in);
    if (w.in % quant_block(w.quant) != 0)
        return fmt::format("a weight's {} columns are no multiple of the {} of a {} block", w.in,
                           quant_block(w.quant), quant_name(w.quant));
    if (w.scale_count != 0 && w.scale_count != 1 && w.scale_count != w.experts)
        return fmt::format("a weight has {} factors for {} experts", w.scale_count, w.experts);
    if ((w.scale_count != 0) != (w.scale != nullptr)) return "a weight's factors and their count disagree";
    if (w.expert_rows != 0 && w.expert_rows < w.out)
        return fmt::format("a weight's experts lie {} rows apart and have {}", w.expert_rows, w.out);
    return "";
}

// Bytes of the arena, from the first to one behind the last of a tensor. A null arena starts at 0.
struct Extent {
    uintptr_t begin, end;
    bool overlaps(const Extent& o) const { return begin < o.end && o.begin < end; }
    bool contains(const Extent& o) const { return begin <= o.begin && o.end <= end; }
};
Extent extent_of(const Tensor& t) {
    const auto begin = reinterpret_cast<uintptr_t>(t.data);
    const int64_t elements = (t.rows() - 1) * t.stride + t.cols();
    return {begin, begin + uintptr_t(elements) * dtype_bytes(t.dtype)};
}

std::string tensor_trouble(const Tensor& t) {
    for (int i = 0; i < t.rank; ++i)
        if (t.shape[i] < 1) return fmt::format("dimension {} is {}", i, t.shape[i]);
    if (t.stride < t.cols()) return fmt::format("rows of {} elements lie {} apart", t.cols(), t.stride);
    if (t.dtype != DType::f32) return fmt::format("it is {}, expected F32", dtype_name(t.dtype));
    return "";
}

struct Operand {
    const char* name;
    Tensor tensor;
    Access access;
};

template <class Op>
constexpr bool kIsOutput = std::is_same_v<Op, Output>;

// Follows what each byte of the arena holds: who wrote it last.
class Lifetimes {
  public:
    explicit Lifetimes(int32_t rows) : rows_(rows) {}

    // Checks the operands of instruction pc; "" when all is well.
    template <class Op>
    std::string step(const Op& op, int32_t pc) {
        std::vector<Operand> operands;
        for_each_tensor(op, [&](const char* name, const Tensor& t, Access access) {
            if (t) operands.push_back({name, t, access});
        });
        for (const auto& [name, t, access] : operands) {
            const std::string wrong = tensor_trouble(t);
            if (!wrong.empty()) return fmt::format("tensor {}: {}", name, wrong);
            // The head works in blocks of rows over its scratch; every other tensor has a row for each of the
            // tape.
            if ((!kIsOutput<Op> || access == Access::read) && t.rows() != rows_)
                return fmt::format("tensor {} has {} rows, the tape {}", name, t.rows(), rows_);
            if (access == Access::write) continue;
            std::string missing = read(name, t);
            if (!missing.empty()) return missing;
        }
        for (size_t i = 0; i < operands.size(); ++i)
            for (size_t j = 0; j < operands.size(); ++j) {
                const Operand &to = operands[i], &other = operands[j];
                if (i == j || to.access == Access::read ||
                    !extent_of(to.tensor).overlaps(extent_of(other.tensor)))
                    continue;
                return fmt::format("output {} overlaps {} {}", to.name,
                                   other.access == Access::write ? "output" : "input", other.name);
            }
        for (const auto& [name, t, access] : operands)
            if (access == Access::write) write(t, pc);
        return "";
    }

  private:
    struct Region {
        Extent extent;
        int64_t pitch;  // elements from row to row
        int32_t pc;     // of the writer
    };

    // A tensor, or a view of its columns, is there when its writer's region holds it with the same pitch.
    std::string read(const char* name, const Tensor& t) const {
        const Extent wanted = extent_of(t);
        const Region* over = nullptr;
        for (const Region& region : regions_) {
            if (region.extent.contains(wanted) && (region.pitch == t.stride || t.rows() == 1)) return "";
            if (region.extent.overlaps(wanted)) over = &region;
        }
        if (over) return fmt::format("tensor {} is overwritten: pc {} wrote over it", name, over->pc);
        return fmt::format("tensor {} is read, and nothing wrote it", name);
    }

    // A write ends whatever it touches, whole: half a tensor is none.
    void write(const Tensor& t, int32_t pc) {
        const Extent extent = extent_of(t);
        std::erase_if(regions_, [&](const Region& r) { return r.extent.overlaps(extent); });
        regions_.push_back({extent, t.stride, pc});
    }

    int32_t rows_;
    std::vector<Region> regions_;
};

}  // namespace

Result<void> validate(const Tape& tape) {
    if (tape.instrs().empty()) return internal_error("the tape is empty");
    const Instr& first = tape.instrs().front();
    if (first.code != OpCode::embed)
        return internal_error("pc 0 {}: a tape starts with embed", op_name(first.code));
    Lifetimes lifetimes(first.embed.y.rows());
    int32_t pc = 0;
    for (const Instr& instr : tape.instrs()) {
        Agreement agreement;
        std::string wrong;
        visit(instr, [&](const auto& op) {
            shapes(op, agreement);
            wrong = agreement.wrong();
            for_each_weight(op, [&](const Weight& w) {
                if (wrong.empty()) wrong = weight_trouble(w);
            });
            if (wrong.empty()) wrong = lifetimes.step(op, pc);
        });
        if (!wrong.empty()) return internal_error("pc {} {}: {}", pc, op_name(instr.code), wrong);
        ++pc;
    }
    return {};
}

}  // namespace sparkinfer
