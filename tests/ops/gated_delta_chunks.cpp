// gated_delta_chunks.cpp — segments of many rows: a device computes them in chunks of 64 rows, cut where a
// row's index is a multiple of 64. Against float64, and where the same chunks are computed, bit for bit.
#include <algorithm>
#include <cmath>

#include "core/half.h"
#include "gated_delta_case.h"

namespace sparkinfer::test {
namespace {

using namespace gated_delta_case;

// A device multiplies as three BF16 products, each operand to 2^-17: the bound of 16-bit activations holds.
double most_error(const Machine& m) { return m.tolerance(4e-6); }

struct ChunkShape {
    DeltaShape shape;
    float decay;  // times the usual one: small, a state lasts many chunks
};
const ChunkShape kShapes[] = {{{"one", 2, 2, HeadOrder::block}, 1},
                              {{"two_block", 1, 2, HeadOrder::block}, 0.01f},
                              {{"two_cyclic", 2, 4, HeadOrder::cyclic}, 0.1f},
                              {{"three_cyclic", 2, 6, HeadOrder::cyclic}, 1}};

// Bucket rows beyond the step's: a device takes tapes of up to 64 rows row by row.
constexpr int kMany = 64;

class GatedDeltaChunksTest : public testing::TestWithParam<ChunkShape> {
  protected:
    Sequence sequence(int rows, const char* what) const {
        const ChunkShape& p = GetParam();
        Random random(std::string(p.shape.name) + what);
        Sequence s(p.shape, rows, random);
        Floats decay;
        for (int h = 0; h < p.shape.value_heads; ++h) decay.push_back(-random.uniform(0.05f, 1.0f) * p.decay);
        s.decay = f32_weight(decay, 1, p.shape.value_heads);
        return s;
    }
    template <class T>
    static std::vector<T> rows_of(const Sequence& s, const std::vector<T>& y, int first, int count) {
        return slice(y, int64_t(first) * s.values, int64_t(count) * s.values);
    }
};

// Risk: the chunked rule itself; rows lost or doubled where a chunk is cut short at either end.
TEST_P(GatedDeltaChunksTest, MatchFloat64) {
    const std::pair<int, int> kRuns[] = {{0, 9},  {60, 9},  {0, 63},   {1, 63},   {0, 64},   {37, 64},
                                         {0, 65}, {63, 65}, {100, 28}, {64, 128}, {37, 200}, {5, 1000}};
    for (auto [start, rows] : kRuns) {
        const Sequence s = sequence(start + rows, "float64");
        Doubles last;
        const Doubles want = rows_of(s, reference(s, &last), start, rows);
        FamilyBits bits;
        for (Machine* m : machines()) {
            m->reset();
            Rig rig(*m, s);
            rig.run_rows(start, 1);
            const Floats y = rows_of(s, rig.run({{start, rows, start ? 1 : -1, 1}}, kMany), 0, rows);
            const std::string what = fmt::format("{}: {} rows from {}", m->name, rows, start);
            expect_close(what, y, want, most_error(*m));
            expect_close(what + " S", rig.state(1).s, last, most_error(*m));
            bits.expect(*m, what, y);
        }
    }
}

// Risk: a segment that takes another's chunks, rows or states; rows beyond the step; a row that runs in both
// forms or in none.
TEST_P(GatedDeltaChunksTest, NeighboursChangeNothing) {
    const Sequence s = sequence(180, "neighbours");
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        rig.run_rows(20, 0);
        rig.run_rows(7, 2);
        const std::vector<Part> parts = {{20, 100, 0, 0, 0, 0, {}, 0}, {7, 1, 2, 3, 0, 0, {}, 1},
                                         {7, 6, 2, 4, 5, 0, {}, 2},    {0, 70, -1, 5, 0, 0, {}, 3},
                                         {0, 0, 2, 6, 0, 0, {}, 2},    {0, 12, -1, 1, 8, 0, {}, 3}};
        const Floats y = rig.run(parts, 5);
        std::vector<StateValue> together;
        for (const Part& p : parts) together.push_back(rig.state(p.state_out));
        rig.run_rows(20, 0);
        int row = 0;
        for (size_t i = 0; i < parts.size(); ++i) {
            const Part& p = parts[i];
            const std::string what = fmt::format("{} rows {}+{}", m->name, p.first, p.count);
            Part alone = p;
            alone.state_out = 7;
            const Floats z = rig.run({alone});
            expect_same_bits(what, rows_of(s, y, row, p.count), z);
            expect_same_state(what, together[i], rig.state(7));
            row += p.count;
        }
        for (size_t i = size_t(row) * size_t(s.values); i < y.size(); ++i) ASSERT_EQ(y[i], 0.0f) << "absent";
    }
}

// Risk: a stopped slot's row beside a prompt.
TEST_P(GatedDeltaChunksTest, StoppedSlotTouchesNothing) {
    const Sequence s = sequence(80, "stopped");
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats alone = rig.run({{0, 80, -1, 1}});
        rig.run_rows(3, 0);
        Slot slot{};
        slot.cursor.stopped = kStopLimit;
        m->set_slot(rig.slots, 1, slot);
        const StateValue before = rig.state(0);
        rig.edit = [](StepImage& step) { step.rows[80].flags |= kRowFromCursor; };
        const Floats y = rig.run({{0, 80, -1, 2, 0, 0, {}, 0}, {3, 1, 0, 0, 0, 0, {{0, 3}}, 1}});
        expect_same_bits(m->name, rows_of(s, y, 0, 80), alone);
        for (float v : rows_of(s, y, 80, 1)) ASSERT_EQ(v, 0.0f);
        expect_same_state(m->name, rig.state(0), before);
    }
}

