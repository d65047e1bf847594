// gated_delta.cpp — the gated delta rule against float64, and its state machine bit for bit: cuts, verify
// logs, saves.
#include <algorithm>
#include <cmath>
#include <map>

#include "harness.h"
#include "ops/state_layout.h"

namespace sparkinfer::test {
namespace {

struct DeltaShape {
    const char* name;
    int key_heads, value_heads;
    HeadOrder order;
};
// n_v / n_k of the 0.8B, the 35B and the 27B, in both orders of heads.
const DeltaShape kShapes[] = {{"one", 2, 2, HeadOrder::block},
                              {"two_block", 2, 4, HeadOrder::block},
                              {"two_cyclic", 2, 4, HeadOrder::cyclic},
                              {"three_cyclic", 2, 6, HeadOrder::cyclic}};
constexpr int kWidth = 128, kTaps = 4, kStates = 8, kSlots = 4;
constexpr float kEps = 1e-6f;

// One layer's parameters and the inputs of one long sequence; steps use some of its rows.
struct Sequence {
    DeltaShape shape;
    int rows, channels, values;
    Floats qkv, z, beta, alpha;
    OwnedWeight conv, decay, dt_bias, norm;

    Sequence(const DeltaShape& s, int length, Random& random)
        : shape(s),
          rows(length),
          channels((2 * s.key_heads + s.value_heads) * kWidth),
          values(s.value_heads * kWidth) {
        qkv = random.normals(int64_t(rows) * channels);
        z = random.normals(int64_t(rows) * values);
        beta = random.normals(int64_t(rows) * s.value_heads);
        alpha = random.normals(int64_t(rows) * s.value_heads);
        conv = f32_weight(random.normals(int64_t(channels) * kTaps, 0.5f), channels, kTaps);
        Floats d;
        for (int h = 0; h < s.value_heads; ++h) d.push_back(-random.uniform(0.05f, 1.0f));
        decay = f32_weight(d, 1, s.value_heads);
        dt_bias = f32_weight(random.normals(s.value_heads), 1, s.value_heads);
        norm = f32_weight(random.normals(kWidth), 1, kWidth);
    }
};

// float64, from the first row on: y [rows, values].
Doubles reference(const Sequence& s) {
    const int n_k = s.shape.key_heads, n_v = s.shape.value_heads;
    const Doubles conv = decoded(s.conv), decay = decoded(s.decay), bias = decoded(s.dt_bias),
                  norm = decoded(s.norm);
    Doubles y, state(size_t(n_v) * kWidth * kWidth, 0.0);
    for (int t = 0; t < s.rows; ++t) {
        Doubles m(size_t(s.channels), 0.0);
        for (int c = 0; c < s.channels; ++c) {
            for (int tap = 0; tap < kTaps; ++tap)
                if (const int r = t - 3 + tap; r >= 0)
                    m[size_t(c)] += conv[size_t(c * kTaps + tap)] *
                                    double(s.qkv[size_t(r) * size_t(s.channels) + size_t(c)]);
            m[size_t(c)] = silu64(m[size_t(c)]);
        }
        for (int h = 0; h < 2 * n_k; ++h) {
            double sum = 1e-6;
            for (int i = 0; i < kWidth; ++i) sum += m[size_t(h * kWidth + i)] * m[size_t(h * kWidth + i)];
            const double by = 1.0 / std::sqrt(sum) / (h < n_k ? std::sqrt(double(kWidth)) : 1.0);
            for (int i = 0; i < kWidth; ++i) m[size_t(h * kWidth + i)] *= by;
        }
        for (int h = 0; h < n_v; ++h) {
            const int key = s.shape.order == HeadOrder::block ? h / (n_v / n_k) : h % n_k;
            const double *q = &m[size_t(key * kWidth)], *k = q + n_k * kWidth,
                         *v = &m[size_t((2 * n_k + h) * kWidth)];
            const size_t at = size_t(t) * size_t(n_v) + size_t(h);
            const double beta = sigmoid64(double(s.beta[at]));
            const double keep =
                std::exp(decay[size_t(h)] * std::log1p(std::exp(double(s.alpha[at]) + bias[size_t(h)])));
            double* S = &state[size_t(h) * kWidth * kWidth];
            Doubles d(kWidth), o(kWidth, 0.0);
            for (int j = 0; j < kWidth; ++j) {
                double read = 0;
                for (int i = 0; i < kWidth; ++i) read += (S[i * kWidth + j] *= keep) * k[i];
                d[size_t(j)] = beta * (v[j] - read);
            }
            double sum = 0;
            for (int j = 0; j < kWidth; ++j) {
                for (int i = 0; i < kWidth; ++i)
                    o[size_t(j)] += (S[i * kWidth + j] += k[i] * d[size_t(j)]) * q[i];
                sum += o[size_t(j)] * o[size_t(j)];
            }
            for (int j = 0; j < kWidth; ++j)
                y.push_back(o[size_t(j)] / std::sqrt(sum / kWidth + double(kEps)) * norm[size_t(j)] *
                            silu64(double(s.z[at * kWidth + size_t(j)])));
        }
    }
    return y;
}

// What a state slot means: without the columns and log rows that are not in use.
struct StateValue {
    StateHeader header;
    Floats s, ring, log_k, log_d, log_g;
};

void expect_same_state(const std::string& what, const StateValue& got, const StateValue& want) {
    EXPECT_EQ(got.header.position, want.header.position) << what;
    EXPECT_EQ(got.header.logged, want.header.logged) << what;
    expect_same_bits(what + " S", got.s, want.s);
    expect_same_bits(what + " ring", got.ring, want.ring);
    expect_same_bits(what + " log k", got.log_k, want.log_k);
    expect_same_bits(what + " log d", got.log_d, want.log_d);
    expect_same_bits(what + " log g", got.log_g, want.log_g);
}

// One part of a step: `count` rows of the sequence from `first` on.
struct Part {
    int first, count;
    int state_in, state_out;
    int verify = 0;                               // so many of them, at the end, are only logged
    int accepted = 0;                             // -1: by the cursor
    std::vector<std::pair<int, int>> saves = {};  // {row of the part, state}
    int slot = 0;
};

// A machine's states (layer 1 of two) and slots.
class Rig {
  public:
    Rig(Machine& m, const Sequence& s) : m_(m), s_(s) {
        slots = m.slots(kSlots, 1);
        layer = {nullptr, 0, s.shape.key_heads, s.shape.value_heads, kWidth, s.channels, kTaps};
        at_ = state_layout(layer);
        layer.state_bytes = 2 * at_.bytes;
        base_ = m.bytes(layer.state_bytes * kStates);
        layer.states = base_ + at_.bytes;
    }

