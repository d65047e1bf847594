// moe_down_add.cpp — the weighted sum of the experts' second half, and the shared expert, added to the
// residual stream.   (ops.h: MoeDownAdd)
#include <algorithm>

#include "cpu/math.h"
#include "cpu/routing.h"

namespace sparkinfer {
namespace {

struct Scratch {
    Routing routing;
    DecodeBuffers buffers;
    RowSpace h;              // [T · K] the h of each pair, in the order of routing.pairs
    float* products;         // [threads, T · K, kMaxChunkRows], pair by pair
    float* sorted;           // [threads, T, kMaxChunkRows], one expert's, in the order of routing.pairs
    float* shared;           // [T, Fs] act(gate) ⊙ up
    RowSpace shared_rows;    // [T]
    float* shared_products;  // [threads, T, kMaxChunkRows]
    Activations kind = Activations::f32;
    Scratch(Carver& c, const MoeDownAdd& op, int64_t threads)
        : routing(c, {op.x.rows(), op.down.experts, op.router.top_k}, op.router),
          buffers(c, std::max(op.down.in, op.shared_down.in), int(threads)),
          h(c, int64_t(op.x.rows()) * op.router.top_k, op.down.in),
          products(c.take<float>(threads * op.x.rows() * op.router.top_k * kMaxChunkRows)),
          sorted(c.take<float>(threads * op.x.rows() * kMaxChunkRows)),
          shared(c.take<float>(int64_t(op.x.rows()) * op.shared_down.in)),
          shared_rows(c, op.x.rows(), op.shared_down.in),
          shared_products(c.take<float>(threads * op.x.rows() * kMaxChunkRows)) {
        if (!shared) return;
        for (int64_t t = 0; t < op.x.rows(); ++t) shared_rows.values[t] = shared + t * op.shared_down.in;
    }
};

// products[pair] = h[pair] · down[expert of pair], for the chunk's rows of all experts.
void multiply_experts(const MoeDownAdd& op, const Scratch& s, RowChunk chunk, float* products, int worker) {
    const ActivationRows h = s.h.rows(s.kind);
    float* sorted = s.sorted + int64_t(worker) * op.x.rows() * kMaxChunkRows;
    for (int32_t a = 0; a < s.routing.actives; ++a) {
        const int32_t expert = s.routing.active[a], first = s.routing.first[expert];
        const int32_t count = s.routing.count(expert);
        multiply_chunk(op.down, expert, chunk, h.from(first), count, sorted, kMaxChunkRows,
                       s.buffers.of(worker));
        for (int64_t i = 0; i < count; ++i)
            std::copy_n(sorted + i * kMaxChunkRows, chunk.rows,
                        products + int64_t(s.routing.pairs[first + i]) * kMaxChunkRows);
    }
}

void add_chunk(const MoeDownAdd& op, const Scratch& s, RowChunk chunk, int worker) {
    const int64_t k = op.router.top_k, rows = op.x.rows();
    float* products = s.products + worker * rows * k * kMaxChunkRows;
    float* shared = s.shared_products + worker * rows * kMaxChunkRows;
    multiply_experts(op, s, chunk, products, worker);
    if (op.shared_down.data)
        multiply_chunk(op.shared_down, 0, chunk, s.shared_rows.rows(s.kind), int(rows), shared, kMaxChunkRows,
                       s.buffers.of(worker));
    for (int64_t t = 0; t < rows; ++t) {
        if (s.routing.experts[t * k] < 0) continue;
        float* x = op.x.row(t) + chunk.first;
        const float factor = op.shared_scalar ? sigmoid(*op.shared_scalar.row(t)) : 1.0f;
        for (int r = 0; r < chunk.rows; ++r) {
            double sum = 0;
            for (int64_t j = 0; j < k; ++j)
                sum +=
                    double(s.routing.weights[t * k + j]) * double(products[(t * k + j) * kMaxChunkRows + r]);
            if (op.shared_down.data) sum += double(factor) * double(shared[t * kMaxChunkRows + r]);
            x[r] = float(double(x[r]) + sum);
        }
    }
}

void make_shared(const MoeDownAdd& op, const Scratch& s, Pool& pool) {
    const int64_t width = op.shared_down.in;
    pool.parallel(op.x.rows(), 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
            std::copy_n(op.shared_gate.row(t), width, s.shared + t * width);
            activate(op.activation, s.shared + t * width, op.shared_up.row(t), width);
        }
        s.shared_rows.convert(begin, end, s.kind);
    });
}

}  // namespace

int64_t scratch_bytes(const MoeDownAdd& op, int threads) { return measure<Scratch>(op, threads); }

void run(const MoeDownAdd& op, Context& context) {
    Scratch s(context.scratch, op, context.pool.threads());
    s.routing.compute(context.pool, op.step, op.slots, op.router, op.logits);
    const int32_t k = op.router.top_k;
    for (int32_t i = 0; i < s.routing.first[op.down.experts]; ++i) {
        const int32_t pair = s.routing.pairs[i];
        s.h.values[i] = op.h.row(pair / k) + int64_t(pair % k) * op.down.in;
    }
    s.kind = wanted(context, {&op.down, &op.shared_down});
    s.h.convert(context.pool, s.routing.first[op.down.experts], s.kind);
    if (op.shared_down.data) make_shared(op, s, context.pool);
    // Both matrices are cut alike, by the wider of the two.
    const int rows = chunk_rows(std::max(op.down.in, op.shared_down.in));
    const int64_t chunks = (op.down.out + rows - 1) / rows;
    context.pool.parallel(chunks, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t unit = begin; unit < end; ++unit) {
            const int first = int(unit) * rows;
            add_chunk(op, s, {first, std::min(rows, op.down.out - first)}, worker);
        }
    });
}

}  // namespace sparkinfer