// Risk: a prompt in pieces that is not the prompt: S, ring and place in the chunk carried over.
TEST_P(GatedDeltaChunksTest, ResumedIsWhole) {
    const Sequence s = sequence(330, "resumed");
    Doubles last;
    const Doubles want = reference(s, &last);
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats all = rig.run({{0, 330, -1, 7}});
        int done = 0, state = 1;
        for (const int rows : {64, 128, 9, 55, 74}) {  // two cuts at multiples of 64, two elsewhere
            const int out = done % 3 ? 3 - state : state;
            const Floats y = rows_of(s, rig.run({{done, rows, done ? state : -1, out}}, kMany), 0, rows);
            state = out;
            const std::string what = fmt::format("{} rows {}+{}", m->name, done, rows);
            if (done < 192) expect_same_bits(what, y, rows_of(s, all, done, rows));
            expect_close(what, y, rows_of(s, want, done, rows), most_error(*m));
            done += rows;
            if (done > 192) continue;
            rig.run({{0, done, -1, 5}}, kMany);
            expect_same_state(what, rig.state(state), rig.state(5));
        }
        expect_close(m->name + " S", rig.state(state).s, last, most_error(*m));
        expect_close(m->name + " whole S", rig.state(7).s, last, most_error(*m));
    }
}

// Risk: a checkpoint that is not the state of a run that ended there, wherever it lies in a chunk.
TEST_P(GatedDeltaChunksTest, SavesAreTheStatesOfShorterRuns) {
    const Sequence s = sequence(230, "saves");
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const Floats all = rig.run({{0, 230, -1, 7}});
        const std::vector<std::pair<int, int>> saves = {{10, 1}, {63, 2}, {64, 3}, {127, 4}, {229, 5}};
        const Floats y = rig.run({{0, 230, -1, -1, 0, 0, saves}});
        expect_same_bits(m->name, y, all);
        for (auto [row, state] : saves) {
            rig.run({{0, row + 1, -1, 6}}, kMany);
            expect_same_state(fmt::format("{} after {}", m->name, row + 1), rig.state(state), rig.state(6));
        }
        expect_same_bits(m->name + " resumed", rig.run({{128, 102, 4, -1}}), rows_of(s, all, 128, 102));
        // From an index inside a chunk on, in place, and with neighbours' saves.
        rig.run({{0, 40, -1, 0}});
        rig.run({{40, 150, 0, 0, 0, 0, {{23, 1}, {30, 2}, {87, 3}}}, {0, 3, -1, -1, 0, 0, {{1, 4}}, 1}});
        rig.run({{0, 40, -1, 7}});
        for (auto [row, state] : {std::pair{23, 1}, {30, 2}, {87, 3}, {149, 0}}) {
            rig.run({{40, row + 1, 7, 6}}, kMany);
            expect_same_state(fmt::format("{} 40 + {}", m->name, row + 1), rig.state(state), rig.state(6));
        }
        rig.run_rows(2, 6);
        expect_same_state(m->name + " neighbour", rig.state(4), rig.state(6));
    }
}

