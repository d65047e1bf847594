// attention_prompt.cpp — attention over steps of many rows: prompts that start anywhere, several of them,
// beside single rows, on top of pages that the test has filled.
#include <algorithm>
#include <cmath>

#include "attention_case.h"
#include "core/half.h"

namespace sparkinfer::test {
namespace {

using namespace attention_case;

// Every head width, group sizes 8, 3, 2 and 1, every page format.
const AttentionShape kShapes[] = {
    {"d256 bf16", 8, 1, 256, true, true, 64, RopePairs::halves, {12, 8, 4}, DType::bf16, 1.0f},
    {"d128 bf16", 4, 2, 128, false, true, 128, RopePairs::halves, {}, DType::bf16, 1.0f},
    {"d64 bf16", 3, 1, 64, false, false, 64, RopePairs::adjacent, {}, DType::bf16, 1.0f},
    {"d256 f32", 2, 2, 256, true, true, 64, RopePairs::halves, {}, DType::f32, 1.0f},
    {"d128 f32", 8, 1, 128, true, true, 128, RopePairs::halves, {}, DType::f32, 1.1f},
    {"d64 f32", 9, 3, 64, false, false, 64, RopePairs::adjacent, {}, DType::f32, 1.0f},
    {"d256 fp8", 3, 1, 256, true, true, 64, RopePairs::halves, {}, DType::e4m3, 1.0f},
    {"d128 fp8", 2, 2, 128, false, true, 128, RopePairs::halves, {}, DType::e4m3, 1.0f},
    {"d64 fp8", 4, 2, 64, false, false, 64, RopePairs::adjacent, {}, DType::e4m3, 1.0f},
    {"d32 bf16", 2, 1, 32, false, false, 32, RopePairs::halves, {}, DType::bf16, 1.0f},
    {"d96 bf16", 2, 1, 96, false, true, 96, RopePairs::halves, {}, DType::bf16, 1.0f},
};

// Rows of one sequence from `start` on, above keys that lie in the pages.
struct Stretch {
    int start, rows;
};
struct Layout {
    std::vector<Stretch> runs;  // of slots 0, 1, …
    int extra;                  // bucket rows beyond the step's
};

int slot_pages(const std::vector<Stretch>& runs) {
    int most = 0;
    for (const Stretch& r : runs) most = std::max(most, r.start + r.rows);
    return (most + kPageTokens - 1) / kPageTokens;
}

// Keys and values as the pages hold them, token by token [G·d] of one sequence.
struct Context {
    Floats k, v;
    Context(const Parameters& p, Random& random, int tokens, float k_scale = 1, float v_scale = 1)
        : k(random.normals(int64_t(tokens) * p.k_cols(), k_scale)),
          v(random.normals(int64_t(tokens) * p.k_cols(), v_scale)) {
        for (Floats* values : {&k, &v})
            for (float& x : *values) x = float(stored(p, double(x)));
    }
};

void put(const Parameters& p, std::byte* to, float x) {
    const uint16_t half = f32_to_bf16(x);
    const uint8_t code = f32_to_e4m3(x);
    const void* as[] = {&code, &half, &x};
    const auto bytes = size_t(dtype_bytes(p.shape.kv));
    memcpy(to, as[bytes / 2], bytes);
}

// The tokens of `context` to the pages of `slot`; what lies behind them becomes NaN.
void fill_pages(Machine& m, const Parameters& p, const Cache& c, int slot, const Context& context) {
    const int d = p.shape.width, cols = p.k_cols(), count = int(context.k.size()) / cols;
    std::vector<int32_t> pages(size_t(c.slots.max_pages));
    m.read(pages.data(), c.slots.pages(slot), int64_t(pages.size()) * 4);
    std::vector<std::byte> page(static_cast<size_t>(c.layer_bytes));
    for (size_t n = 0; n < pages.size(); ++n) {
        std::fill(page.begin(), page.end(), std::byte{0xFF});
        for (int t = int(n) * kPageTokens; t < std::min(count, int(n + 1) * kPageTokens); ++t)
            for (int i = 0; i < 2 * cols; ++i) {
                const Floats& from = i < cols ? context.k : context.v;
                const size_t at = size_t(i / d * kPageTokens + t % kPageTokens) * size_t(d) + size_t(i % d);
                put(p, &page[at * size_t(dtype_bytes(p.shape.kv))],
                    from[size_t(t) * size_t(cols) + size_t(i % cols)]);
            }
        m.write(c.kv.pages + pages[n] * c.kv.page_bytes, page.data(), c.layer_bytes);
    }
}

// A step over sequences with contexts.
struct Case {
    Inputs in;
    std::vector<Context> contexts;
    std::vector<Stretch> runs;
    Case(const Parameters& p, Random& random, const std::vector<Stretch>& layout, float k_scale = 1,
         float v_scale = 1)
        : runs(layout) {
        StepImage step;
        for (size_t s = 0; s < runs.size(); ++s) {
            step.add_rows(int(s), runs[s].start, runs[s].rows);
            contexts.emplace_back(p, random, runs[s].start, k_scale, v_scale);
        }
        in = random_inputs(p, random, step);
        for (float& x : in.k) x *= p.shape.norms ? 1 : k_scale;
        for (float& x : in.v) x *= v_scale;
    }
    Floats run(Machine& m, const Parameters& p, const Cache& cache, int extra = 0) const {
        for (size_t s = 0; s < runs.size(); ++s) fill_pages(m, p, cache, int(s), contexts[s]);
        return run_rows(m, p, cache, in, extra);
    }
    Cache cache(Machine& m, const Parameters& p) const {
        return Cache(m, p, int(runs.size()), slot_pages(runs));
    }
};

// float64 of row t of the case: over its sequence's context and the step's rows up to itself.
Doubles row_reference(const Parameters& p, const Case& c, int t) {
    const AttentionShape& s = p.shape;
    const int d = s.width, group = s.heads / s.kv_heads, step = s.gated ? 2 * d : d;
    const Row& row = c.in.step.rows[size_t(t)];
    const Context& context = c.contexts[size_t(row.slot)];
    Doubles k(context.k.begin(), context.k.end()), v(context.v.begin(), context.v.end());
    for (int u = t - (row.index - c.runs[size_t(row.slot)].start); u <= t; ++u) {
        const Row& other = c.in.step.rows[size_t(u)];
        for (int g = 0; g < s.kv_heads; ++g)
            for (double x :
                 head(p, c.in.k, int64_t(u) * p.k_cols() + int64_t(g) * d, &p.k_norm, other.position))
                k.push_back(stored(p, x));
        for (int i = 0; i < p.k_cols(); ++i)
            v.push_back(stored(p, double(c.in.v[size_t(u) * size_t(p.k_cols()) + size_t(i)])));
    }
    Doubles y(size_t(p.y_cols()), 0.0);
    const size_t count = k.size() / size_t(p.k_cols());
    for (int h = 0; h < s.heads; ++h) {
        const Doubles q =
            head(p, c.in.q, int64_t(t) * p.q_cols() + int64_t(h) * step, &p.q_norm, row.position);
        const size_t first = size_t(h / group) * size_t(d), cols = size_t(p.k_cols());
        Doubles scores(count, 0.0);
        for (size_t j = 0; j < count; ++j)
            for (size_t i = 0; i < size_t(d); ++i)
                scores[j] += q[i] * k[j * cols + first + i] * double(p.scale);
        const double most = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& x : scores) sum += x = std::exp(x - most);
        double* out = &y[size_t(h) * size_t(d)];
        for (size_t j = 0; j < count; ++j)
            for (size_t i = 0; i < size_t(d); ++i) out[i] += scores[j] / sum * v[j * cols + first + i];
        for (int i = 0; s.gated && i < d; ++i)
            out[i] *= sigmoid64(double(c.in.q[size_t(t) * size_t(p.q_cols()) + size_t(h * step + d + i)]));
    }
    return y;
}

// Rows worth asking float64 about: where runs and their tiles begin and end, and some between.
std::vector<int> chosen_rows(const std::vector<Stretch>& runs) {
    std::vector<int> rows;
    int first = 0;
    for (const Stretch& r : runs) {
        for (int i = 0; i < r.rows; ++i)
            if (i < 2 || i + 2 > r.rows || i % 64 == 63 || i % 64 == 0 || i % 41 == 7)
                rows.push_back(first + i);
        first += r.rows;
    }
    return rows;
}

void expect_rows(const Machine& m, const Parameters& p, const Case& c, const Floats& y,
                 const std::string& what) {
    Floats got;
    Doubles want;
    for (int t : chosen_rows(c.runs)) {
        const Floats row = slice(y, int64_t(t) * p.y_cols(), p.y_cols());
        const Doubles exact = row_reference(p, c, t);
        got.insert(got.end(), row.begin(), row.end());
        want.insert(want.end(), exact.begin(), exact.end());
    }
    expect_close(m.name + ' ' + what, got, want, most_error_many(m, p.shape.kv, 2e-6));
    for (size_t i = size_t(c.in.rows()) * size_t(p.y_cols()); i < y.size(); ++i)
        ASSERT_EQ(y[i], 0.0f) << m.name << ' ' << what << ": absent";
}

class AttentionPromptTest : public testing::TestWithParam<AttentionShape> {};

// Risk: rows, keys or pages lost or counted twice where tiles, pages, segments and the two forms for long and
// short segments meet; what lies behind the last key (here NaN) read as a key.
TEST_P(AttentionPromptTest, MatchesFloat64) {
    Random random(std::string(GetParam().name) + " prompts");
    const Parameters p(GetParam(), random);
    std::vector<Layout> layouts = {
        {{{0, 9}}, 0},
        {{{1000, 9}}, 0},
        {{{64, 129}}, 3},
        {{{100, 65}, {511, 1}, {63, 8}, {0, 1}, {5, 20}, {64, 5}, {1, 64}}, 5},
        {{{30, 1}, {100, 1}, {300, 1}, {64, 1}, {63, 1}, {0, 1}, {1, 1}, {200, 1}, {128, 1}, {7, 1}}, 2},
    };
    if (!cases_are_short())
        for (Layout l : std::vector<Layout>{{{{0, 63}}, 1},
                                            {{{0, 64}}, 0},
                                            {{{1, 65}}, 0},
                                            {{{63, 127}}, 1},
                                            {{{0, 500}}, 12},
                                            {{{1000, 40}, {0, 130}}, 0}})
            layouts.push_back(std::move(l));
    for (const Layout& layout : layouts) {
        const Case c(p, random, layout.runs);
        const std::string what = fmt::format("{} rows from {}", layout.runs[0].rows, layout.runs[0].start);
        FamilyBits bits;
        for (Machine* m : machines()) {
            m->reset();
            const Floats y = c.run(*m, p, c.cache(*m, p), layout.extra);
            expect_rows(*m, p, c, y, what);
            bits.expect(*m, what, y);
        }
    }
}

// Risk: values beyond what 16 bits hold become infinite, or vanish.
TEST_P(AttentionPromptTest, Magnitudes) {
    Random random(std::string(GetParam().name) + " magnitudes");
    const Parameters p(GetParam(), random);
    // FP8 pages hold neither 1e6 nor 1e-6.
    const std::vector<float> scales =
        p.shape.kv == DType::e4m3 ? std::vector<float>{16.0f, 0.25f} : std::vector<float>{1e6f, 1e-6f};
    for (float scale : scales) {
        // Large keys would leave one key a row, which rounding may choose otherwise.
        const Case c(p, random, {{64, 70}, {3, 1}}, std::min(scale, 1.0f), scale);
        for (Machine* m : machines()) {
            m->reset();
            expect_rows(*m, p, c, c.run(*m, p, c.cache(*m, p)), fmt::format("times {}", scale));
        }
    }
}

// Risk: a row sees a later one, if only through a common scale or maximum.
TEST_P(AttentionPromptTest, LaterTokensChangeNothing) {
    Random random(std::string(GetParam().name) + " causal");
    const Parameters p(GetParam(), random);
    Case c(p, random, {{40, 150}, {10, 9}});
    for (Machine* m : machines()) {
        m->reset();
        const Cache cache = c.cache(*m, p);
        const Floats before = c.run(*m, p, cache);
        for (int changed : {149, 100, 64}) {
            Case other = c;
            for (int t = changed; t < 150; ++t)
                for (int i = 0; i < p.k_cols(); ++i) {
                    const size_t at = size_t(t) * size_t(p.k_cols()) + size_t(i);
                    other.in.k[at] *= -100, other.in.v[at] *= p.shape.kv == DType::e4m3 ? 9.0f : 1e6f;
                }
            const Floats after = other.run(*m, p, cache);
            expect_same_bits(fmt::format("{}: rows before {}", m->name, changed),
                             slice(after, 0, int64_t(changed) * p.y_cols()),
                             slice(before, 0, int64_t(changed) * p.y_cols()));
            expect_same_bits(m->name + ": the other sequence",
                             slice(after, int64_t(150) * p.y_cols(), 9 * p.y_cols()),
                             slice(before, int64_t(150) * p.y_cols(), 9 * p.y_cols()));
        }
    }
}

// Risk: keys of a chunk stored otherwise than one by one; a prompt's answer depends on how it is cut.
TEST_P(AttentionPromptTest, ChunksAndSingleRows) {
    Random random(std::string(GetParam().name) + " chunks");
    const Parameters p(GetParam(), random);
    const int rows = 150;
    const Case c(p, random, {{0, rows}});
    for (Machine* m : machines()) {
        m->reset();
        const Cache whole = c.cache(*m, p), cut = c.cache(*m, p);
        const Floats y = c.run(*m, p, whole);
        fill_pages(*m, p, cut, 0, c.contexts[0]);
        int next = 0;
        for (int count : {70, 1, 9, 8, 1, 61}) {
            std::vector<int> which;
            for (int i = 0; i < count; ++i) which.push_back(next++);
            const Floats part = run_rows(*m, p, cut, part_of(p, c.in, which));
            const Floats same = slice(y, int64_t(which[0]) * p.y_cols(), int64_t(count) * p.y_cols());
            expect_close(fmt::format("{} rows {} on", m->name, which[0]), part,
                         Doubles(same.begin(), same.end()), 2 * most_error_many(*m, p.shape.kv, 2e-6));
        }
        const int64_t bytes = whole.kv.page_bytes * whole.slots.max_pages - whole.layer_bytes;
        std::vector<unsigned char> a(static_cast<size_t>(bytes)), b(a.size());
        m->read(a.data(), whole.kv.pages, bytes);
        m->read(b.data(), cut.kv.pages, bytes);
        EXPECT_TRUE(a == b) << m->name << ": pages differ";
    }
}

// Risk: in a step of many rows, cursor rows read from the step; stopped slots' pages written.
TEST_P(AttentionPromptTest, CursorAndStoppedRows) {
    Random random(std::string(GetParam().name) + " stopped");
    const Parameters p(GetParam(), random);
    const std::vector<Stretch> runs = {{70, 1}, {20, 30}, {64, 1}};
    Case c(p, random, runs);
    for (Machine* m : machines()) {
        m->reset();
        const Cache cache = c.cache(*m, p);
        const Floats want = c.run(*m, p, cache);
        Case live = c;
        Slot slot{};
        slot.cursor.index = 70;
        m->set_slot(cache.slots, 0, slot);
        slot.cursor.stopped = kStopHost;
        slot.cursor.index = 1 << 30;  // reading it would be an error
        m->set_slot(cache.slots, 2, slot);
        live.in.step.rows[0] = {0, 0, -7, {}, kRowFromCursor, -1};
        live.in.step.rows[31] = {0, 2, -7, {}, kRowFromCursor, -1};
        const Floats y = live.run(*m, p, cache, 4);
        expect_same_bits(m->name, slice(y, 0, int64_t(31) * p.y_cols()),
                         slice(want, 0, int64_t(31) * p.y_cols()));
        for (size_t i = size_t(31) * size_t(p.y_cols()); i < y.size(); ++i) ASSERT_EQ(y[i], 0.0f);
    }
}

std::string shape_name(const testing::TestParamInfo<AttentionShape>& info) {
    std::string name = info.param.name;
    std::replace(name.begin(), name.end(), ' ', '_');
    return name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionPromptTest, testing::ValuesIn(kShapes), shape_name);

}  // namespace
}  // namespace sparkinfer::test
