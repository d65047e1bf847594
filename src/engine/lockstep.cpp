#include "engine/lockstep.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/half.h"
#include "ops/state_layout.h"

namespace sparkinfer {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Numbers in a backend's memory, row-major; `stride` elements from row to row.
struct Region {
    std::string name;
    const void* data;
    int32_t rows, columns;
    int64_t stride;
    DType dtype = DType::f32;
    bool stored = false;  // what lasts behind the step, perhaps in a narrow type
    int64_t bytes() const { return ((rows - 1) * stride + columns) * dtype_bytes(dtype); }
};

// The step that is being run, as far as outputs depend on it.
struct StepFacts {
    int32_t first, rows, state_out;
};

Region rows_of(const char* name, const Tensor& t, int32_t rows) {
    return {name, t.data, rows, int32_t(t.cols()), t.stride, t.dtype};
}

// outputs_of(op, step): what the op writes. An op without an overload does not compile.
std::vector<Region> outputs_of(const Embed& o, const StepFacts& s) {
    return {rows_of("y", o.y, s.rows),
            {"history", o.slots.history(0) + s.first, 1, s.rows, s.rows, DType::i32}};
}
std::vector<Region> outputs_of(const NormLinear& o, const StepFacts& s) {
    std::vector<Region> all;
    for (int i = 0; i < o.parts; ++i) {
        all.push_back(rows_of("", o.y[i], s.rows));
        all.back().name = o.parts == 1 ? "y" : fmt::format("y[{}]", i);
    }
    return all;
}
std::vector<Region> outputs_of(const LinearAdd& o, const StepFacts& s) { return {rows_of("y", o.y, s.rows)}; }
std::vector<Region> outputs_of(const LinearGlu& o, const StepFacts& s) { return {rows_of("y", o.y, s.rows)}; }
std::vector<Region> outputs_of(const Attention& o, const StepFacts& s) {
    std::vector<Region> all;
    for (int32_t page = s.first / kPageTokens; page <= (s.first + s.rows - 1) / kPageTokens; ++page)
        all.push_back({fmt::format("keys and values of page {}", page), o.kv.pages + page * o.kv.page_bytes,
                       2 * o.kv.heads * kPageTokens, o.kv.width, o.kv.width, o.kv.dtype, true});
    all.push_back(rows_of("y", o.y, s.rows));
    return all;
}
std::vector<Region> outputs_of(const GatedDelta& o, const StepFacts& s) {
    const StateLayer& l = o.state;
    const StateLayout at = state_layout(l);
    const std::byte* state = l.states + s.state_out * l.state_bytes;
    std::vector<Region> all{
        {"state header", state, l.value_heads, 2, sizeof(StateHeader) / 4, DType::i32},
        {"S", state + at.s_at, l.value_heads, l.width * l.width, int64_t(l.width) * l.width, l.dtype, true}};
    const int32_t total = s.first + s.rows;  // rows folded by now
    for (int32_t back = 1; back <= std::min(l.taps - 1, total); ++back) {
        const int64_t column = (total - back) % at.columns;
        all.push_back({fmt::format("convolution input {} back", back),
                       state + at.ring_at + column * l.channels * 4, 1, l.channels, l.channels});
    }
    all.push_back(rows_of("y", o.y, s.rows));
    return all;
}
std::vector<Region> outputs_of(const MoeGlu& o, const StepFacts& s) { return {rows_of("y", o.y, s.rows)}; }
std::vector<Region> outputs_of(const MoeDownAdd& o, const StepFacts& s) {
    return {rows_of("x", o.x, s.rows)};
}
std::vector<Region> outputs_of(const Output& o, const StepFacts&) {
    return {rows_of("logits", o.scratch, 1)};
}

// A region on the host. Whole numbers are as exact in double as floats are.
struct Values {
    std::vector<std::byte> bytes;
    std::vector<double> numbers;  // [rows, columns]
};

Result<Values> fetch(Solo& side, const Region& r) {
    Values v;
    v.bytes.resize(size_t(r.bytes()));
    TRY_VOID(side.copy(v.bytes.data(), r.data, r.bytes()));
    v.numbers.resize(size_t(r.rows) * size_t(r.columns));
    const auto* words = reinterpret_cast<const uint32_t*>(v.bytes.data());
    const auto* halves = reinterpret_cast<const uint16_t*>(v.bytes.data());
    const auto* codes = reinterpret_cast<const uint8_t*>(v.bytes.data());
    for (int32_t row = 0; row < r.rows; ++row)
        for (int32_t c = 0; c < r.columns; ++c) {
            const int64_t from = row * r.stride + c;
            double& to = v.numbers[size_t(row) * size_t(r.columns) + size_t(c)];
            switch (r.dtype) {
                case DType::f32: to = float_of_bits(words[from]); break;
                case DType::i32: to = int32_t(words[from]); break;
                case DType::bf16: to = bf16_to_f32(halves[from]); break;
                case DType::f16: to = f16_to_f32(halves[from]); break;
                case DType::e4m3: to = e4m3_to_f32(codes[from]); break;
            }
        }
    return v;
}

// What rounding to a type may do to a row: numbers that differ a little may end in neighbours of each other,
// and one of them may be most of the row's norm.
double stored_error(DType t) {
    switch (t) {
        case DType::f32:
        case DType::i32: return 0;
        case DType::f16:
        case DType::bf16: return 2e-2;
        case DType::e4m3: return 2e-1;
    }
    return 0;
}

// How far b is from a: 0 for two NaN, infinite for one.
double distance(double a, double b) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
    const double d = std::abs(a - b);
    return std::isnan(d) ? kInfinite : d;
}