// Risk: logged rows in front of a prompt are dropped, or folded unlike rows.
TEST_P(GatedDeltaChunksTest, AcceptedRowsComeFirst) {
    const Sequence s = sequence(130, "accepted");
    for (Machine* m : machines()) {
        for (const int accepted : {0, 1, 5, 8}) {
            for (const bool in_place : {false, true}) {
                m->reset();
                Rig rig(*m, s);
                rig.run_rows(4, 0);
                rig.run({{4, 8, 0, 1, 8}});
                const int next = 4 + accepted, out = in_place ? 1 : 3;
                Slot slot{};
                slot.cursor.accepted = accepted;
                m->set_slot(rig.slots, 0, slot);
                const Floats y = rig.run({{next, 100, 1, out, 0, in_place ? accepted : -1}});
                rig.run_rows(next, 2);
                const Floats want = rig.run({{next, 100, 2, 2}});
                const std::string what =
                    fmt::format("{}: {} accepted, in place {}", m->name, accepted, in_place);
                expect_same_bits(what, y, want);
                expect_same_state(what, rig.state(out), rig.state(2));
            }
        }
    }
}

// Risk: a row's answer depends on rows after it.
TEST_P(GatedDeltaChunksTest, LaterRowsChangeNothing) {
    const Sequence s = sequence(150, "later");
    Sequence other = s;
    for (int64_t i = int64_t(75) * s.channels; i < int64_t(other.qkv.size()); ++i)
        other.qkv[size_t(i)] = 3 - 2 * other.qkv[size_t(i)];
    for (int64_t i = int64_t(75) * s.shape.value_heads; i < int64_t(other.beta.size()); ++i)
        other.alpha[size_t(i)] -= 2, other.beta[size_t(i)] += 1;
    for (Machine* m : machines()) {
        m->reset();
        Floats y[2];
        for (const Sequence* one : {&s, static_cast<const Sequence*>(&other)}) {
            Rig rig(*m, *one);
            y[one == &other] = rig.run({{0, 150, -1, -1}});
        }
        expect_same_bits(m->name, rows_of(s, y[1], 0, 75), rows_of(s, y[0], 0, 75));
    }
}

// Risk: S in BF16 rounded elsewhere than where it is written.
TEST_P(GatedDeltaChunksTest, Bf16StateIsRoundedWhereItIsWritten) {
    const Sequence s = sequence(200, "bf16");
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
        step({0, 100, -1, 0, 0, 0, {{63, 2}, {70, 3}}}, {0, 2, 3});
        step({100, 70, 0, 0}, {0});
        step({71, 100, 3, 1}, {1});
        step({170, 5, 0, 4, 5}, {4});
        step({173, 20, 4, 4, 0, 3}, {4});  // three logged rows, then many
    }
}

// Risk: more long segments than have chunks, hence both forms of one kind in a step.
TEST_P(GatedDeltaChunksTest, ManyLongSegments) {
    const Sequence s = sequence(13, "many");
    const Doubles want = reference(s);
    for (Machine* m : machines()) {
        m->reset();
        Rig rig(*m, s);
        const std::vector<Part> parts(70, {0, 13, -1, -1});
        const Floats y = rig.run(parts);
        for (int i = 0; i < 70; ++i)
            expect_close(fmt::format("{} segment {}", m->name, i), rows_of(s, y, i * 13, 13), want,
                         most_error(*m));
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GatedDeltaChunksTest, testing::ValuesIn(kShapes),
                         [](const auto& info) { return std::string(info.param.shape.name); });

}  // namespace
}  // namespace sparkinfer::test