    // y of all rows of the parts, in order; extra: bucket rows beyond the step's.
    Floats run(const std::vector<Part>& parts, int extra = 0) {
        StepImage step;
        Floats qkv, z, beta, alpha;
        for (const Part& p : parts) {
            const int first_row = int(step.rows.size()), first_save = int(step.saves.size());
            step.add_rows(p.slot, p.first, p.count);
            for (int i = 0; i < p.verify; ++i)
                step.rows[step.rows.size() - size_t(i) - 1].flags |= kRowVerify;
            for (auto [row, state] : p.saves) step.saves.push_back({first_row + row, state});
            step.segments.push_back({p.slot, first_row, p.count, p.state_in, p.state_out, p.accepted,
                                     first_save, int32_t(p.saves.size())});
            const auto append = [&](Floats& to, const Floats& from, int cols) {
                to.insert(to.end(), from.begin() + int64_t(p.first) * cols,
                          from.begin() + int64_t(p.first + p.count) * cols);
            };
            append(qkv, s_.qkv, s_.channels);
            append(z, s_.z, s_.values);
            append(beta, s_.beta, s_.shape.value_heads);
            append(alpha, s_.alpha, s_.shape.value_heads);
        }
        if (edit) edit(step);
        const int rows = int(step.rows.size()) + extra;
        const auto padded = [&](Floats values, int cols) {
            values.resize(size_t(rows) * size_t(cols), NAN);
            return m_.tensor(values, rows, cols);
        };
        GatedDelta op{m_.step(),
                      slots,
                      padded(qkv, s_.channels),
                      padded(z, s_.values),
                      padded(beta, s_.shape.value_heads),
                      padded(alpha, s_.shape.value_heads),
                      s_.conv,
                      s_.decay,
                      s_.dt_bias,
                      s_.norm,
                      layer,
                      s_.shape.order,
                      kEps,
                      m_.tensor(rows, s_.values)};
        m_.run(op, step);
        return m_.read(op.y);
    }

