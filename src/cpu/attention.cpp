// attention.cpp — grouped-query attention over paged keys and values.   (ops.h: Attention)
//
// First all rows of the step go to their pages, then every (row, key/value head) attends to the pages up to
// its own index, a few rows of a sequence in one pass. The order of the sums depends on the index alone:
// values page by page.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/half.h"
#include "cpu/attention_page.h"
#include "cpu/exponentials.h"
#include "cpu/math.h"
#include "cpu/matmul.h"

namespace sparkinfer {
namespace {

constexpr int kMostQueries = 64;  // query heads of one key/value head
constexpr int kQueries = 12;      // of one pass over the pages, if a row has fewer

// Rows of one sequence, one behind the other.
struct RowBlock {
    int32_t first, rows, slot, index;  // index: of the first
    bool present;                      // else it is one row
};

struct Scratch {
    VectorParameter q_norm, k_norm, frequency;
    float* rotation;    // [T, dims]: cos of each pair, then sin of each
    int32_t group;      // query heads of one key/value head
    int64_t most;       // tokens that a sequence can hold, whole pages
    int32_t most_rows;  // of a block
    RowBlock* block;    // [T]
    int32_t blocks = 0;
    int64_t columns;  // most queries of a pass: Q
    float* q;         // [threads, d, Q] rotated queries
    float* row;       // [threads, d] one of them
    float* scores;    // [threads, Q, most]
    float* page;      // [threads, 64, d] keys or values as float32
    float* turned;    // [threads, 16, d]
    float* part;      // [threads, Q, d] one page's sums of values
    double* sums;     // [threads, Q, d]
    Scratch(Carver& c, const Attention& op, int64_t threads)
        : q_norm(c, op.q_norm),
          k_norm(c, op.k_norm),
          frequency(c, op.rope.frequency),
          rotation(c.take<float>(int64_t(op.q.rows()) * op.rope.dims)),
          group(op.heads / op.kv.heads),
          most(int64_t(op.slots.max_pages) * kPageTokens),
          most_rows(std::clamp(kQueries / group, 1, op.q.rows())),
          block(c.take<RowBlock>(op.q.rows())),
          columns(int64_t(most_rows) * group),
          q(c.take<float>(threads * columns * op.kv.width)),
          row(c.take<float>(threads * op.kv.width)),
          scores(c.take<float>(threads * columns * most)),
          page(c.take<float>(threads * kPageTokens * op.kv.width)),
          turned(c.take<float>(threads * 16 * op.kv.width)),
          part(c.take<float>(threads * columns * op.kv.width)),
          sums(c.take<double>(threads * columns * op.kv.width)) {
        CHECK(group <= kMostQueries, "{} query heads share one key/value head", group);
    }
};

// One thread's part of Scratch.
struct Work {
    float *q, *row, *scores, *page, *turned, *part;
    double* sums;
    Work(const Scratch& s, int64_t d, int worker)
        : q(s.q + worker * s.columns * d),
          row(s.row + worker * d),
          scores(s.scores + worker * s.columns * s.most),
          page(s.page + worker * kPageTokens * d),
          turned(s.turned + worker * 16 * d),
          part(s.part + worker * s.columns * d),
          sums(s.sums + worker * s.columns * d) {}
};

// Position that pair `s` turns by; see Rope::sections.
int32_t axis_position(const Rope& rope, const LiveRow& row, int s) {
    if (s % 3 == 1 && s < 3 * rope.sections[1]) return row.position[1];
    if (s % 3 == 2 && s < 3 * rope.sections[2]) return row.position[2];
    return row.position[0];
}

void make_rotation(const Rope& rope, const float* frequency, const LiveRow& row, float* cos_sin) {
    const int pairs = rope.dims / 2;
    for (int s = 0; s < pairs; ++s) {
        const double angle = double(axis_position(rope, row, s)) * double(frequency[s]);
        cos_sin[s] = float(std::cos(angle) * rope.magnitude);
        cos_sin[pairs + s] = float(std::sin(angle) * rope.magnitude);
    }
}

// y = x, normalised when there is a norm, then rotated.
void prepare_head(const Attention& op, const float* x, const float* norm, const float* cos_sin, float* y) {
    const int32_t d = op.kv.width;
    if (norm)
        rms_norm(x, norm, d, op.eps, y);
    else
        memcpy(y, x, size_t(d) * 4);
    const int pairs = op.rope.dims / 2;
    const bool halves = op.rope.pairs == RopePairs::halves;
    for (int s = 0; s < pairs; ++s) {
        float &a = y[halves ? s : 2 * s], &b = y[halves ? s + pairs : 2 * s + 1];
        const float c = cos_sin[s], i = cos_sin[pairs + s], a0 = a, b0 = b;
        a = a0 * c - b0 * i;
        b = b0 * c + a0 * i;
    }
}

// Where the 64 rows of a page lie for one head; which: 0 keys, 1 values.
std::byte* page_rows(const KvLayer& kv, int32_t page, int which, int head) {
    return kv.pages + page * kv.page_bytes +
           (int64_t(which) * kv.heads + head) * kPageTokens * kv.width * dtype_bytes(kv.dtype);
}

void store_row(const KvLayer& kv, std::byte* rows, int at, const float* x) {
    if (kv.dtype == DType::f32) {
        memcpy(rows + int64_t(at) * kv.width * 4, x, size_t(kv.width) * 4);
        return;
    }
    if (kv.dtype == DType::e4m3) {
        auto* y = reinterpret_cast<uint8_t*>(rows) + int64_t(at) * kv.width;
        for (int i = 0; i < kv.width; ++i) y[i] = f32_to_e4m3(x[i]);
        return;
    }
    auto* y = reinterpret_cast<uint16_t*>(rows) + int64_t(at) * kv.width;
    for (int i = 0; i < kv.width; ++i) y[i] = f32_to_bf16(x[i]);
}

// The first `count` rows as float32: in place, or converted to `buffer`.
const float* load_rows(const KvLayer& kv, const std::byte* rows, int count, float* buffer) {
    if (kv.dtype == DType::f32) return reinterpret_cast<const float*>(rows);
    const int64_t n = int64_t(count) * kv.width;
    const auto* codes = reinterpret_cast<const uint8_t*>(rows);
    const auto* halves = reinterpret_cast<const uint16_t*>(rows);
    if (kv.dtype == DType::e4m3)
        for (int64_t i = 0; i < n; ++i) buffer[i] = e4m3_to_f32(codes[i]);
    else
        for (int64_t i = 0; i < n; ++i) buffer[i] = bf16_to_f32(halves[i]);
    return buffer;
}

void append_row(const Attention& op, const Scratch& s, int t) {
    const LiveRow row = live_row(op.step, op.slots, t);
    if (!row.present) return;
    CHECK(row.index >= 0 && row.index < s.most, "index {} in {} pages", row.index, op.slots.max_pages);
    float* cos_sin = s.rotation + int64_t(t) * op.rope.dims;
    make_rotation(op.rope, s.frequency.values, row, cos_sin);
    const int32_t page = op.slots.pages(row.slot)[row.index / kPageTokens], d = op.kv.width;
    float k[1024];
    CHECK(d <= 1024, "heads of {}", d);
    for (int g = 0; g < op.kv.heads; ++g) {
        prepare_head(op, op.k.row(t) + int64_t(g) * d, s.k_norm.values, cos_sin, k);
        store_row(op.kv, page_rows(op.kv, page, 0, g), row.index % kPageTokens, k);
        store_row(op.kv, page_rows(op.kv, page, 1, g), row.index % kPageTokens, op.v.row(t) + int64_t(g) * d);
    }
}

// Cuts the step into blocks: rows of one sequence, one behind the other, up to what the queries of one pass
// over the pages may be.
void find_blocks(const Attention& op, Scratch& s) {
    s.blocks = 0;
    for (int32_t t = 0; t < op.q.rows(); ++t) {
        const LiveRow row = live_row(op.step, op.slots, t);
        if (s.blocks > 0) {
            RowBlock& last = s.block[s.blocks - 1];
            if (row.present && last.present && row.slot == last.slot && row.index == last.index + last.rows &&
                last.rows < s.most_rows) {
                ++last.rows;
                continue;
            }
        }
        s.block[s.blocks++] = {t, 1, row.slot, row.index, row.present};
    }
}

// The sums of values, in w.sums: page by page in float64. Rows that see the whole page share a pass over it.
void sum_values(const Attention& op, const Scratch& s, const RowBlock& b, int g, const Work& w) {
    const int32_t d = op.kv.width, group = s.group, longest = b.index + b.rows;
    const int32_t* pages = op.slots.pages(b.slot);
    const float* p[kMostQueries];
    float* part[kMostQueries];
    for (int c = 0; c < b.rows * group; ++c) part[c] = w.part + int64_t(c) * d;
    std::fill_n(w.sums, int64_t(b.rows) * group * d, 0.0);
    for (int at = 0; at < longest; at += kPageTokens) {
        const int count = std::min(kPageTokens, longest - at);
        const float* v = load_rows(op.kv, page_rows(op.kv, pages[at / kPageTokens], 1, g), count, w.page);
        for (int c = 0; c < b.rows * group; ++c) p[c] = w.scores + c * s.most + at;
        const bool together = b.index + 1 - at >= kPageTokens;
        for (int r = 0; r < b.rows; r += together ? b.rows : 1) {
            const int first = r * group, columns = together ? b.rows * group : group,
                      seen = std::min(kPageTokens, b.index + r + 1 - at);
            if (seen <= 0) continue;
            page_sums({p + first, columns, v, d, seen, d, part + first});
            for (int64_t i = int64_t(first) * d; i < int64_t(first + columns) * d; ++i)
                w.sums[i] += double(w.part[i]);
        }
    }
}

// One block of rows and one key/value head: the whole group of query heads of each row.
void attend(const Attention& op, const Scratch& s, const RowBlock& b, int g, int worker) {
    const int32_t d = op.kv.width, group = s.group, step = op.gated ? 2 * d : d;
    if (!b.present) {
        memset(op.y.row(b.first) + int64_t(g) * group * d, 0, size_t(group) * size_t(d) * 4);
        return;
    }
    const Work w(s, d, worker);
    const auto source = [&](int c) {
        return op.q.row(b.first + c / group) + (int64_t(g) * group + c % group) * step;
    };
    const int columns = b.rows * group, longest = b.index + b.rows;
    for (int c = 0; c < columns; ++c) {
        prepare_head(op, source(c), s.q_norm.values, s.rotation + int64_t(b.first + c / group) * op.rope.dims,
                     w.row);
        for (int i = 0; i < d; ++i) w.q[i * columns + c] = w.row[i];
    }
    const int32_t* pages = op.slots.pages(b.slot);
    for (int at = 0; at < longest; at += kPageTokens) {
        const int count = std::min(kPageTokens, longest - at);
        const float* k = load_rows(op.kv, page_rows(op.kv, pages[at / kPageTokens], 0, g), count, w.page);
        page_scores({w.q, columns, k, count, d, w.scores + at, s.most, w.turned});
    }
    double inverse[kMostQueries];
    for (int c = 0; c < columns; ++c)
        inverse[c] = 1.0 / soften(w.scores + c * s.most, b.index + c / group + 1, op.scale);
    sum_values(op, s, b, g, w);
    for (int c = 0; c < columns; ++c) {
        float* y = op.y.row(b.first + c / group) + (int64_t(g) * group + c % group) * d;
        for (int i = 0; i < d; ++i) {
            const float a = float(w.sums[int64_t(c) * d + i] * inverse[c]);
            y[i] = op.gated ? a * sigmoid(source(c)[d + i]) : a;
        }
    }
}

}  // namespace

int64_t scratch_bytes(const Attention& op, int threads) { return measure<Scratch>(op, threads); }

void run(const Attention& op, Context& context) {
    CHECK(op.kv.dtype == DType::f32 || op.kv.dtype == DType::bf16 || op.kv.dtype == DType::e4m3,
          "KV pages of {}", dtype_name(op.kv.dtype));
    Scratch s(context.scratch, op, context.pool.threads());
    find_blocks(op, s);
    context.pool.parallel(op.q.rows(), 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) append_row(op, s, int(t));
    });
    // Heads outermost: a thread keeps one head's pages in its cache over many rows.
    const int64_t blocks = s.blocks;
    context.pool.parallel(blocks * op.kv.heads, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t unit = begin; unit < end; ++unit) {
            // Early (short) and late (long) rows alternate, so that equal parts take equal time.
            const int64_t i = unit % blocks, at = i % 2 ? blocks - 1 - i / 2 : i / 2;
            attend(op, s, s.block[at], int(unit / blocks), worker);
        }
    });
}

}  // namespace sparkinfer
