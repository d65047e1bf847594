// attention.cpp — grouped-query attention over paged keys and values.   (ops.h: Attention)
//
// First all rows of the step go to their pages, then every (row, key/value head) attends to the pages up to
// its own index. The order of the sums depends on the index alone: scores ascending, values page by page.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/half.h"
#include "cpu/dot.h"
#include "cpu/exponentials.h"
#include "cpu/math.h"
#include "cpu/matmul.h"

namespace sparkinfer {
namespace {

struct Scratch {
    VectorParameter q_norm, k_norm, frequency;
    float* rotation;  // [T, dims]: cos of each pair, then sin of each
    int32_t group;    // query heads of one key/value head
    int64_t most;     // tokens that a sequence can hold, whole pages
    float* q;         // [threads, group, d] rotated queries
    float* scores;    // [threads, group, most]
    float* page;      // [threads, 64, d] keys or values as float32
    float* part;      // [threads, d] one page's sum of values
    double* sums;     // [threads, group, d]
    Scratch(Carver& c, const Attention& op, int64_t threads)
        : q_norm(c, op.q_norm),
          k_norm(c, op.k_norm),
          frequency(c, op.rope.frequency),
          rotation(c.take<float>(int64_t(op.q.rows()) * op.rope.dims)),
          group(op.heads / op.kv.heads),
          most(int64_t(op.slots.max_pages) * kPageTokens),
          q(c.take<float>(threads * group * op.kv.width)),
          scores(c.take<float>(threads * group * most)),
          page(c.take<float>(threads * kPageTokens * op.kv.width)),
          part(c.take<float>(threads * op.kv.width)),
          sums(c.take<double>(threads * group * op.kv.width)) {}
};

// One thread's part of Scratch.
struct Work {
    float *q, *scores, *page, *part;
    double* sums;
    Work(const Scratch& s, int64_t d, int worker)
        : q(s.q + worker * s.group * d),
          scores(s.scores + worker * s.group * s.most),
          page(s.page + worker * kPageTokens * d),
          part(s.part + worker * d),
          sums(s.sums + worker * s.group * d) {}
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

// One row and one key/value head: its whole group of query heads.
void attend(const Attention& op, const Scratch& s, int t, int g, int worker) {
    const int32_t d = op.kv.width, group = s.group, step = op.gated ? 2 * d : d;
    float* y = op.y.row(t) + int64_t(g) * group * d;
    const LiveRow row = live_row(op.step, op.slots, t);
    if (!row.present) {
        memset(y, 0, size_t(group) * d * 4);
        return;
    }
    const Work w(s, d, worker);
    const float* q[64];
    CHECK(group <= 64, "{} query heads share one key/value head", group);
    const float* source = op.q.row(t) + int64_t(g) * group * step;
    for (int h = 0; h < group; ++h) {
        prepare_head(op, source + int64_t(h) * step, s.q_norm.values, s.rotation + int64_t(t) * op.rope.dims,
                     w.q + int64_t(h) * d);
        q[h] = w.q + int64_t(h) * d;
    }
    const int length = row.index + 1;
    const int32_t* pages = op.slots.pages(row.slot);
    for (int at = 0; at < length; at += kPageTokens) {
        const int count = std::min(kPageTokens, length - at);
        const float* k = load_rows(op.kv, page_rows(op.kv, pages[at / kPageTokens], 0, g), count, w.page);
        dot_rows(k, d, count, q, group, d, w.scores + at, s.most);
    }
    double inverse[64];
    for (int h = 0; h < group; ++h) inverse[h] = 1.0 / soften(w.scores + h * s.most, length, op.scale);
    std::fill_n(w.sums, int64_t(group) * d, 0.0);
    for (int at = 0; at < length; at += kPageTokens) {
        const int count = std::min(kPageTokens, length - at);
        const float* v = load_rows(op.kv, page_rows(op.kv, pages[at / kPageTokens], 1, g), count, w.page);
        for (int h = 0; h < group; ++h) {
            weighted_sum(w.scores + h * s.most + at, v, d, count, d, w.part);
            for (int i = 0; i < d; ++i) w.sums[int64_t(h) * d + i] += double(w.part[i]);
        }
    }
    for (int h = 0; h < group; ++h)
        for (int i = 0; i < d; ++i) {
            const float a = float(w.sums[int64_t(h) * d + i] * inverse[h]);
            y[int64_t(h) * d + i] = op.gated ? a * sigmoid(source[int64_t(h) * step + d + i]) : a;
        }
}

}  // namespace

int64_t scratch_bytes(const Attention& op, int threads) { return measure<Scratch>(op, threads); }

void run(const Attention& op, Context& context) {
    CHECK(op.kv.dtype == DType::f32 || op.kv.dtype == DType::bf16 || op.kv.dtype == DType::e4m3,
          "KV pages of {}", dtype_name(op.kv.dtype));
    const Scratch s(context.scratch, op, context.pool.threads());
    context.pool.parallel(op.q.rows(), 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) append_row(op, s, int(t));
    });
    // Heads outermost: a thread keeps one head's pages in its cache over many rows.
    const int64_t rows = op.q.rows();
    context.pool.parallel(rows * op.kv.heads, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t unit = begin; unit < end; ++unit) {
            // Early (short) and late (long) rows alternate, so that equal parts take equal time.
            const int64_t i = unit % rows, t = i % 2 ? rows - 1 - i / 2 : i / 2;
            attend(op, s, int(t), int(unit / rows), worker);
        }
    });
}

}  // namespace sparkinfer