    StateValue state(int slot) {
        StateValue v;
        std::vector<std::byte> raw(size_t(at_.bytes));
        m_.read(raw.data(), layer.states + slot * layer.state_bytes, at_.bytes);
        const auto floats = [&](int64_t offset, int64_t count) {
            Floats f(static_cast<size_t>(count));
            if (count) memcpy(f.data(), raw.data() + offset, f.size() * 4);
            return f;
        };
        memcpy(&v.header, raw.data(), sizeof v.header);
        for (int h = 1; h < layer.value_heads; ++h)
            EXPECT_EQ(memcmp(raw.data(), raw.data() + h * int(sizeof v.header), sizeof v.header), 0)
                << "header " << h;
        v.s = floats(at_.s_at, int64_t(layer.value_heads) * kWidth * kWidth);
        for (int i = 1 - kTaps; i < v.header.logged; ++i) {
            const int64_t column = (v.header.position + i + at_.columns) % at_.columns;
            const Floats c = floats(at_.ring_at + column * s_.channels * 4, s_.channels);
            v.ring.insert(v.ring.end(), c.begin(), c.end());
        }
        v.log_k = floats(at_.log_k_at, int64_t(v.header.logged) * layer.value_heads * kWidth);
        v.log_d = floats(at_.log_d_at, int64_t(v.header.logged) * layer.value_heads * kWidth);
        v.log_g = floats(at_.log_g_at, int64_t(v.header.logged) * layer.value_heads);
        return v;
    }
    std::vector<std::byte> raw_states() {
        std::vector<std::byte> raw(size_t(layer.state_bytes * kStates));
        m_.read(raw.data(), base_, int64_t(raw.size()));
        return raw;
    }

    SlotsView slots;
    StateLayer layer;
    std::function<void(StepImage&)> edit;

  private:
    Machine& m_;
    const Sequence& s_;
    StateLayout at_;
    std::byte* base_;
};

class GatedDeltaTest : public testing::TestWithParam<DeltaShape> {
  protected:
    Floats rows_of(const Sequence& s, const Floats& y, int first, int count) {
        return slice(y, int64_t(first) * s.values, int64_t(count) * s.values);
    }
};

// Risk: convolution, norms, gates, the order of decay, read and update, or the mapping of heads.
TEST_P(GatedDeltaTest, MatchesFloat64) {
    Random random(GetParam().name);
    const Sequence s(GetParam(), 50, random);
    const Doubles want = reference(s);
    std::map<std::string, Floats> first;  // by backend
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats y = rig.run({{0, 50, -1, 1}});
        expect_close(m->name, y, want, 2e-6);
        const Floats& same = first.try_emplace(m->name.substr(0, m->name.find(',')), y).first->second;
        expect_same_bits(m->name, y, same);
    }
}

// Risk: state lost or doubled between steps; neighbours or absent rows that leak; in place unlike out of
// place.
TEST_P(GatedDeltaTest, CutsAndNeighboursChangeNothing) {
    Random random(std::string(GetParam().name) + " cuts");
    const Sequence s(GetParam(), 30, random);
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats all = rig.run({{0, 30, -1, 7}});
        // Slot 0 in place, slot 1 back and forth between states 1 and 2, slot 2 starts afresh each time and
        // keeps nothing.
        int done[2] = {0, 0}, state = 2;
        for (int turn = 0; done[0] < 30 || done[1] < 30; ++turn) {
            std::vector<Part> parts = {{0, 2, -1, -1, 0, 0, {}, 2}};
            const int a = std::min(30 - done[0], 1 + random.below(turn % 3 == 0 ? 6 : 2));
            const int b = std::min(30 - done[1], 1 + random.below(turn % 3 == 1 ? 6 : 2));
            if (a) parts.push_back({done[0], a, done[0] ? 0 : -1, 0, 0, 0, {}, 0});
            if (b) {
                parts.insert(parts.begin(), {done[1], b, done[1] ? state : -1, 3 - state, 0, 0, {}, 1});
                state = 3 - state;
            }
            const Floats y = rig.run(parts, turn % 2);
            int row = 0;
            for (const Part& p : parts) {
                expect_same_bits(fmt::format("{} slot {} rows {}+{}", m->name, p.slot, p.first, p.count),
                                 rows_of(s, y, row, p.count), rows_of(s, all, p.first, p.count));
                row += p.count;
                if (p.slot < 2) done[p.slot] += p.count;
            }
            for (size_t i = size_t(row) * size_t(s.values); i < y.size(); ++i)
                ASSERT_EQ(y[i], 0.0f) << "absent";
        }
        expect_same_state(m->name + " slot 1", rig.state(state), rig.state(7));
        expect_same_state(m->name + " slot 0", rig.state(0), rig.state(7));
    }
}

