// gated_delta.cpp — the gated delta rule with its convolution and recurrent state.   (ops.h: GatedDelta,
// state_layout.h)
//
// Three sweeps, each parallel: convolution by (row, head); the rule by (segment, value head), row after row
// on a copy of S; then what heads share (ring, headers) by segment. So no thread overwrites what
// another still reads, and state_out may be state_in. Folding a logged row runs the same two functions as a
// plain row, hence the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/half.h"
#include "cpu/delta_rule.h"
#include "cpu/math.h"
#include "cpu/matmul.h"
#include "ops/state_layout.h"

namespace sparkinfer {
namespace {

struct Scratch {
    VectorParameter decay, dt_bias, norm;
    float* mixed;         // [T, channels] after convolution; q and k normalised
    int32_t* segment_of;  // [T], -1: in none, or absent
    float* state;         // [threads, width, width] S while it runs
    float* vectors;       // [threads, 3, width]
    Scratch(Carver& c, const GatedDelta& op, int64_t threads)
        : decay(c, op.decay),
          dt_bias(c, op.dt_bias),
          norm(c, op.norm),
          mixed(c.take<float>(int64_t(op.qkv.rows()) * op.state.channels)),
          segment_of(c.take<int32_t>(op.qkv.rows())),
          state(c.take<float>(threads * op.state.width * op.state.width)),
          vectors(c.take<float>(threads * 3 * op.state.width)) {}
};

// One layer's part of one state slot.
struct State {
    StateHeader* header;  // [n_v], all the same
    std::byte* s;         // [n_v, width, width] of StateLayer::dtype
    float *ring, *log_k, *log_d, *log_g;
    State(const StateLayer& l, int32_t slot) {
        const StateLayout at = state_layout(l);
        std::byte* base = l.states + slot * l.state_bytes;
        header = reinterpret_cast<StateHeader*>(base);
        s = base + at.s_at;
        ring = reinterpret_cast<float*>(base + at.ring_at);
        log_k = reinterpret_cast<float*>(base + at.log_k_at);
        log_d = reinterpret_cast<float*>(base + at.log_d_at);
        log_g = reinterpret_cast<float*>(base + at.log_g_at);
    }
};

bool verifies(const GatedDelta& op, int row) { return op.step.rows()[row].flags & kRowVerify; }

// Logged rows of state_in that the segment folds first.
int accepted_rows(const GatedDelta& op, const Segment& g) {
    if (g.state_in < 0) return 0;
    const int accepted = g.accepted >= 0 ? g.accepted : op.slots.slot(g.slot).cursor.accepted;
    const int logged = State(op.state, g.state_in).header->logged;
    CHECK(accepted >= 0 && accepted <= logged, "{} rows accepted of {} logged", accepted, logged);
    return accepted;
}

// Rows of the segment that are folded; the others, behind them, are logged.
int folded_rows(const GatedDelta& op, const Segment& g) {
    int folded = 0;
    while (folded < g.rows && !verifies(op, g.first_row + folded)) ++folded;
    for (int r = folded; r < g.rows; ++r)
        CHECK(verifies(op, g.first_row + r), "row {} follows a row that is only logged", g.first_row + r);
    CHECK(g.rows - folded <= kMaxVerifyRows, "{} rows to verify", g.rows - folded);
    return folded;
}

// The convolution input of the segment's row `r` (negative: before it), or null for zeros.
const float* input_row(const GatedDelta& op, const Segment& g, int accepted, int r) {
    if (r >= 0) return op.qkv.row(g.first_row + r);
    if (g.state_in < 0) return nullptr;
    const State in(op.state, g.state_in);
    const int columns = state_layout(op.state).columns;
    return in.ring + int64_t((in.header->position + accepted + r + columns) % columns) * op.state.channels;
}

void map_segments(const GatedDelta& op, const Scratch& s) {
    std::fill_n(s.segment_of, op.qkv.rows(), -1);
    for (int i = 0; i < op.step.header().segments; ++i) {
        const Segment& g = op.step.segments()[i];
        CHECK(g.first_row >= 0 && g.rows >= 0 && g.first_row + g.rows <= op.qkv.rows(), "rows {} … {} of {}",
              g.first_row, g.first_row + g.rows, op.qkv.rows());
        for (int r = 0; r < g.rows; ++r)
            if (live_row(op.step, op.slots, g.first_row + r).present) s.segment_of[g.first_row + r] = i;
    }
}

// A segment of a stopped slot has no present row and touches nothing; one without rows only folds.
bool present(const Scratch& s, const Segment& g) { return g.rows == 0 || s.segment_of[g.first_row] >= 0; }

// One row of `width` channels: key heads' queries, their keys, then value heads.
void convolve(const GatedDelta& op, const Scratch& s, int t, int head) {
    if (s.segment_of[t] < 0) return;
    const Segment& g = op.step.segments()[s.segment_of[t]];
    const int taps = op.state.taps, width = op.state.width, accepted = accepted_rows(op, g);
    const int64_t from = int64_t(head) * width;
    const float* weight = static_cast<const float*>(op.conv.data) + from * taps;
    float* m = s.mixed + int64_t(t) * op.state.channels + from;
    std::fill_n(m, width, 0.0f);
    for (int tap = 0; tap < taps; ++tap) {
        const float* x = input_row(op, g, accepted, t - g.first_row - (taps - 1) + tap);
        if (!x) continue;
        for (int c = 0; c < width; ++c) m[c] += x[from + c] * weight[int64_t(c) * taps + tap];
    }
    for (int c = 0; c < width; ++c) m[c] = silu(m[c]);
    if (head >= 2 * op.state.key_heads) return;
    double scale = 1.0 / std::sqrt(sum_of_squares(m, width) + 1e-6);
    if (head < op.state.key_heads) scale /= std::sqrt(double(width));
    for (int c = 0; c < width; ++c) m[c] = float(double(m[c]) * scale);
}

int key_head(const GatedDelta& op, int h) {
    const int key_heads = op.state.key_heads;
    return op.order == HeadOrder::block ? h / (op.state.value_heads / key_heads) : h % key_heads;
}

// The running copy of one value head's S, and the vectors of one row.
struct Head {
    const GatedDelta& op;
    const Scratch& s;
    int h, width;
    int64_t cells;  // of one S
    float *state, *read, *d, *o;
    Head(const GatedDelta& gd, const Scratch& scratch, int head, int worker)
        : op(gd), s(scratch), h(head), width(gd.state.width), cells(int64_t(width) * width) {
        state = s.state + worker * cells;
        read = s.vectors + int64_t(worker) * 3 * width;
        d = read + width;
        o = d + width;
    }
    void load(const Segment& g) {
        if (g.state_in < 0)
            std::fill_n(state, cells, 0.0f);
        else
            read_cells(State(op.state, g.state_in).s);
    }
    void store(int32_t slot) const {
        if (slot >= 0) write_cells(State(op.state, slot).s);
    }
    void read_cells(const std::byte* all) {
        if (op.state.dtype == DType::f32) {
            std::copy_n(reinterpret_cast<const float*>(all) + h * cells, cells, state);
            return;
        }
        const uint16_t* from = reinterpret_cast<const uint16_t*>(all) + h * cells;
        for (int64_t i = 0; i < cells; ++i) state[i] = bf16_to_f32(from[i]);
    }
    void write_cells(std::byte* all) const {
        if (op.state.dtype == DType::f32) {
            std::copy_n(state, cells, reinterpret_cast<float*>(all) + h * cells);
            return;
        }
        uint16_t* to = reinterpret_cast<uint16_t*>(all) + h * cells;
        for (int64_t i = 0; i < cells; ++i) to[i] = f32_to_bf16(state[i]);
    }
    void fold(const Segment& g, int accepted) {
        if (accepted == 0) return;
        const State in(op.state, g.state_in);
        const int64_t values = int64_t(op.state.value_heads) * width;
        for (int i = 0; i < accepted; ++i) {
            const float* k = in.log_k + i * values + int64_t(h) * width;
            decay_and_read(state, width, std::exp(in.log_g[i * op.state.value_heads + h]), k, read);
            update_and_read(state, width, k, in.log_d + i * values + int64_t(h) * width, k, o);
        }
    }
    const float* query(int t) const {
        return s.mixed + int64_t(t) * op.state.channels + int64_t(key_head(op, h)) * width;
    }
    const float* key(int t) const { return query(t) + int64_t(op.state.key_heads) * width; }
    // Runs row t on S, leaves d and o, returns g.
    float step(int t) {
        const float* m = s.mixed + int64_t(t) * op.state.channels;
        const float *q = query(t), *k = key(t);
        const float* v = m + (2 * int64_t(op.state.key_heads) + h) * width;
        const float beta = sigmoid(op.beta.row(t)[h]);
        const float g = s.decay.values[h] * softplus(op.alpha.row(t)[h] + s.dt_bias.values[h]);
        decay_and_read(state, width, std::exp(g), k, read);
        for (int j = 0; j < width; ++j) d[j] = beta * (v[j] - read[j]);
        update_and_read(state, width, k, d, q, o);
        return g;
    }
    void finish(int t) const {
        float* y = op.y.row(t) + int64_t(h) * width;
        const float* z = op.z.row(t) + int64_t(h) * width;
        rms_norm(o, s.norm.values, width, op.eps, y);
        for (int j = 0; j < width; ++j) y[j] *= silu(z[j]);
    }
};

void run_segment(const GatedDelta& op, const Scratch& s, const Segment& g, int h, int worker) {
    const int folded = folded_rows(op, g), heads = op.state.value_heads, width = op.state.width;
    Head head(op, s, h, worker);
    head.load(g);
    head.fold(g, accepted_rows(op, g));
    for (int r = 0; r < g.rows; ++r) {
        const int t = g.first_row + r, logged = r - folded;
        if (logged == 0) head.store(g.state_out);
        const float decay = head.step(t);
        if (logged >= 0 && g.state_out >= 0) {
            const State out(op.state, g.state_out);
            const int64_t entry = (int64_t(logged) * heads + h) * width;
            std::copy_n(head.key(t), width, out.log_k + entry);
            std::copy_n(head.d, width, out.log_d + entry);
            out.log_g[int64_t(logged) * heads + h] = decay;
        }
        head.finish(t);
        for (int i = g.first_save; i < g.first_save + g.saves; ++i)
            if (op.step.saves()[i].row == t) head.store(op.step.saves()[i].state);
    }
    if (folded == g.rows) head.store(g.state_out);
}

// Ring and headers of a state after `folded` rows of the segment, with `logged` more behind them.
void write_shared(const GatedDelta& op, const Segment& g, int32_t slot, int folded, int logged) {
    const State out(op.state, slot);
    const int columns = state_layout(op.state).columns, accepted = accepted_rows(op, g);
    const int64_t channels = op.state.channels;
    const int start = g.state_in < 0 ? 0 : State(op.state, g.state_in).header->position + accepted;
    const int position = (start + folded) % columns;
    for (int i = 1 - op.state.taps; i < logged; ++i) {
        const float* x = input_row(op, g, accepted, folded + i);
        float* column = out.ring + int64_t((position + i + columns) % columns) * channels;
        if (!x)
            std::fill_n(column, channels, 0.0f);
        else if (x != column)
            std::copy_n(x, channels, column);
    }
    std::fill_n(out.header, op.state.value_heads, StateHeader{position, logged, {0, 0}});
}

// Saves first: they may need columns of state_in that state_out overwrites.
void write_states(const GatedDelta& op, const Segment& g) {
    for (int i = g.first_save; i < g.first_save + g.saves; ++i) {
        const Save& save = op.step.saves()[i];
        CHECK(save.row >= g.first_row && save.row < g.first_row + g.rows, "a save of row {}", save.row);
        write_shared(op, g, save.state, save.row - g.first_row + 1, 0);
    }
    const int folded = folded_rows(op, g);
    if (g.state_out >= 0) write_shared(op, g, g.state_out, folded, g.rows - folded);
}

}  // namespace

int64_t scratch_bytes(const GatedDelta& op, int threads) { return measure<Scratch>(op, threads); }

void run(const GatedDelta& op, Context& context) {
    CHECK(op.conv.quant == Quant::f32 && op.conv.scale_count == 0, "convolution weights of {}",
          quant_name(op.conv.quant));
    CHECK(op.state.width % 16 == 0, "heads of {}", op.state.width);
    CHECK(op.state.dtype == DType::f32 || op.state.dtype == DType::bf16, "a state of {}",
          dtype_name(op.state.dtype));
    const Scratch s(context.scratch, op, context.pool.threads());
    map_segments(op, s);
    Pool& pool = context.pool;
    const int64_t rows = op.qkv.rows(), heads = op.state.value_heads,
                  blocks = op.state.channels / op.state.width;
    pool.parallel(rows * blocks, 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t unit = begin; unit < end; ++unit)
            convolve(op, s, int(unit / blocks), int(unit % blocks));
    });
    for (int64_t t = 0; t < rows; ++t)
        if (s.segment_of[t] < 0) std::fill_n(op.y.row(t), op.y.cols(), 0.0f);
    const int64_t segments = op.step.header().segments;
    pool.parallel(segments * heads, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t unit = begin; unit < end; ++unit) {
            const Segment& g = op.step.segments()[unit / heads];
            if (present(s, g)) run_segment(op, s, g, int(unit % heads), worker);
        }
    });
    pool.parallel(segments, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i)
            if (present(s, op.step.segments()[i])) write_states(op, op.step.segments()[i]);
    });
}

}  // namespace sparkinfer
