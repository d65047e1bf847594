// gated_delta.cpp — the gated delta rule against float64, and its state machine bit for bit: cuts, verify
// logs, saves. Row by row: what comes in chunks is gated_delta_chunks.cpp's.
#include <algorithm>
#include <cmath>

#include "core/half.h"
#include "gated_delta_case.h"

namespace sparkinfer::test {
namespace {

using namespace gated_delta_case;

// n_v / n_k of the 0.8B, the 35B and the 27B, in both orders of heads.
const DeltaShape kShapes[] = {{"one", 2, 2, HeadOrder::block},
                              {"two_block", 2, 4, HeadOrder::block},
                              {"two_cyclic", 2, 4, HeadOrder::cyclic},
                              {"three_cyclic", 2, 6, HeadOrder::cyclic}};

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
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats y = rig.run({{0, 50, -1, 1}});
        expect_close(m->name, y, want, m->tolerance(2e-6));
        bits.expect(*m, "", y);
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
        const Floats all = rig.run_rows(30, 7);
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
            const Floats all = rig.run_rows(24, 7);
            for (const int accepted : {0, 1, 3, 8}) {
                for (const bool in_place : {false, true}) {
                    const std::string what = fmt::format("{}: {} plain, {} accepted, in place {}", m->name,
                                                         plain, accepted, in_place);
                    rig.run({{0, 4, -1, 0}});
                    const Floats y = rig.run({{4, plain + 8, 0, in_place ? 0 : 1, 8}});
                    expect_same_bits(what, y, rows_of(s, all, 4, plain + 8));
                    rig.run_rows(4 + plain, 2);
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
                    rig.run_rows(next + 2, 4);
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
        const Floats all = rig.run_rows(40, 7);
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
        rig.run_rows(done, 6);
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
        const Floats all = rig.run_rows(20, 7);
        for (const bool neighbour : {false, true}) {  // few rows in the step, or many
            rig.run({{0, 2, -1, 0}});
            std::vector<Part> parts = {{2, 8, 0, 0, 0, 0, {{0, 1}, {1, 2}, {5, 3}, {7, 4}}}};
            if (neighbour) parts.push_back({0, 2, -1, -1, 0, 0, {}, 2});
            rig.run(parts);
            const std::pair<int, int> saved[] = {{1, 3}, {2, 4}, {3, 8}, {4, 10}, {0, 10}};
            for (auto [state, rows] : saved) {
                rig.run_rows(rows, 5);
                expect_same_state(fmt::format("{} after {}", m->name, rows), rig.state(state), rig.state(5));
                const Floats y = rig.run({{rows, 8, state, -1}});
                expect_same_bits(m->name + " resumed", y, rows_of(s, all, rows, 8));
            }
        }
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

// Risk: S in BF16 computed with in BF16, not rounded to nearest even, or rounded more often than it is
// written: it must be S in F32 that is rounded after each step.
TEST_P(GatedDeltaTest, Bf16StateIsRoundedWhereItIsWritten) {
    Random random(std::string(GetParam().name) + " bf16");
    const Sequence s(GetParam(), 24, random);
    Sequence rounded = s;
    rounded.shape.dtype = DType::bf16;
    for (Machine* m : machines()) {
        m->reset();
        Rig exact(*m, s), kept(*m, rounded);
        const auto step = [&](const Part& part, std::vector<int> written) {
            const std::string what = fmt::format("{} rows {}+{}", m->name, part.first, part.count);
            expect_same_bits(what, kept.run({part}), exact.run({part}));
            for (int slot : written) {
                StateValue want = exact.state(slot);
                for (float& v : want.s) v = bf16_to_f32(f32_to_bf16(v));
                expect_same_state(what, kept.state(slot), want);
                exact.write_s(slot, want.s);
            }
        };
        step({0, 9, -1, 0, 0, 0, {{3, 2}}}, {0, 2});
        step({9, 1, 0, 0}, {0});
        step({10, 12, 0, 0}, {0});  // more rows than the short form takes
        step({4, 1, 2, 3}, {3});
        step({5, 5, 3, 1, 4}, {1});     // a row and four that are only logged
        step({8, 1, 1, 3, 0, 2}, {3});  // two of them accepted
        step({0, 0, 3, 5}, {5});        // only carried over
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedDeltaTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sparkinfer::test