// Of the rows of an output in all steps so far.
struct RowNorms {
    double sum = 0;
    int64_t rows = 0;
};

// The worst row, by its error over its norm, and the worst element in it. A norm counts as at least a tenth
// of the mean one: where terms have cancelled, as in a row of one number, what is left says nothing of their
// size.
void compare(const Region& r, const std::vector<double>& a, const std::vector<double>& b, RowNorms& norms,
             Difference& d) {
    std::vector<double> norm(size_t(r.rows)), error(size_t(r.rows));
    for (int32_t row = 0; row < r.rows; ++row) {
        double squares = 0, errors = 0;
        for (int32_t c = 0; c < r.columns; ++c) {
            const size_t i = size_t(row) * size_t(r.columns) + size_t(c);
            if (std::isfinite(a[i])) squares += a[i] * a[i];
            const double e = distance(a[i], b[i]);
            errors += e * e;
        }
        norm[size_t(row)] = std::sqrt(squares);
        error[size_t(row)] = std::sqrt(errors);
        norms.sum += norm[size_t(row)];
        ++norms.rows;
    }
    const double least = 0.1 * norms.sum / double(norms.rows);
    d.relative_l2 = -1;
    for (int32_t row = 0; row < r.rows; ++row) {
        const double e = error[size_t(row)];
        double relative = e == 0 ? 0 : e / std::max(norm[size_t(row)], least);
        if (e > 0 && r.dtype == DType::i32) relative = kInfinite;
        if (relative > d.relative_l2) d.relative_l2 = relative, d.row = row;
    }
    double most = -1;
    for (int32_t c = 0; c < r.columns; ++c) {
        const size_t i = size_t(d.row) * size_t(r.columns) + size_t(c);
        const double e = distance(a[i], b[i]);
        if (e > most) most = e, d.column = c, d.value[0] = a[i], d.value[1] = b[i];
    }
    d.output = r.name;
    d.shape = {r.rows, r.columns};
}