// Risk: speculation that changes results: logged rows must give the outputs of plain ones, leave S as it was,
// and fold to the very state that plain rows make, whatever number is accepted, in place or not.
TEST_P(GatedDeltaTest, LoggedRowsFoldToThePlainState) {
    Random random(std::string(GetParam().name) + " verify");
    const Sequence s(GetParam(), 24, random);
    for (Machine* m : machines()) {
        for (const int plain : {0, 1, 5}) {
            m->reset();
            Rig rig(*m, s);
            const Floats all = rig.run({{0, 24, -1, 7}});
            for (const int accepted : {0, 1, 3, 8}) {
                for (const bool in_place : {false, true}) {
                    const std::string what = fmt::format("{}: {} plain, {} accepted, in place {}", m->name,
                                                         plain, accepted, in_place);
                    rig.run({{0, 4, -1, 0}});
                    const Floats y = rig.run({{4, plain + 8, 0, in_place ? 0 : 1, 8}});
                    expect_same_bits(what, y, rows_of(s, all, 4, plain + 8));
                    rig.run({{0, 4 + plain, -1, 2}});
                    StateValue before = rig.state(2), logged = rig.state(in_place ? 0 : 1);
                    EXPECT_EQ(logged.header.logged, 8) << what;
                    EXPECT_EQ(logged.header.position, before.header.position) << what;
                    expect_same_bits(what + " S", logged.s, before.s);
                    // The next rows, after folding, and the state they leave; then 8 more verify rows over a
                    // fresh log.
                    const int next = 4 + plain + accepted, state = in_place ? 0 : 1, out = in_place ? 0 : 3;
                    Slot slot{};
                    slot.cursor.accepted = accepted;
                    m->set_slot(rig.slots, 0, slot);
                    const Floats z = rig.run({{next, 2, state, out, 0, in_place ? accepted : -1}});
                    expect_same_bits(what + " next", z, rows_of(s, all, next, 2));
                    rig.run({{0, next + 2, -1, 4}});
                    expect_same_state(what, rig.state(out), rig.state(4));
                }
            }
        }
    }
}

// Risk: verify rows right behind folded logged rows, in place: old log entries overwritten before they are
// folded.
TEST_P(GatedDeltaTest, LogOverLogInPlace) {
    Random random(std::string(GetParam().name) + " log over log");
    const Sequence s(GetParam(), 40, random);
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats all = rig.run({{0, 40, -1, 7}});
        rig.run({{0, 1, -1, 0}});
        int done = 1, accepted = 0;
        for (int turn = 0; done + 8 <= 40; ++turn) {
            const int verify = 1 + random.below(8);
            const Floats y = rig.run({{done, verify, 0, 0, verify, accepted}});
            expect_same_bits(fmt::format("{} turn {}", m->name, turn), y, rows_of(s, all, done, verify));
            accepted = random.below(verify + 1);
            done += accepted;
        }
        rig.run({{0, 0, 0, 5, 0, accepted}});  // a segment without rows only folds
        rig.run({{0, done, -1, 6}});
        expect_same_state(m->name, rig.state(5), rig.state(6));
    }
}

// Risk: a checkpoint that is not the state of a run that ended there.
TEST_P(GatedDeltaTest, SavesAreTheStatesOfShorterRuns) {
    Random random(std::string(GetParam().name) + " saves");
    const Sequence s(GetParam(), 20, random);
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats all = rig.run({{0, 20, -1, 7}});
        rig.run({{0, 2, -1, 0}});
        rig.run({{2, 18, 0, 0, 0, 0, {{0, 1}, {1, 2}, {13, 3}, {17, 4}}}});
        const std::pair<int, int> saved[] = {{1, 3}, {2, 4}, {3, 16}, {4, 20}};
        for (auto [state, rows] : saved) {
            rig.run({{0, rows, -1, 5}});
            expect_same_state(fmt::format("{} after {}", m->name, rows), rig.state(state), rig.state(5));
            if (rows == 20) continue;
            const Floats y = rig.run({{rows, 20 - rows, state, -1}});
            expect_same_bits(m->name + " resumed", y, rows_of(s, all, rows, 20 - rows));
        }
        expect_same_state(m->name + " end", rig.state(0), rig.state(7));
    }
}

// Risk: a row queued behind a stop still changes the state.
TEST_P(GatedDeltaTest, StoppedSlotTouchesNothing) {
    Random random(std::string(GetParam().name) + " stopped");
    const Sequence s(GetParam(), 4, random);
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        rig.run({{0, 2, -1, 0}});
        Slot slot{};
        slot.cursor.stopped = kStopLimit;
        m->set_slot(rig.slots, 1, slot);
        const auto before = rig.raw_states();
        rig.edit = [](StepImage& step) { step.rows[0].flags |= kRowFromCursor; };
        const Floats y = rig.run({{2, 1, 0, 0, 0, 0, {{0, 3}}, 1}});
        for (float v : y) ASSERT_EQ(v, 0.0f);
        EXPECT_TRUE(before == rig.raw_states()) << m->name;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedDeltaTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sparkinfer::test
