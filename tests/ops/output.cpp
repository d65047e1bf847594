// output.cpp — the end of a step against float64: logits, log-probabilities, hidden rows, selection and the
// cursor.
#include <algorithm>
#include <cmath>

#include "harness.h"

namespace sparkinfer::test {
namespace {

constexpr int kWidth = 64, kVocabulary = 1000;
constexpr float kEps = 1e-5f;

Sampling greedy() {
    Sampling s{};
    s.top_p = 1;
    s.repeat_penalty = 1;
    s.mask = -1;
    return s;
}

// A head, rows, and a step in which every other row wants output.
struct Model {
    OwnedWeight norm, head;
    Floats x;
    int rows;
    StepImage step;
    explicit Model(Random& random, int row_count, int slots = 1) : rows(row_count) {
        norm = f32_weight(random.normals(kWidth), 1, kWidth);
        head = random_weight(random, Quant::bf16, 1, kVocabulary, kWidth);
        x = random.normals(int64_t(rows) * kWidth);
        for (int t = 0; t < rows; ++t) {
            const int index = t / slots;
            step.rows.push_back({0,
                                 t % slots,
                                 index,
                                 {index, index, index},
                                 t % 2 ? uint32_t(kRowOutput) : 0,
                                 t % 4 == 1 ? t * 5 % kVocabulary : -1});
            if (t % 2) step.outputs.push_back(t);
        }
    }
    // Logits of one row.
    Doubles logits(int t) const {
        return product(rms_normed(slice(x, int64_t(t) * kWidth, kWidth), decoded(norm), kWidth, double(kEps)),
                       decoded(head), kWidth);
    }
};

Output make_output(Machine& m, const Model& model, const SlotsView& slots, OutputKind kind) {
    const int outputs = int(model.step.outputs.size());
    Output op{
        m.step(), slots, m.tensor(model.x, model.rows, kWidth), model.norm, model.head, kEps, kind, 5, {},
        nullptr,  {}};
    if (kind == OutputKind::select || kind == OutputKind::logprobs) {
        op.scratch = m.tensor(std::min(outputs, 64), kVocabulary);
        op.results =
            m.bytes(outputs * int64_t(kind == OutputKind::select ? sizeof(Selected) : sizeof(TokenLogprob)));
    } else {
        op.rows = m.tensor(outputs, kind == OutputKind::logits ? kVocabulary : kWidth);
    }
    return op;
}

template <class T>
std::vector<T> results(Machine& m, const Output& op, const Model& model) {
    std::vector<T> list(model.step.outputs.size());
    m.read(list.data(), op.results, int64_t(list.size() * sizeof(T)));
    return list;
}

double log_sum(const Doubles& logits) {
    double sum = 0;
    for (double x : logits) sum += std::exp(x);
    return std::log(sum);
}

// Risk: rows beyond the first block of 64 read the wrong row, or keep stale logits.
TEST(OutputOp, LogitsAndHidden) {
    Random random("output logits");
    const Model model(random, 160);
    Floats first;
    std::string family;
    for (Machine* m : machines()) {
        if (std::exchange(family, m->family()) != m->family()) first.clear();
        m->reset();
        const SlotsView slots = m->slots(1, 3);
        const Output logits = make_output(*m, model, slots, OutputKind::logits);
        m->run(logits, model.step);
        const Floats got = m->read(logits.rows);
        Doubles want;
        Floats hidden;
        for (int t : model.step.outputs) {
            for (double v : model.logits(t)) want.push_back(v);
            for (float v : slice(model.x, int64_t(t) * kWidth, kWidth)) hidden.push_back(v);
        }
        expect_close(m->name, got, want, m->tolerance(1e-6));
        if (first.empty()) first = got;
        expect_same_bits(m->name, got, first);
        const Output rows = make_output(*m, model, slots, OutputKind::hidden);
        m->run(rows, model.step);
        expect_same_bits(m->name + " hidden", m->read(rows.rows), hidden);
    }
}

// Risk: rows of a stopped slot answer with what lay there before.
TEST(OutputOp, AbsentRowsAreZero) {
    Random random("output absent");
    Model model(random, 4);
    model.step.rows[1].flags |= kRowFromCursor;
    for (Machine* m : machines()) {
        m->reset();
        const SlotsView slots = m->slots(1, 1);
        Slot slot{};
        slot.cursor.stopped = kStopHost;
        m->set_slot(slots, 0, slot);
        for (OutputKind kind : {OutputKind::logits, OutputKind::hidden}) {
            const Output op = make_output(*m, model, slots, kind);
            m->run(op, model.step);
            const Floats got = m->read(op.rows);
            for (int64_t i = 0; i < op.rows.cols(); ++i) ASSERT_EQ(got[size_t(i)], 0.0f);
            EXPECT_NE(got[size_t(op.rows.cols())], 0.0f) << "the other row is present";
        }
        const Output op = make_output(*m, model, slots, OutputKind::logprobs);
        m->run(op, model.step);
        const auto list = results<TokenLogprob>(*m, op, model);
        EXPECT_EQ(list[0].target, -1);
        EXPECT_EQ(list[0].logprob, 0.0f);
        EXPECT_EQ(list[0].tops, 0);
        EXPECT_EQ(list[1].tops, 5);
    }
}

// Risk: log-probabilities of the wrong target, alternatives out of order, a sum in too few bits.
TEST(OutputOp, Logprobs) {
    Random random("output logprobs");
    const Model model(random, 140);
    for (Machine* m : machines()) {
        // Logits are about 8.
        const double near = m->family() == "cpu" ? 1e-4 : 8 * m->tolerance(0);
        m->reset();
        const SlotsView slots = m->slots(1, 3);
        const Output op = make_output(*m, model, slots, OutputKind::logprobs);
        m->run(op, model.step);
        const auto list = results<TokenLogprob>(*m, op, model);
        for (size_t i = 0; i < list.size(); ++i) {
            const int t = model.step.outputs[i];
            const Doubles logits = model.logits(t);
            const double sum = log_sum(logits);
            ASSERT_EQ(list[i].row, t);
            ASSERT_EQ(list[i].target, model.step.rows[size_t(t)].target);
            EXPECT_NEAR(double(list[i].log_sum_exp), sum, near);
            if (list[i].target < 0) {
                ASSERT_EQ(list[i].logprob, 0.0f);
            } else {
                EXPECT_NEAR(double(list[i].logprob), logits[size_t(list[i].target)] - sum, near);
            }
            std::vector<double> sorted = logits;
            std::sort(sorted.rbegin(), sorted.rend());
            ASSERT_EQ(list[i].tops, 5);
            for (int j = 0; j < 5; ++j) {
                EXPECT_NEAR(double(list[i].top[j].value), sorted[size_t(j)] - sum, near);
                EXPECT_NEAR(logits[size_t(list[i].top[j].token)], sorted[size_t(j)], near);
            }
        }
    }
}

// Risk: a cursor that is not advanced, advanced twice, or advanced for a stopped slot; a stop that is missed.
TEST(OutputOp, SelectAdvancesTheCursor) {
    Random random("output select");
    const Model model(random, 8, 8);  // one row a slot; odd slots want output
    for (Machine* m : machines()) {
        m->reset();
        const SlotsView slots = m->slots(8, 1, kVocabulary, 1);
        std::vector<int32_t> best;
        for (int t = 0; t < 8; ++t) {
            const Doubles l = model.logits(t);
            best.push_back(int32_t(std::max_element(l.begin(), l.end()) - l.begin()));
        }
        StepImage step = model.step;
        for (int s = 0; s < 8; ++s) {
            Slot slot{};
            slot.sampling = greedy();
            slot.sampling.top_logprobs = 2;
            slot.cursor = {0, 3, 6, 100, 0, 4, 2, 0};
            if (s == 3) slot.stop_id[1] = best[3], slot.sampling.stop_ids = 2;
            if (s == 5) slot.cursor.limit = 7;
            if (s == 7) slot.cursor.stopped = kStopHost;
            m->set_slot(slots, s, slot);
            step.rows[size_t(s)].flags |= kRowFromCursor;
        }
        const Output op = make_output(*m, model, slots, OutputKind::select);
        m->run(op, step);
        const auto list = results<Selected>(*m, op, model);
        const int32_t stopped[] = {kRunning, kStopToken, kStopLimit, kStopHost};
        for (int i = 0; i < 4; ++i) {
            const int s = 2 * i + 1;
            const Cursor c = m->slot(slots, s).cursor;
            EXPECT_EQ(list[size_t(i)].row, s);
            EXPECT_EQ(list[size_t(i)].slot, s);
            EXPECT_EQ(list[size_t(i)].stopped, stopped[i]) << s;
            EXPECT_EQ(c.stopped, stopped[i]) << s;
            EXPECT_EQ(list[size_t(i)].token, s == 7 ? -1 : best[size_t(s)]);
            EXPECT_EQ(c.index, s == 7 ? 3 : 4);
            EXPECT_EQ(c.generated, s == 7 ? 6 : 7);
            EXPECT_EQ(c.accepted, s == 7 ? 4 : 0);
            if (s == 7) continue;
            EXPECT_EQ(c.next_token, best[size_t(s)]);
            const Doubles l = model.logits(s);
            EXPECT_NEAR(double(list[size_t(i)].logprob), l[size_t(best[size_t(s)])] - log_sum(l), 1e-4);
            EXPECT_EQ(list[size_t(i)].tops, 2);
            EXPECT_EQ(list[size_t(i)].top[0].token, best[size_t(s)]);
        }
        EXPECT_EQ(m->slot(slots, 0).cursor.index, 3) << "a row that wants no output moved its cursor";
    }
}

// Risk: mask, bias or history of another slot; choices that depend on threads or on the other rows.
TEST(OutputOp, SelectReadsItsOwnSlot) {
    Random random("output slots");
    const Model model(random, 200,
                      100);  // two rows a slot, the second wants output when its row number is odd
    std::vector<int32_t> chosen;
    for (Machine* m : machines()) {
        m->reset();
        const SlotsView slots = m->slots(100, 1, kVocabulary, 100);
        Random setup("output slots setup");
        for (int s = 0; s < 100; ++s) {
            Slot slot{};
            slot.cursor.limit = 100;
            slot.sampling = greedy();
            slot.sampling.temperature = float(s % 3);
            slot.sampling.seed[0] = uint32_t(s);
            slot.sampling.repeat_penalty = 1.3f;
            slot.sampling.repeat_last_n = -1;
            slot.sampling.mask = s % 2 ? s : -1;
            slot.bias[0] = {s, 1000.0f};
            slot.sampling.biases = s % 5 == 0;
            m->set_slot(slots, s, slot);
            m->set_history(slots, s, {setup.below(kVocabulary), setup.below(kVocabulary)});
            std::vector<uint32_t> mask(size_t(slots.mask_words), 0);
            mask[size_t(s / 32)] = 0x80000001u;  // the first or last of 32 tokens
            if (s % 2) m->write(slots.masks + s * slots.mask_words, mask.data(), slots.mask_words * 4);
        }
        const Output op = make_output(*m, model, slots, OutputKind::select);
        m->run(op, model.step);
        const auto list = results<Selected>(*m, op, model);
        std::vector<int32_t> tokens;
        for (const Selected& r : list) {
            const int s = r.slot;
            tokens.push_back(r.token);
            if (s % 2) {
                EXPECT_TRUE(r.token == s / 32 * 32 || r.token == s / 32 * 32 + 31) << s << ": " << r.token;
            } else if (s % 5 == 0) {
                EXPECT_EQ(r.token, s);
            }
        }
        if (chosen.empty()) chosen = tokens;
        EXPECT_EQ(tokens, chosen) << m->name;
    }
}

// Risk: a row of NaN or infinities ends the process or makes a token that does not exist.
TEST(OutputOp, NoFiniteLogits) {
    Random random("output nan");
    Model model(random, 4);
    std::fill_n(model.x.begin() + kWidth, kWidth, NAN);
    std::fill_n(model.x.begin() + 3 * kWidth, kWidth, INFINITY);
    for (Machine* m : machines()) {
        m->reset();
        const SlotsView slots = m->slots(1, 1);
        Slot slot{};
        slot.sampling = greedy();
        slot.sampling.temperature = 1;
        slot.sampling.top_logprobs = 3;
        slot.cursor.limit = 10;
        m->set_slot(slots, 0, slot);
        const Output op = make_output(*m, model, slots, OutputKind::select);
        m->run(op, model.step);
        const auto list = results<Selected>(*m, op, model);
        EXPECT_EQ(list[0].token, 0);
        EXPECT_EQ(list[0].tops, 0);
        EXPECT_TRUE(list[1].token >= 0 && list[1].token < kVocabulary);
    }
}

}  // namespace
}  // namespace sparkinfer::test