std::vector<std::byte> converted(const Values& v, const Region& to) {
    CHECK(to.stride == to.columns, "{} is not dense", to.name);
    std::vector<std::byte> bytes(size_t(to.bytes()));
    for (size_t i = 0; i < v.numbers.size(); ++i) {
        const auto f = float(v.numbers[i]);
        const uint16_t half = to.dtype == DType::bf16 ? f32_to_bf16(f) : f32_to_f16(f);
        if (to.dtype == DType::e4m3)
            bytes[i] = std::byte(f32_to_e4m3(f));
        else if (to.dtype == DType::f32)
            std::memcpy(bytes.data() + 4 * i, &f, 4);
        else
            std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
}

class Lockstep {
  public:
    Lockstep(Solo& a, Solo& b, const LockstepOptions& options) : sides_{&a, &b}, options_(options) {
        for (int i = 0; i < 2; ++i)
            CHECK(!options.synced || !options.prefixes[i], "a tape of several ops cannot be synced");
    }

    // One step, op by op. False: a difference was found.
    Result<bool> step(std::span<const TokenId> tokens) {
        const auto rows = int32_t(tokens.size());
        facts_ = {sides_[0]->fed(), rows, sides_[0]->state_out()};
        for (Solo* side : sides_) side->image(tokens);
        TRY(const std::vector<Compiled>* a, programs(0, rows));
        TRY(const std::vector<Compiled>* b, programs(1, rows));
        for (size_t pc = 0; pc < a->size(); ++pc) {
            TRY_VOID(sides_[0]->run((*a)[pc]));
            TRY_VOID(sides_[1]->run((*b)[pc]));
            TRY(const bool same, check(int32_t(pc)));
            ++report_.ops;
            if (!same) return false;
        }
        for (Solo* side : sides_) side->leave_step();
        ++report_.steps;
        return true;
    }
    TokenId chosen() const { return TokenId(chosen_); }
    LockstepReport& report() { return report_; }

  private:
    // The tapes that end at each op, of one side and for so many rows.
    Result<const std::vector<Compiled>*> programs(int side, int32_t rows) {
        tapes_[side] = std::make_unique<Tape>(sides_[side]->record(rows));
        const std::vector<Instr>& all = tapes_[side]->instrs();
        std::vector<Compiled>& made = programs_[side][all.front().embed.y.rows()];
        if (!made.empty()) return &made;
        Backend& backend = sides_[side]->backend();
        // The largest first: what it takes is enough for its parts.
        TRY([[maybe_unused]] const Compiled whole, backend.compile(*tapes_[side]));
        for (size_t pc = 0; pc < all.size(); ++pc) {
            Tape part = *tapes_[side];
            const auto begin = all.begin() + (options_.prefixes[side] ? 0 : int64_t(pc));
            part.instrs().assign(begin, all.begin() + int64_t(pc) + 1);
            TRY(const Compiled compiled, backend.compile(part));
            made.push_back(compiled);
        }
        return &made;
    }

    // Compares the outputs of the op that both have just run, and syncs them.
    Result<bool> check(int32_t pc) {
        const Instr& left = tapes_[0]->instrs()[size_t(pc)];
        const Instr& right = tapes_[1]->instrs()[size_t(pc)];
        const auto outputs = [&](const auto& op) { return outputs_of(op, facts_); };
        const std::vector<Region> a = visit(left, outputs), b = visit(right, outputs);
        double other_types = 0;  // what storing in different types does to all that the op computes
        for (size_t i = 0; i < a.size(); ++i)
            if (a[i].dtype != b[i].dtype)
                other_types = std::max(stored_error(a[i].dtype), stored_error(b[i].dtype));
        for (size_t i = 0; i < a.size(); ++i) {
            TRY(const Values x, fetch(*sides_[0], a[i]));
            TRY(const Values y, fetch(*sides_[1], b[i]));
            Difference d = here(pc, left);
            compare(a[i], x.numbers, y.numbers, norms_[{pc, a[i].name}], d);
            double bound = std::max(options_.tolerance, other_types);
            if (a[i].stored) bound = std::max({bound, stored_error(a[i].dtype), stored_error(b[i].dtype)});
            if (!note(std::move(d), options_.tolerance > 0 ? bound : 0)) return false;
            if (a[i].name == "logits") logits_ = x.numbers;
            if (!options_.synced) continue;
            if (a[i].dtype == b[i].dtype)
                TRY_VOID(sides_[1]->copy(const_cast<void*>(b[i].data), x.bytes.data(), b[i].bytes()));
            else
                TRY_VOID(
                    sides_[1]->copy(const_cast<void*>(b[i].data), converted(x, b[i]).data(), b[i].bytes()));
        }
        if (left.code == OpCode::output) return check_choice(pc, left, right);
        return true;
    }

    // The token. Another one counts unless the first backend's logits of the two are equal within the
    // tolerance of all its logits.
    Result<bool> check_choice(int32_t pc, const Instr& left, const Instr& right) {
        Selected chosen[2];
        TRY_VOID(sides_[0]->copy(&chosen[0], left.output.results, sizeof(Selected)));
        TRY_VOID(sides_[1]->copy(&chosen[1], right.output.results, sizeof(Selected)));
        chosen_ = chosen[0].token;
        if (chosen_ < 0 || chosen_ >= int32_t(logits_.size()))
            return internal_error("the first backend chose token {}, expected one of {}", chosen_,
                                  logits_.size());
        Difference d = here(pc, left);
        d.output = "token";
        d.shape = {1, 1};
        d.value[0] = chosen[0].token, d.value[1] = chosen[1].token;
        if (chosen[0].token != chosen[1].token) {
            double squares = 0;
            for (const double l : logits_) squares += l * l;
            const bool known = chosen[1].token >= 0 && chosen[1].token < int32_t(logits_.size());
            const double lead =
                known ? logits_[size_t(chosen_)] - logits_[size_t(chosen[1].token)] : kInfinite;
            if (!(lead <= options_.tolerance * std::sqrt(squares))) d.relative_l2 = kInfinite;
            return note(std::move(d), options_.tolerance);
        }
        d.output = "log-probability";
        d.value[0] = chosen[0].logprob, d.value[1] = chosen[1].logprob;
        d.relative_l2 = distance(d.value[0], d.value[1]) / std::max(1.0, std::abs(d.value[0]));
        if (!note(std::move(d), options_.tolerance)) return false;
        return check_cursor(pc, left, right);
    }

    // Next token, index, generated, limit, stopped, accepted, prompt.
    Result<bool> check_cursor(int32_t pc, const Instr& left, const Instr& right) {
        constexpr int32_t kNumbers = 7;
        const Region a{"cursor", left.output.slots.base, 1, kNumbers, kNumbers, DType::i32};
        const Region b{"cursor", right.output.slots.base, 1, kNumbers, kNumbers, DType::i32};
        TRY(const Values x, fetch(*sides_[0], a));
        TRY(const Values y, fetch(*sides_[1], b));
        Difference d = here(pc, left);
        compare(a, x.numbers, y.numbers, norms_[{pc, a.name}], d);
        return note(std::move(d), options_.tolerance);
    }

    Difference here(int32_t pc, const Instr& instr) const {
        Difference d;
        d.step = report_.steps;
        d.first = facts_.first;
        d.rows = facts_.rows;
        d.pc = pc;
        d.op = op_name(instr.code);
        return d;
    }
    // False: it is beyond the tolerance.
    bool note(Difference d, double tolerance) {
        const bool within = d.relative_l2 <= tolerance;
        if (!within) {
            report_.difference = std::move(d);
            return false;
        }
        Difference& largest = report_.largest[d.op];
        if (largest.op.empty() || d.relative_l2 > largest.relative_l2) largest = std::move(d);
        return true;
    }

    Solo* sides_[2];
    LockstepOptions options_;
    LockstepReport report_;
    StepFacts facts_{};
    std::unique_ptr<Tape> tapes_[2];                             // of the step
    std::map<int32_t, std::vector<Compiled>> programs_[2];       // by rows of the tape
    std::map<std::pair<int32_t, std::string>, RowNorms> norms_;  // by instruction and output
    std::vector<double> logits_;                                 // of the first backend, [V]
    int32_t chosen_ = -1;
};

}  // namespace

Result<LockstepReport> run_lockstep(Solo& a, Solo& b, std::span<const TokenId> prompt,
                                    const LockstepOptions& options) {
    CHECK(!prompt.empty() && a.fed() == 0 && b.fed() == 0, "a prompt of {} tokens", prompt.size());
    Lockstep lockstep(a, b, options);
    for (size_t at = 0; at < prompt.size(); at += size_t(options.chunk)) {
        const size_t rows = std::min(size_t(options.chunk), prompt.size() - at);
        TRY(const bool same, lockstep.step(prompt.subspan(at, rows)));
        if (!same) return std::move(lockstep.report());
    }
    for (int32_t i = 0; i < options.decode; ++i) {
        const TokenId next = lockstep.chosen();
        TRY(const bool same, lockstep.step(std::span(&next, 1)));
        if (!same) break;
    }
    return std::move(lockstep.report());
}

}  // namespace sparkinfer
