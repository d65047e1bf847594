// attention.cpp — attention against float64 over pages kept by the test, and its invariants bit for bit.
#include <algorithm>
#include <cmath>
#include <set>

#include "attention_case.h"
#include "core/half.h"

namespace sparkinfer::test {
namespace {

using namespace attention_case;

// smollm, llama, qwen3, qwen35; every page format.
const AttentionShape kShapes[] = {
    {"smollm", 9, 3, 64, false, false, 64, RopePairs::adjacent, {}, DType::f32, 1.0f},
    {"llama", 8, 2, 128, false, false, 128, RopePairs::halves, {}, DType::bf16, 1.2f},
    {"qwen3", 16, 8, 128, false, true, 128, RopePairs::halves, {}, DType::f32, 1.0f},
    {"qwen35", 16, 2, 256, true, true, 64, RopePairs::halves, {11, 11, 10}, DType::f32, 1.0f},
    {"qwen35 bf16", 6, 1, 256, true, true, 64, RopePairs::halves, {12, 8, 4}, DType::bf16, 1.0f},
    {"llama fp8", 8, 2, 128, false, false, 128, RopePairs::halves, {}, DType::e4m3, 1.2f},
    {"qwen35 fp8", 6, 1, 256, true, true, 64, RopePairs::halves, {12, 8, 4}, DType::e4m3, 1.0f},
};
// The CPU's bits depend on nothing; a device has one form for few rows and one for many, equal within a form.
bool has_one_form(const Machine& m) { return m.name.starts_with("cpu"); }

// Sequences of 70, 1 and 130 tokens, their rows in runs beside each other.
StepImage ragged() {
    StepImage step;
    step.add_rows(2, 0, 70);
    step.add_rows(0, 0, 1);
    step.add_rows(1, 0, 130);
    return step;
}

// The same row of steps of different sizes.
void expect_same_row(const Machine& m, const Parameters& p, const std::string& what, const Floats& got,
                     const Floats& want) {
    if (has_one_form(m))
        expect_same_bits(m.name + ' ' + what, got, want);
    else
        expect_close(m.name + ' ' + what, got, Doubles(want.begin(), want.end()),
                     p.shape.kv == DType::f32 ? 2e-5 : 6e-4);
}

class AttentionTest : public testing::TestWithParam<AttentionShape> {};

// Risk: any slip in norm, rotation, head mapping, paging, softmax, gate; a rounding of KV that is not to
// nearest even.
TEST_P(AttentionTest, MatchesFloat64) {
    Random random(GetParam().name);
    const Parameters p(GetParam(), random);
    Inputs in = random_inputs(p, random, ragged());
    if (p.shape.sections[0]) spread_axes(in.step);
    const Doubles want = reference(p, in);
    FamilyBits bits;
    for (Machine* m : machines()) {
        m->reset();
        const Cache cache(*m, p);
        const Floats y = run_rows(*m, p, cache, in);
        expect_close(m->name, y, want, most_error_many(*m, p.shape.kv, 1e-6));
        bits.expect(*m, "", y);
    }
}

// Risk: a row that depends on its neighbours or on how the prompt was cut; pages of another sequence or layer
// touched.
TEST_P(AttentionTest, CutsAndNeighboursChangeNothing) {
    Random random(std::string(GetParam().name) + " cuts");
    const Parameters p(GetParam(), random);
    const Inputs in = random_inputs(p, random, ragged());
    for (Machine* m : machines()) {
        m->reset();
        const Cache whole(*m, p), cut(*m, p);
        const Floats all = run_rows(*m, p, whole, in);
        // The same rows in small steps: sequences take turns, chunks of 1 … 40 rows.
        size_t next[kSlots] = {70, 71, 0};
        const size_t end[kSlots] = {71, 201, 70};
        for (int turn = 0; next[0] < end[0] || next[1] < end[1] || next[2] < end[2]; ++turn) {
            std::vector<int> which;
            for (int s = 0; s < kSlots; ++s)
                for (int n = 1 + random.below(turn % 2 ? 40 : 3); n > 0 && next[s] < end[s]; --n)
                    which.push_back(int(next[s]++));
            const Floats y = run_rows(*m, p, cut, part_of(p, in, which), turn % 3);
            for (size_t i = 0; i < which.size(); ++i)
                expect_same_row(*m, p, fmt::format("row {}", which[i]),
                                slice(y, int64_t(i) * p.y_cols(), p.y_cols()),
                                slice(all, int64_t(which[i]) * p.y_cols(), p.y_cols()));
            for (size_t i = which.size() * size_t(p.y_cols()); i < y.size(); ++i)
                ASSERT_EQ(y[i], 0.0f) << "absent";
        }
        std::vector<unsigned char> a(size_t(whole.kv.page_bytes) * kSlots * kPages), b(a.size());
        m->read(a.data(), whole.pages, int64_t(a.size()));
        m->read(b.data(), cut.pages, int64_t(b.size()));
        EXPECT_TRUE(a == b) << m->name << ": pages differ";
        for (int page = 0; page < kSlots * kPages; ++page)
            for (int64_t i = 0; i < whole.layer_bytes; ++i)
                ASSERT_EQ(a[size_t(page * whole.kv.page_bytes + i)], 0xFF)
                    << "another layer's part of page " << page;
    }
}

// Risk: cursor rows read from the step instead of the slot; a stopped slot's pages written.
TEST_P(AttentionTest, CursorAndStoppedRows) {
    Random random(std::string(GetParam().name) + " cursor");
    const Parameters p(GetParam(), random);
    StepImage plain;
    plain.add_rows(0, 0, 66);
    const Inputs in = random_inputs(p, random, plain);
    std::vector<int> before(65);
    for (int i = 0; i < 65; ++i) before[size_t(i)] = i;
    for (Machine* m : machines()) {
        m->reset();
        const Cache a(*m, p);
        const Floats want = run_rows(*m, p, a, in);
        run_rows(*m, p, a, part_of(p, in, before));
        Slot slot{};
        slot.cursor.index = 65;
        m->set_slot(a.slots, 0, slot);
        slot.cursor.stopped = kStopHost;
        slot.cursor.index = 1 << 30;  // reading it would be an error
        m->set_slot(a.slots, 1, slot);
        Inputs last = part_of(p, in, {64, 65});
        last.step.rows[0] = {0, 1, -7, {}, kRowFromCursor, -1};
        last.step.rows[1] = {0, 0, -7, {}, kRowFromCursor, -1};
        const Floats y = run_rows(*m, p, a, last);
        for (int i = 0; i < p.y_cols(); ++i) ASSERT_EQ(y[size_t(i)], 0.0f);
        expect_same_row(*m, p, "last row", slice(y, p.y_cols(), p.y_cols()),
                        slice(want, int64_t(65) * p.y_cols(), p.y_cols()));
    }
}

// Steps of few rows over contexts of any length, whose keys and values are written to the pages by the test.

// Group sizes 8, 6, 3, 2 and 1; every head width that has a form for few rows.
const AttentionShape kDecodeShapes[] = {
    {"d256 bf16", 8, 1, 256, true, true, 64, RopePairs::halves, {12, 8, 4}, DType::bf16, 1.0f},
    {"d256 f32", 6, 1, 256, true, true, 64, RopePairs::halves, {}, DType::f32, 1.0f},
    {"d128 bf16", 16, 8, 128, false, true, 128, RopePairs::halves, {}, DType::bf16, 1.0f},
    {"d128 f32", 4, 4, 128, false, true, 128, RopePairs::halves, {}, DType::f32, 1.1f},
    {"d64 bf16", 9, 3, 64, false, false, 64, RopePairs::adjacent, {}, DType::bf16, 1.0f},
    {"d64 f32", 3, 1, 64, false, false, 64, RopePairs::adjacent, {}, DType::f32, 1.0f},
    {"d128 bf16 narrow", 1, 1, 128, false, true, 128, RopePairs::halves, {}, DType::bf16, 1.0f},
    {"d256 bf16 narrow", 1, 1, 256, true, true, 64, RopePairs::halves, {}, DType::bf16, 1.0f},
    {"d256 fp8", 8, 1, 256, true, true, 64, RopePairs::halves, {12, 8, 4}, DType::e4m3, 1.0f},
    {"d128 fp8", 16, 8, 128, false, true, 128, RopePairs::halves, {}, DType::e4m3, 1.0f},
    {"d64 fp8", 3, 1, 64, false, false, 64, RopePairs::adjacent, {}, DType::e4m3, 1.0f},
};

// Keys and values [tokens, G·d] of one sequence, as the pages hold them.
struct Context {
    Floats k, v;
    Context(const Parameters& p, Random& random, int tokens)
        : k(random.normals(int64_t(tokens) * p.k_cols())), v(random.normals(int64_t(tokens) * p.k_cols())) {
        for (Floats* values : {&k, &v})
            for (float& x : *values) x = float(stored(p, double(x)));
    }
};

// Writes the first `count` tokens to the slot's pages; what lies behind them becomes NaN.
void fill_pages(Machine& m, const Parameters& p, const Cache& c, int slot, const Context& context,
                int count) {
    const int d = p.shape.width, heads = p.shape.kv_heads;
    const size_t element = size_t(dtype_bytes(p.shape.kv));
    std::vector<int32_t> pages(static_cast<size_t>(c.slots.max_pages));
    m.read(pages.data(), c.slots.pages(slot), int64_t(pages.size()) * 4);
    std::vector<std::byte> page(static_cast<size_t>(c.layer_bytes));
    for (size_t n = 0; n < pages.size(); ++n) {
        std::fill(page.begin(), page.end(), std::byte{0xFF});
        for (int t = int(n) * kPageTokens; t < std::min(count, int(n + 1) * kPageTokens); ++t)
            for (int i = 0; i < 2 * heads * d; ++i) {
                const Floats& from = i < heads * d ? context.k : context.v;
                const float x = from[size_t(t) * size_t(heads * d) + size_t(i % (heads * d))];
                const uint16_t half = f32_to_bf16(x);
                const uint8_t code = f32_to_e4m3(x);
                const size_t at =
                    (size_t(i / d * kPageTokens + t % kPageTokens) * size_t(d) + size_t(i % d)) * element;
                const void* stored_as[] = {&code, &half, &x};
                memcpy(&page[at], stored_as[element / 2], element);
            }
        m.write(c.kv.pages + pages[n] * c.kv.page_bytes, page.data(), c.layer_bytes);
    }
}

// The only row of `in` over the first keys of `context`, its own key last.
Doubles decode_reference(const Parameters& p, const Inputs& in, const Context& context) {
    const AttentionShape& s = p.shape;
    const int d = s.width, group = s.heads / s.kv_heads, step = s.gated ? 2 * d : d;
    const Row& row = in.step.rows[0];
    const size_t cols = size_t(p.k_cols()), count = size_t(row.index) + 1;
    Doubles y(size_t(p.y_cols()), 0.0), k(context.k.begin(), context.k.begin() + int64_t((count - 1) * cols)),
        v(context.v.begin(), context.v.begin() + int64_t((count - 1) * cols));
    for (int g = 0; g < s.kv_heads; ++g)
        for (double x : head(p, in.k, int64_t(g) * d, &p.k_norm, row.position)) k.push_back(stored(p, x));
    for (float x : in.v) v.push_back(stored(p, double(x)));
    for (int h = 0; h < s.heads; ++h) {
        const Doubles q = head(p, in.q, int64_t(h) * step, &p.q_norm, row.position);
        const size_t first = size_t(h / group) * size_t(d);
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
            out[i] *= sigmoid64(double(in.q[size_t(h) * size_t(step) + size_t(d + i)]));
    }
    return y;
}

// Around the edges of tiles, pages and shares; `all`: of every page. Longest first: the key that a row
// appends lies behind all that later rows see.
std::vector<int> decode_lengths(bool all) {
    if (cases_are_short()) return {515, 130, 65, 64, 1};
    std::set<int> lengths = {4097, 4096, 2049, 2048, 1537, 1025, 1024, 1023, 515, 513, 512,
                             511,  257,  256,  130,  129,  128,  127,  66,   65,  64,  63,
                             33,   32,   31,   17,   16,   15,   9,    8,    2,   1};
    for (int edge = kPageTokens; all && edge <= 4096; edge += kPageTokens)
        for (int length = edge - 1; length <= edge + 1; ++length) lengths.insert(length);
    return {lengths.rbegin(), lengths.rend()};
}

class AttentionDecodeTest : public testing::TestWithParam<AttentionShape> {};

// Risk: a key lost or counted twice where tiles, pages, shares of blocks or clusters meet; what lies behind
// the last key (here NaN) read as a key; merging many parts.
TEST_P(AttentionDecodeTest, EveryLength) {
    Random random(std::string(GetParam().name) + " lengths");
    const Parameters p(GetParam(), random);
    const std::vector<int> lengths = decode_lengths(p.y_cols() <= 256);
    const double most = most_error(p.shape.kv, 5e-6);
    const Context context(p, random, 4097);
    std::vector<Inputs> inputs;
    std::vector<Doubles> want;
    for (int length : lengths) {
        StepImage step;
        step.add_rows(0, length - 1, 1);
        inputs.push_back(random_inputs(p, random, step));
        want.push_back(decode_reference(p, inputs.back(), context));
    }
    for (Machine* m : machines()) {
        m->reset();
        const Cache cache(*m, p, 1, 65);
        fill_pages(*m, p, cache, 0, context, 4096);
        for (size_t i = 0; i < inputs.size(); ++i)
            expect_close(fmt::format("{} length {}", m->name, lengths[i]), run_rows(*m, p, cache, inputs[i]),
                         want[i], most);
        m->reset();
        const Cache bare(*m, p, 1, 3);  // nothing but NaN behind the key
        for (size_t i = 0; i < inputs.size(); ++i) {
            if (lengths[i] > 130) continue;
            fill_pages(*m, p, bare, 0, context, lengths[i] - 1);
            expect_close(fmt::format("{} length {} alone", m->name, lengths[i]),
                         run_rows(*m, p, bare, inputs[i]), want[i], most);
        }
    }
}

// The rows of a step, one by one and all at once, over the same pages.
void expect_same_alone(Machine& m, const Parameters& p, const Cache& cache, const Inputs& in,
                       const std::vector<Context>& contexts, const std::vector<int>& settled) {
    const auto fill = [&] {
        for (size_t s = 0; s < settled.size(); ++s) fill_pages(m, p, cache, int(s), contexts[s], settled[s]);
    };
    const int64_t bytes = cache.kv.page_bytes * cache.slots.count * cache.slots.max_pages - cache.layer_bytes;
    std::vector<unsigned char> alone_pages(static_cast<size_t>(bytes)), pages(alone_pages.size());
    fill();
    std::vector<Floats> alone;
    alone.reserve(size_t(in.rows()));
    for (int t = 0; t < in.rows(); ++t) alone.push_back(run_rows(m, p, cache, part_of(p, in, {t})));
    m.read(alone_pages.data(), cache.kv.pages, bytes);
    fill();
    const Floats together = run_rows(m, p, cache, in);
    m.read(pages.data(), cache.kv.pages, bytes);
    for (int t = 0; t < in.rows(); ++t)
        expect_same_bits(fmt::format("{}: row {} of {} from index {}", m.name, t, in.rows(), settled[0]),
                         slice(together, int64_t(t) * p.y_cols(), p.y_cols()), alone[size_t(t)]);
    EXPECT_TRUE(pages == alone_pages) << m.name << ": pages differ, from index " << settled[0];
}

// Risk: a row that sees keys of the same step otherwise than keys in pages, or misses one; bits that depend
// on T.
TEST_P(AttentionDecodeTest, RowsOfOneSequence) {
    Random random(std::string(GetParam().name) + " one");
    const Parameters p(GetParam(), random);
    const std::vector<Context> contexts(1, Context(p, random, 576));
    const std::pair<int, int> runs[] = {{0, 8},  {0, 3},   {5, 2},   {13, 7}, {60, 8},
                                        {64, 5}, {127, 4}, {508, 8}, {511, 6}};
    for (const auto& [first, rows] : runs) {
        StepImage step;
        step.add_rows(0, first, rows, kRowVerify);
        const Inputs in = random_inputs(p, random, step);
        for (Machine* m : machines()) {
            m->reset();
            expect_same_alone(*m, p, Cache(*m, p, 1, 9), in, contexts, {first});
        }
    }
}

// Risk: a row that depends on sequences beside it, whatever their lengths.
TEST_P(AttentionDecodeTest, RowsOfManySequences) {
    Random random(std::string(GetParam().name) + " many");
    const Parameters p(GetParam(), random);
    const std::vector<int> lengths = {0, 511, 63, 1, 300, 64, 17, 130};
    std::vector<Context> contexts;
    contexts.reserve(lengths.size());
    for (int length : lengths) contexts.emplace_back(p, random, length);
    for (int rows : {2, 5, 8}) {
        StepImage step;
        for (int s = 0; s < rows; ++s) step.add_rows(s, lengths[size_t(s)], 1);
        const Inputs in = random_inputs(p, random, step);
        for (Machine* m : machines()) {
            m->reset();
            expect_same_alone(*m, p, Cache(*m, p, 8, 9), in, contexts, lengths);
        }
    }
}

std::string shape_name(const testing::TestParamInfo<AttentionShape>& info) {
    std::string name = info.param.name;
    std::replace(name.begin(), name.end(), ' ', '_');
    return name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, testing::ValuesIn(kShapes), shape_name);
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionDecodeTest, testing::ValuesIn(kDecodeShapes), shape_name);

}  // namespace
}  // namespace sparkinfer::test
